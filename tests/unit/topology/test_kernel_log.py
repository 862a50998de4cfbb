"""Errors of GPUs in the kernel's log: read from its beginning, heard as they are written."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.topology.facts import Xid
from stokerd.topology.kernel_log import KernelLog
from stokerd.topology.report import build
from stokerd.topology.xids import MEANINGS, note, parse
from tests.rig.hardware.machines import h100
from tests.rig.hardware.tree import lay_out
from tests.unit.topology.nodes import THEN, observe
from tests.unit.topology.test_room import running, settings_for, told

FALLEN = b"4,1811,5148204312,-;NVRM: Xid (PCI:0000:33:00): 79, pid=7, name=x, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (FALLEN, ("0000:33:00.0", 79)),
        (
            b"3,7,12,-;NVRM: Xid (PCI:0008:01:00.0): 31, pid=1, name=py\n SUBSYSTEM=pci\n",
            ("0008:01:00.0", 31),
        ),
        (b"6,1,0,-;Linux version 6.18\n", None),
        (b"6,1,0,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n", None),
        (b"4,1,5,-;NVRM: Xid (PCI:nowhere): 79, pid\n", None),
        (b"NVRM: Xid (PCI:0000:33:00): 79", None),
        (b"", None),
    ],
)
def test_records(record: bytes, expected: tuple[str, int] | None) -> None:
    found = parse(record)
    assert (found and (found.address, found.number)) == expected


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    parse(data)
    parse(b"4,1,5,-;NVRM: Xid (PCI:" + data)


def test_errors_are_counted_and_their_memory_is_bounded() -> None:
    known: tuple[Xid, ...] = ()
    for turn in range(200):
        known = note(known, f"0000:{turn % 100:02x}:00.0", 79, THEN + timedelta(seconds=turn))
    assert len(known) == 64
    assert {each.count for each in known} == {1}  # those that went were begun anew
    assert max(each.last for each in known) == THEN + timedelta(seconds=199)


def test_errors_of_the_hardware_are_findings_and_those_of_programs_are_not() -> None:
    addresses = [gpu.address for gpu in h100().gpus]
    seen = (Xid(addresses[1], 13, 4, THEN), Xid(addresses[2], 48, 2, THEN), Xid(addresses[3], 79, 1, THEN))
    report = build(msgspec.structs.replace(observe(h100()), xids=seen), THEN)
    assert [[(each.xid, each.count) for each in gpu.xids] for gpu in report.gpus[:4]] == [
        [],
        [(13, 4)],
        [(48, 2)],
        [(79, 1)],
    ]
    assert [(found.code, found.severity, found.subjects[0]) for found in report.findings] == [
        ("GpuXid", "error", "GPU3"),
        ("GpuXid", "warning", "GPU2"),
    ]
    assert "kernel-log" in {source.name for source in report.sources}
    assert 13 not in MEANINGS


async def test_the_log_is_heard_from_its_beginning(tmp_path: Path) -> None:
    """A pipe stands for the log: each write is one record, as the kernel hands them out."""
    lay_out(h100(), tmp_path)
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    log = os.open(tmp_path / "dev/kmsg", os.O_RDWR)
    settings = replace(settings_for(tmp_path), gpu_interval=3600.0)
    try:
        async with running(settings) as room, aclosing(room.follow()) as events:
            first = (await anext(events)).report
            assert first is not None
            assert "kernel-log" in {source.name for source in first.sources}
            os.write(log, FALLEN)
            await told(events, ("gpu GPU2 xid 79", "", ""), ("finding GpuXid GPU2 Xid 79", "", FINDING))
            report = await room.report()
    finally:
        os.close(log)
    (xid,) = report.gpus[2].xids
    assert (xid.xid, xid.count) == (79, 1)
    assert xid.last <= datetime.now(UTC)


FINDING = "it has fallen off the bus (Xid 79, once since the machine started)"


async def test_a_log_that_may_not_be_read_and_one_that_ends(tmp_path: Path) -> None:
    told_of: list[int] = []
    log = KernelLog(lambda: told_of.append(1))
    with pytest.raises(FileNotFoundError):
        log.start(tmp_path)
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    log.start(tmp_path)
    assert log.listening
    with (tmp_path / "dev/kmsg").open("wb") as writing:
        writing.write(FALLEN)
    async with asyncio.timeout(10):
        while log.listening:  # noqa: ASYNC110 - whoever wrote it has gone: there is no event but the end of the file
            await asyncio.sleep(0)
    assert [(each.address, each.number) for each in log.xids] == [("0000:33:00.0", 79)]
    assert told_of == [1]
    log.stop()
