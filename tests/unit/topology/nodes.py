"""Fake machines as they are observed, and their golden reports.

``python -m tests.unit.topology.nodes`` writes the golden reports anew; read what changed in them before committing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from stoker.fabrics import dumps
from stoker.objects.topology import TopologyReport
from stokerd.topology import lldpcli, matrix, nvidia_xml
from stokerd.topology.facts import Heard, Observation
from stokerd.topology.health import PortHealth
from stokerd.topology.read_amd import read_amd
from stokerd.topology.read_hardware import read_with
from stokerd.topology.report import build
from tests.rig.hardware import texts
from tests.rig.hardware.files import MemorySysfs
from tests.rig.hardware.machines import FAULTS, MACHINES, Machine, with_fault
from tests.rig.hardware.tree import files_of

GOLDEN = Path(__file__).parents[2] / "data/topology/golden"
THEN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
MACHINE_OF_FAULT = {fault: "gb200" if fault == "domain-unhealthy" else "h100" for fault in FAULTS}
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


def report_of(case: str) -> TopologyReport:
    """Return the report of a case."""
    return build(observe(machine_of(case)), THEN)


def shown(report: TopologyReport) -> str:
    """Return a report as it is kept."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def write_golden() -> None:
    """Write the golden reports of all healthy machines anew."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for case in MACHINES:
        (GOLDEN / f"{case}.json").write_text(shown(report_of(case)), encoding="utf-8")


if __name__ == "__main__":
    write_golden()
