"""AMD's tool: what it adds to what sysfs says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.settings import TopologySettings
from stokerd.topology.amd_smi import AmdSmi, merged, parse
from stokerd.topology.knowledge import Knowledge, learn, note_report
from stokerd.topology.outcomes import Outcome
from stokerd.topology.read_amd import read_amd
from stokerd.topology.read_hardware import read_tree
from stokerd.topology.sources import Sources
from tests.rig.hardware.files import MemorySysfs
from tests.rig.hardware.machines import mi300
from tests.rig.hardware.tree import files_of
from tests.unit.topology.nodes import THEN

BUSES = [gpu.address for gpu in mi300().gpus]
STATIC = [
    {
        "gpu": number,
        "asic": {"market_name": "AMD Instinct MI300X OAM", "asic_serial": f"0x{number:016X}", "device_id": "0x74a1"},
        "bus": {"bdf": address, "max_pcie_width": 16},
        "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
    }
    for number, address in enumerate(BUSES)
]
LISTED = [{"gpu": number, "bdf": address, "uuid": f"uuid-{number}"} for number, address in enumerate(BUSES)]


@pytest.mark.parametrize("shape", [lambda gpus: gpus, lambda gpus: {"gpu_data": gpus}])
def test_what_it_prints(shape: object) -> None:
    assert callable(shape)
    found = parse(json.dumps(shape(STATIC)).encode(), json.dumps(shape(LISTED)).encode())
    assert found.unread.count == 0
    assert [(gpu.address, gpu.uuid) for gpu in found.gpus] == [(each, f"uuid-{n}") for n, each in enumerate(BUSES)]
    assert {(gpu.model, gpu.memory_bytes) for gpu in found.gpus} == {("AMD Instinct MI300X OAM", 196592 << 20)}


def test_one_gpu_alone_and_what_is_none() -> None:
    assert len(parse(json.dumps(STATIC[0]).encode()).gpus) == 1
    broken = [
        {"gpu": 1, "asic": {"market_name": "N/A"}, "bus": {"bdf": "0000:05:00.0"}, "vram": {"size": "N/A"}},
        7,
        {"gpu": 2},
    ]
    found = parse(json.dumps(broken).encode())
    assert [(gpu.model, gpu.memory_bytes) for gpu in found.gpus] == [("", None)]
    assert found.unread.count == 2
    assert parse(b"amd-smi: no devices").unread.count == 1


_KEYS = st.sampled_from(["gpu_data", "bus", "bdf", "asic", "vram", "size", "value", "unit", "uuid"])
_VALUES = st.none() | st.integers() | st.text(max_size=5)
_DOCUMENTS = st.recursive(
    _VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=15,
)


@given(st.binary(max_size=200), _DOCUMENTS)
def test_whatever_it_prints_nothing_raises(data: bytes, document: object) -> None:
    parse(data, data)
    parse(json.dumps(document).encode(), json.dumps([document]).encode())


def test_the_kernel_and_the_tool_together() -> None:
    files = files_of(mi300())
    known = learn(Knowledge("mi300"), "tree", Outcome("ok", data=read_tree(lambda: MemorySysfs(files))))
    kernel = read_amd(MemorySysfs(files))
    tool = parse(json.dumps(STATIC).encode(), json.dumps(LISTED).encode())
    both = note_report(
        learn(learn(known, "amd", Outcome("ok", data=kernel)), "amd_smi", Outcome("ok", data=tool)), THEN
    )
    assert both.report is not None
    assert {(gpu.source, gpu.model, gpu.serial) for gpu in both.report.gpus} == {
        ("sysfs.kfd", "AMD Instinct MI300X OAM", "")
    }
    assert both.report.gpus[3].uuid == "uuid-3"
    assert both.report.matrix.rows[0].split()[1] == "XGMI"
    alone = note_report(learn(known, "amd_smi", Outcome("ok", data=tool)), THEN)
    assert alone.report is not None
    assert {gpu.source for gpu in alone.report.gpus} == {"amd-smi"}
    assert merged(kernel.gpus, ()) == kernel.gpus


async def test_the_tool_is_run(tmp_path: Path) -> None:
    (tmp_path / "static").write_text(json.dumps(STATIC), encoding="ascii")
    (tmp_path / "list").write_text(json.dumps(LISTED), encoding="ascii")
    tool = tmp_path / "amd-smi"
    tool.write_text(f"#!/bin/sh\ncat {tmp_path}/$1\n", encoding="ascii")
    tool.chmod(0o755)
    outcome = await Sources(TopologySettings(amd_smi=str(tool)), time.monotonic).collect("amd_smi")
    assert isinstance(outcome.data, AmdSmi)
    assert len(outcome.data.gpus) == 8
    absent = await Sources(TopologySettings(amd_smi="no-such-amd-smi"), time.monotonic).collect("amd_smi")
    assert absent == Outcome("absent")
