"""NVIDIA's library: a real one in C that answers for machines that do not exist, asked in a process of its own."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.objects.topology import NvlinkPeer
from stokerd.settings import TopologySettings
from stokerd.topology import nvml_values
from stokerd.topology.accelerators import Accelerator, FabricState, NvLinks, domains
from stokerd.topology.outcomes import Outcome
from stokerd.topology.report import build
from stokerd.topology.sources import Sources
from tests.rig.hardware import texts
from tests.rig.hardware.machines import MACHINES, Machine, gb200, h100, with_fault
from tests.rig.nvml import FakeNvml
from tests.unit.topology.nodes import THEN, by_nvml, observe, report_of

QUICK = 20.0


def sources_for(fake: FakeNvml, **changes: object) -> Sources:
    quiet = TopologySettings(nvidia_library=str(fake.path), nvidia_smi="", smpquery="", lldpcli="", read_timeout=QUICK)
    return Sources(replace(quiet, **changes), time.monotonic)  # type: ignore[arg-type]


async def ask(fake: FakeNvml, **changes: object) -> Outcome:
    return await sources_for(fake, **changes).collect("nvml")


@pytest.mark.parametrize("case", ["h100", "gb200"])
def test_the_library_tells_what_nvidia_smi_tells_and_more(case: str, tmp_path: Path) -> None:
    by_tool, by_library = report_of(case), build(by_nvml(MACHINES[case](), tmp_path), THEN)
    assert {gpu.source for gpu in by_library.gpus} == {"nvml"}
    more = [
        msgspec.structs.replace(gpu, source="nvidia-smi", clock_max_mhz=None, nvlinks=[]) for gpu in by_library.gpus
    ]
    assert more == by_tool.gpus
    assert by_library.matrix == by_tool.matrix
    assert [(found.gpus, found.name, found.refused) for found in by_library.domains] == [
        (found.gpus, found.name, found.refused) for found in by_tool.domains
    ]
    assert by_library.findings == []
    assert len(msgspec.json.encode(by_library)) <= 64 << 10


def test_nvlinks_by_their_ends(tmp_path: Path) -> None:
    report = build(by_nvml(h100(), tmp_path), THEN)
    assert report.gpus[3].nvlinks == [
        NvlinkPeer(kind="switch", peer=f"0000:0{bus}:00.0", links=links)
        for bus, links in ((5, 4), (6, 5), (7, 5), (8, 4))
    ]
    assert report.gpus[3].clock_max_mhz == 1980
    direct = tuple(
        Accelerator(f"0000:0{n}:00.0", nvlinks=(NvLinks("gpu", f"0000:0{3 - n}:00.0", 4), NvLinks("other", "", 2)))
        for n in (1, 2)
    )
    assert set(nvml_values.nvlinks_between(direct).values()) == {"NV4"}


@pytest.mark.parametrize(
    ("fault", "code", "subjects"),
    [
        ("gpu-lost", "GpuLost", ["GPU6"]),
        ("nvlinks-down", "NvlinksDown", ["GPU4"]),
        ("gpu-hot", "GpuSlowedDown", ["GPU5"]),
        ("gpu-fault", "GpuFault", ["GPU0"]),
    ],
)
def test_faults_that_the_library_tells(fault: str, code: str, subjects: list[str], tmp_path: Path) -> None:
    findings = build(by_nvml(with_fault(h100(), fault), tmp_path), THEN).findings
    assert [(found.code, found.subjects) for found in findings] == [(code, subjects)]


def test_a_gb200_that_is_not_healthy_is_in_no_domain(tmp_path: Path) -> None:
    report = build(by_nvml(with_fault(gb200(), "domain-unhealthy"), tmp_path), THEN)
    assert [gpu.domain == "" for gpu in report.gpus] == [False, True, False, False]
    assert [found.code for found in report.findings] == ["NvlinkDomainsDiffer"]


async def test_a_gpu_that_vanishes_takes_no_other_with_it(tmp_path: Path) -> None:
    fake = FakeNvml(h100(), tmp_path)
    sources = sources_for(fake)
    assert len((await sources.collect("nvml")).data.gpus) == 8
    fake.answer(h100(), "2.lost 1")
    outcome = await sources.collect("nvml")
    assert (outcome.state, len(outcome.data.gpus), outcome.data.lost) == ("ok", 7, ("GPU 2: GPU is lost",))


async def test_a_driver_that_hangs_is_a_source_that_failed(tmp_path: Path) -> None:
    fake = FakeNvml(h100(), tmp_path)
    sources = sources_for(fake, read_timeout=1.0)
    for call in ("nvmlInitWithFlags", "nvmlDeviceGetNvLinkState"):
        fake.answer(h100(), f"hang {call}")
        assert await sources.collect("nvml") == Outcome("failed", "no answer within 1 s")
    fake.answer(h100())
    sources.apply(replace(sources._settings, read_timeout=QUICK))
    assert len((await sources.collect("nvml")).data.gpus) == 8


async def test_why_a_driver_cannot_be_asked(tmp_path: Path) -> None:
    fake = FakeNvml(h100(), tmp_path / "good")
    fake.answer(h100(), "fail nvmlInitWithFlags 9")
    assert await ask(fake) == Outcome("absent", "the library is there, but no driver is loaded")
    fake.answer(h100(), "fail nvmlInitWithFlags 18")
    assert (await ask(fake)).reason == "RM has detected an NVML/RM version mismatch."
    fake.answer(h100(), "fail nvmlDeviceGetCount_v2 999")
    assert (await ask(fake)).state == "failed"
    (tmp_path / "text.so").write_text("no library", encoding="ascii")
    broken = await ask(fake, nvidia_library=str(tmp_path / "text.so"))
    assert broken.state == "failed"
    assert "text.so: file too short" in broken.reason
    assert await ask(fake, nvidia_library="libnvidia-none.so.1") == Outcome(
        "absent", "libnvidia-none.so.1 is not installed"
    )
    assert await ask(fake, nvidia_library="") == Outcome("absent", "")


async def test_what_a_driver_does_not_support_is_unknown(tmp_path: Path) -> None:
    fake = FakeNvml(h100(), tmp_path)
    for call in ("name", "memory", "uncorrected", "recovery", "fabric", "numa", "slowed", "link0", "clock"):
        fake.answer(h100(), without=call)
        outcome = await ask(fake)
        assert (outcome.state, len(outcome.data.gpus), outcome.data.unread.count) == ("ok", 8, 0), call
    fake.answer(h100(), without="clock")
    assert (await ask(fake)).data.gpus[0].clock_mhz is None


async def test_serial_numbers_are_asked_for_only_where_they_are_wanted(tmp_path: Path) -> None:
    fake = FakeNvml(h100(), tmp_path)
    assert {gpu.serial for gpu in (await ask(fake)).data.gpus} == {""}
    assert {gpu.serial for gpu in (await ask(fake, serial_numbers="told")).data.gpus} == {"1650000000000"}


@pytest.mark.parametrize("told", [False, True])
def test_serial_numbers_are_told_only_where_they_are_wanted(told: bool) -> None:
    report = build(msgspec.structs.replace(observe(h100()), serials=told), THEN)
    assert {gpu.serial for gpu in report.gpus} == {"1650000000000" if told else ""}
    assert ("1650000000000" in msgspec.json.encode(report).decode()) is told


async def test_either_the_library_or_the_tool_is_asked(tmp_path: Path) -> None:
    machine = h100()
    fake = FakeNvml(machine, tmp_path)
    (tmp_path / "xml").write_bytes(texts.nvidia_smi(machine))
    smi = tmp_path / "smi"
    smi.write_text(f"#!/bin/sh\ncat {tmp_path}/xml\n", encoding="ascii")
    smi.chmod(0o755)
    sources = sources_for(fake, nvidia_smi=str(smi))
    assert await sources.collect("nvidia") == Outcome("absent")
    without = sources_for(fake, nvidia_smi=str(smi), nvidia_library=str(tmp_path / "none"))
    assert len((await without.collect("nvidia")).data.gpus) == 8
    from_file = sources_for(fake, nvidia_file=str(tmp_path / "xml"))
    assert (await from_file.collect("nvml"), len((await from_file.collect("nvidia")).data.gpus)) == (
        Outcome("absent"),
        8,
    )


# ---------------------------------------------------------------------------------------------- what it prints


@pytest.mark.parametrize(
    ("values", "health", "domain"),
    [
        ({"summary": 1}, "Healthy", True),
        ({"summary": 2}, "Unhealthy", False),
        ({"summary": 3}, "Limited Capacity", False),
        ({"summary": 0}, "", False),
        ({"summary": None, "mask": 0b0001_10_10_10_10}, "Healthy", True),
        ({"summary": None, "mask": 0b0001_10_10_10_01}, "Unhealthy", False),
        ({"summary": None, "mask": 0b0101_10_10_10_10}, "Unhealthy", False),
        ({"summary": 1, "status": 3}, "Healthy", False),
        ({"summary": 1, "state": 2}, "Healthy", False),
        ({"summary": 1, "cluster": "0" * 32}, "Healthy", False),
    ],
)
def test_what_makes_a_domain(values: dict[str, object], health: str, domain: bool) -> None:
    fabric = {"state": 3, "status": 0, "clique": 4, "cluster": "7e3a9c512f0d4b6e9a510c1d2e3f4a5b", "mask": 0}
    (gpu,) = nvml_values.parse(
        msgspec.json.encode({"gpus": [{"bus": "00000000:3B:00.0", "fabric": fabric | values}]})
    ).gpus
    assert gpu.fabric.health == health
    assert bool(domains([gpu])[0].name) is domain


def test_drivers_without_a_fabric_say_nothing_of_one() -> None:
    data = {"gpus": [{"bus": "0000:3b:00.0", "fabric": {"state": 0}}, {"bus": "0000:3c:00.0", "fabric": None}]}
    assert {gpu.fabric for gpu in nvml_values.parse(msgspec.json.encode(data)).gpus} == {FabricState()}


_VALUES = (
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.text(max_size=8) | st.lists(st.integers(), max_size=5)
)
_KEYS = st.sampled_from(["bus", "fabric", "links", "name", "slowed", "recovery", "mig", "memory", "numa", "width"])
_INNER = st.dictionaries(st.sampled_from(["state", "status", "clique", "cluster", "mask", "summary"]), _VALUES)
_GPU = st.dictionaries(_KEYS, _VALUES | _INNER | st.lists(st.tuples(_VALUES, _VALUES, _VALUES, _VALUES)), max_size=8)


@given(st.binary(max_size=100), _GPU, st.lists(_VALUES, max_size=3))
@settings(max_examples=100)
def test_whatever_the_probe_prints_there_is_a_report(data: bytes, gpu: dict[str, object], other: list[object]) -> None:
    nvml_values.parse(data)
    at_home = gpu | {"bus": "00000000:3B:00.0"}
    found = nvml_values.parse(json.dumps({"gpus": [gpu, at_home, *other], "lost": other, "driver": other}).encode())
    assert (found.problem, [each.address for each in found.gpus]) == ("", ["0000:3b:00.0"])


def test_a_gpu_that_is_told_twice_or_without_a_place_is_counted() -> None:
    data = {"gpus": [{"bus": "0000:3b:00.0"}, {"bus": "0000:3b:00.0"}, {"bus": "?"}, 7]}
    found = nvml_values.parse(msgspec.json.encode(data))
    assert (len(found.gpus), found.unread.count) == (1, 3)


def test_the_machine_without_nvidia_has_nothing_to_ask() -> None:
    machine: Machine = MACHINES["mi300"]()
    assert {gpu.source for gpu in build(observe(machine), THEN).gpus} == {"sysfs.kfd"}
