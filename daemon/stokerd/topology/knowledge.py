"""What is known of a node, put together from what its sources bring, one after another. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from stoker.fabrics.fabric import Fabric
from stoker.fabrics.foreign import Unread
from stoker.objects.topology import TopologyReport
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.amd_smi import AmdSmi, merged
from stokerd.topology.classes import UseRule
from stokerd.topology.facts import (
    AmdReport,
    AskedPeers,
    Contents,
    Hardware,
    Heard,
    Observation,
    Ports,
    SourceReport,
    Tree,
    Xid,
)
from stokerd.topology.health import HealthRules, PortHealth, observe
from stokerd.topology.inventory import readings, take
from stokerd.topology.lldpcli import LldpNeighbours
from stokerd.topology.metadata import Placement
from stokerd.topology.outcomes import Outcome
from stokerd.topology.report import build, uses_of

PATIENCE = 2
"""Failures in a row after which what a source has told no longer holds: one alone may be a busy machine."""


class Nvidia(msgspec.Struct, frozen=True):
    """What NVIDIA's driver tells: GPUs, and how they are linked by their PCI addresses.

    ``lost``: of GPUs that it counts and cannot reach, why. ``asked``: it was asked by its library.
    """

    gpus: tuple[Accelerator, ...] = ()
    links: Mapping[tuple[str, str], str] = {}
    unread: Unread = Unread()
    lost: tuple[str, ...] = ()
    asked: bool = False


SOURCES: Mapping[str, tuple[str, ...]] = {
    "tree": ("sysfs.machine", "sysfs.numa", "sysfs.pci"),
    "ports": ("sysfs.net", "sysfs.rdma"),
    "amd": ("sysfs.kfd",),
    "amd_smi": ("amd-smi",),
    "nvml": ("nvml",),
    "nvidia": ("nvidia-smi",),
    "kernel": ("kernel-log",),
    "lldp": ("lldp",),
    "fabric": ("fabric",),
    "smp": ("smpquery",),
    "contents": ("runtime",),
    "placement": ("placement",),
    "netlink": ("netlink",),
}
"""What collectors are called in the report."""


class Knowledge(msgspec.Struct, frozen=True):
    """All that is known. What each collector brings has a field; it is empty where the collector brought nothing."""

    node: str
    tree: Tree = Tree()
    ports: Ports = Ports()
    amd: AmdReport = AmdReport()
    amd_smi: AmdSmi = AmdSmi()
    nvml: Nvidia = Nvidia()
    nvidia: Nvidia = Nvidia()
    kernel: tuple[Xid, ...] = ()
    lldp: LldpNeighbours = LldpNeighbours()
    fabric: Fabric | None = None
    smp: AskedPeers = AskedPeers()
    contents: Contents | None = None
    placement: Placement = Placement()
    netlink: None = None
    sources: Mapping[str, SourceReport] = {}
    failures: Mapping[str, int] = {}
    health: Mapping[tuple[str, int], PortHealth] = {}
    patience: float = 0.0
    """Seconds that a link has to be up before a switch that does not show itself is missed."""
    young: frozenset[tuple[str, int]] = frozenset()
    """Ports whose link is not up for so long yet."""
    serials: bool = False
    labels: Mapping[str, str] = {}
    rules: tuple[UseRule, ...] = ()
    report: TopologyReport | None = None


def learn(known: Knowledge, collector: str, outcome: Outcome) -> Knowledge:
    """Return what is known after a collector's reading."""
    names = SOURCES[collector]
    failures = dict(known.failures)
    failures[collector] = failures.get(collector, 0) + 1 if outcome.state == "failed" else 0
    before = known.sources.get(names[0])
    if outcome.state == "failed" and failures[collector] < PATIENCE and before is not None and before.state == "ok":
        return msgspec.structs.replace(known, failures=failures)
    data = outcome.data if outcome.state == "ok" else getattr(_NOTHING, collector)
    sources = {name: source for name, source in known.sources.items() if name not in names}
    if outcome.state != "absent" or outcome.reason:
        for name in names:
            sources[name] = SourceReport(name, outcome.state, outcome.reason, _unread(data, name))
    return msgspec.structs.replace(known, failures=failures, sources=sources, **{collector: data})


_NOTHING = Knowledge("")


def _unread(data: Any, name: str) -> Unread:
    lost = getattr(data, "unread", Unread())
    return lost if isinstance(lost, Unread) else lost.get(name, Unread())


def note_health(known: Knowledge, now: float, rules: HealthRules | None = None) -> Knowledge:
    """Return what is known of the ports' health after they were read at *now*, by a clock that only goes forward."""
    inventory = take(observation(known), uses_of(known.report))
    health = {
        key: observe(known.health.get(key, PortHealth()), reading, now, rules)
        for key, reading in readings(inventory).items()
    }
    young = frozenset(
        key for key, port in health.items() if port.up_since is not None and now - port.up_since < known.patience
    )
    return msgspec.structs.replace(known, health=health, young=young)


def note_report(known: Knowledge, now: datetime) -> Knowledge:
    """Return what is known with the report of it; the report itself is the same object if nothing in it changed."""
    return msgspec.structs.replace(known, report=build(observation(known), now, known.report))


def observation(known: Knowledge) -> Observation:
    """Return all sources together."""
    neighbours: dict[str, tuple[Heard, ...]] = {}
    for interface, neighbour in known.lldp.pairs:
        neighbours[interface] = (*neighbours.get(interface, ()), Heard(neighbour))
    tree, ports = known.tree, known.ports
    nvidia = known.nvml if known.nvml.gpus or known.nvml.lost else known.nvidia
    return Observation(
        node=known.node,
        hardware=Hardware(
            tree.pci,
            ports.rdma,
            ports.nets,
            tree.numa,
            tree.cpu,
            tree.memory,
            tree.disks,
            {**ports.unread, **tree.unread},
        ),
        gpus=nvidia.gpus or merged(known.amd.gpus, known.amd_smi.gpus),
        gpu_source=_gpu_source(known, nvidia),
        gpu_links=nvidia.links or known.amd.links,
        gpus_lost=nvidia.lost,
        neighbours=neighbours,
        fabric=known.fabric,
        asked=known.smp.peers,
        xids=known.kernel,
        contents=known.contents,
        placement=known.placement,
        serials=known.serials,
        labels=known.labels,
        rules=known.rules,
        health=known.health,
        young=known.young,
        sources=tuple(known.sources.values()),
    )


def _gpu_source(known: Knowledge, nvidia: Nvidia) -> str:
    if nvidia.gpus:
        return "nvml" if nvidia.asked else "nvidia-smi"
    return "sysfs.kfd" if known.amd.gpus or not known.amd_smi.gpus else "amd-smi"


def essence(known: Knowledge) -> tuple[object, ...]:
    """Return what a report depends on: as long as it is equal, there is no need for a new one.

    Counters are left out, and of health all that is not shown.
    """
    ports = known.ports
    rdma = tuple(
        (device.name, device.address, device.guid, device.firmware, device.model,
         tuple(msgspec.structs.replace(port, counters={}) for port in device.ports))
        for device in ports.rdma
    )  # fmt: skip
    nets = tuple(msgspec.structs.replace(net, counters={}, losses=None) for net in ports.nets)
    health = {key: (each.state, each.reasons, each.flaps) for key, each in known.health.items()}
    return (
        known.tree, rdma, nets, ports.unread, known.amd, known.amd_smi, known.nvml, known.nvidia, known.kernel,
        known.lldp, known.fabric, known.smp, known.contents, known.placement, known.sources, health, known.labels,
        known.rules, known.serials, known.young,
    )  # fmt: skip
