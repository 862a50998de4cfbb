"""Fake machines as they are observed, and their golden reports.

``python -m tests.unit.topology.nodes`` writes the golden reports anew; read what changed in them before committing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from stoker.fabrics import dumps
from stoker.objects.topology import TopologyChange, TopologyReport
from stokerd.topology import lldpcli, matrix, nvidia_xml, nvml_probe, nvml_values
from stokerd.topology.facts import Contents, Heard, ImageFacts, Observation, PodFacts
from stokerd.topology.health import PortHealth
from stokerd.topology.read_amd import read_amd
from stokerd.topology.read_hardware import read_with
from stokerd.topology.report import build
from stokerd.topology.settling import changes
from tests.rig.hardware import texts
from tests.rig.hardware.files import MemorySysfs
from tests.rig.hardware.machines import FAULTS, MACHINES, Machine, with_fault
from tests.rig.hardware.tree import files_of
from tests.rig.nvml import FakeNvml

GOLDEN = Path(__file__).parents[2] / "data/topology/golden"
THEN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CONTENTS = Contents(
    (
        ImageFacts("registry.example/ai/trainer:2.4", f"sha256:{'ab' * 32}", 21_474_836_480),
        ImageFacts("registry.example/tools/shell:1", f"sha256:{'cd' * 32}", 4_194_304),
    ),
    (PodFacts("training", "trainer-0", "0b0e8b54-6a2f-4f0e-9d2d-3c9a9c7f7a10", "Ready", 3),),
)
_ELSEWHERE = {"domain-unhealthy": "gb200", "flow-control": "h100-roce"}
MACHINE_OF_FAULT = {fault: _ELSEWHERE.get(fault, "h100") for fault in FAULTS}
CASES = [*MACHINES, *(f"{machine}+{fault}" for fault, machine in MACHINE_OF_FAULT.items())]


def machine_of(case: str) -> Machine:
    """Return the machine of a case: ``h100``, ``h100+link-down``."""
    name, _, fault = case.partition("+")
    machine = MACHINES[name]()
    return with_fault(machine, fault) if fault else machine


def observe(machine: Machine, health: Mapping[tuple[str, int], PortHealth] | None = None) -> Observation:
    """Return what is seen of a machine."""
    files = files_of(machine)
    neighbours: dict[str, tuple[Heard, ...]] = {}
    for interface, neighbour in lldpcli.parse(texts.lldpcli(machine)).pairs:
        neighbours[interface] = (*neighbours.get(interface, ()), Heard(neighbour))
    amd = read_amd(MemorySysfs(files))
    on_infiniband = any(nic.layer == "InfiniBand" for nic in machine.nics)
    return Observation(
        node=machine.name,
        hardware=read_with(lambda: MemorySysfs(files)),
        gpus=nvidia_xml.parse(texts.nvidia_smi(machine)).gpus if machine.driver else amd.gpus,
        gpu_source="nvidia-smi" if machine.driver else "sysfs.kfd",
        gpu_links=nvlinks(machine) or amd.links,
        neighbours=neighbours,
        contents=CONTENTS if machine.name == "cpu-01" else None,
        fabric=dumps.parse(texts.ibnetdiscover(machine)) if on_infiniband else None,
        health=health or {},
    )


def nvlinks(machine: Machine) -> dict[tuple[str, str], str]:
    """Return how GPUs are linked, from what ``nvidia-smi topo -m`` prints."""
    if not machine.nvlink:
        return {}
    read = matrix.parse(texts.topo_m(machine))
    addresses = {f"GPU{index}": gpu.address for index, gpu in enumerate(machine.gpus)}
    return {
        (addresses[one], addresses[other]): read.between(one, other)
        for one in read.devices
        for other in read.devices
        if one != other
    }


def by_nvml(machine: Machine, directory: Path) -> Observation:
    """Return what is seen of a machine whose driver is asked by its library."""
    fake = FakeNvml(machine, directory)
    argv = [sys.executable, "-I", nvml_probe.__file__, str(fake.path)]
    told = nvml_values.parse(subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout)
    return msgspec.structs.replace(
        observe(machine),
        gpus=told.gpus,
        gpu_source="nvml",
        gpu_links=nvml_values.nvlinks_between(told.gpus),
        gpus_lost=told.lost,
    )


def report_of(case: str) -> TopologyReport:
    """Return the report of a case."""
    return build(observe(machine_of(case)), THEN)


def shown(report: TopologyReport) -> str:
    """Return a report as it is kept."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def fault_shown(fault: str) -> str:
    """Return what a fault makes of the report of a healthy machine: its findings, and all that differs."""
    machine = MACHINE_OF_FAULT[fault]
    healthy, faulty = report_of(machine), report_of(f"{machine}+{fault}")
    found = {"findings": faulty.findings, "changes": [change_line(each) for each in changes(healthy, faulty)]}
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n"


def change_line(change: TopologyChange) -> str:
    """Return a change as one line."""
    return f"{change.kind} {change.subject} {change.field}: {change.before!r} -> {change.after!r}"


def write_golden() -> None:
    """Write all golden reports anew."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for case in MACHINES:
        (GOLDEN / f"{case}.json").write_text(shown(report_of(case)), encoding="utf-8")
    for fault, machine in MACHINE_OF_FAULT.items():
        (GOLDEN / f"{machine}+{fault}.json").write_text(fault_shown(fault), encoding="utf-8")


if __name__ == "__main__":
    write_golden()
