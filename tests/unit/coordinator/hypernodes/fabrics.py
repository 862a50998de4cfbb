"""Fabrics of any size: what nodes report of them, and what a central source says of their switches.

Rail-optimised: a rack has one leaf a rail, and each node has one port on each of them. Three tiers: the leaves of a pod
are linked to that pod's spines of their rail; spines of one rail and number in all pods are linked to the same cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from stoker_coordinator.hypernodes.model import INFINIBAND, NodeFacts, Port, Reading, SourceState
from stoker_coordinator.hypernodes.sources.trunks import Trunks

THEN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Plan:
    """How a fabric is built. With one pod there are no cores: two tiers."""

    racks: int = 4
    nodes_per_rack: int = 4
    rails: int = 4
    racks_per_pod: int = 0
    spines_per_rail: int = 2
    cores_per_spine: int = 2
    fabric: str = INFINIBAND

    @property
    def pods(self) -> int:
        return -(-self.racks // self.racks_per_pod) if self.racks_per_pod else 1

    def pod_of(self, rack: int) -> int:
        return rack // self.racks_per_pod if self.racks_per_pod else 0

    @property
    def nodes(self) -> int:
        return self.racks * self.nodes_per_rack


def leaf(rack: int, rail: int) -> str:
    return f"1ea{rack:08x}{rail:05x}"


def spine(pod: int, rail: int, number: int) -> str:
    return f"591{pod:06x}{rail:03x}{number:04x}"


def core(rail: int, number: int, each: int) -> str:
    return f"c0{rail:04x}{number:04x}{each:06x}"


def node_name(number: int) -> str:
    return f"n{number:05d}"


def facts_of(plan: Plan, number: int, *, more: Iterable[Port] = ()) -> NodeFacts:
    """Return what is known of a node by its report."""
    rack = number // plan.nodes_per_rack
    ports = [
        Port(
            nic=f"mlx5_{rail}",
            number=1,
            fabric=plan.fabric,
            switch=leaf(rack, rail),
            switch_name=f"MF0;leaf-{rack:03d}-{rail}:MQM9701/U1",
            switch_port=str(number % plan.nodes_per_rack + 1),
            gbps=400.0,
            state="healthy",
            since=THEN,
            source="report/fabric",
            why="the fabric's dump calls it a switch",
            seen=THEN,
            aliases=(f"a0{number:010x}{rail:04x}",),
        )
        for rail in range(plan.rails)
    ]
    return NodeFacts(node_name(number), ready=True, ready_since=THEN, ports=(*ports, *more))


def all_facts(plan: Plan) -> list[NodeFacts]:
    return [facts_of(plan, number) for number in range(plan.nodes)]


def trunks_of(plan: Plan) -> Reading:
    """Return what a central source says of the links between switches."""
    found = Trunks()
    names = {}
    for rack in range(plan.racks):
        for rail in range(plan.rails):
            names[leaf(rack, rail)] = f"MF0;leaf-{rack:03d}-{rail}:MQM9701/U1"
            for number in range(plan.spines_per_rail):
                found.add(leaf(rack, rail), spine(plan.pod_of(rack), rail, number), 400.0, links=2)
    for pod in range(plan.pods):
        for rail in range(plan.rails):
            for number in range(plan.spines_per_rail):
                here = spine(pod, rail, number)
                names[here] = f"MF0;spine-{pod:02d}-{rail}-{number}:MQM9701/U1"
                for each in range(plan.cores_per_spine if plan.pods > 1 else 0):
                    found.add(here, core(rail, number, each), 400.0)
                    names[core(rail, number, each)] = f"MF0;core-{rail}-{number}-{each:02d}:MQM9701/U1"
    return Reading(source="ufm", fabric=plan.fabric, trunks=found.all(), names=names)


def source_of(reading: Reading) -> SourceState:
    return SourceState(reading.source, reading, read_at=THEN, since=THEN)
