"""From a node's report to what is known of it. Pure.

What a report no longer tells of a link keeps its place: a cable that is pulled takes the neighbour's word with it, and
the node still belongs where it was. It moves when its port is seen on another switch, and goes when the adapter goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from stoker.fabrics.foreign import plain
from stoker.objects.topology import Nic, NicPort, NvlinkDomain, PortNeighbour, TopologyLoad, TopologyReport
from stoker_coordinator.hypernodes.model import ETHERNET, INFINIBAND, NVLINK, ROCE, NodeFacts, Port, PortUse, Problem

MOST_PORTS, MOST_PROBLEMS = 64, 16
_LONGEST_ID = 64
_ORDER = {"switch": 0, "unknown": 1}  # a switch that does not say that it is one is better than none


def observe(report: TopologyReport, before: NodeFacts | None = None) -> NodeFacts:
    """Return what is known of a node after its *report*; readiness and labels of the node stay as they were."""
    known = {(port.nic, port.number): port for port in before.ports} if before is not None else {}
    ports: list[Port] = []
    unplaced = 0
    for nic in report.nics:
        fabric = fabric_of(nic)
        if not fabric:
            unplaced += 1
            continue
        for port in nic.ports:
            before_it = known.get((plain(nic.name), port.number))
            ports.append(_port(nic, port, fabric, before_it, report.since))
    ports.extend(_nvlink(report.domains))
    facts = before or NodeFacts(plain(report.node))
    return msgspec.structs.replace(
        facts,
        ports=tuple(ports[:MOST_PORTS]),
        problems=tuple(_problems(report))[:MOST_PROBLEMS],
        unplaced=unplaced + max(0, len(ports) - MOST_PORTS),
    )


def with_state(
    facts: NodeFacts, *, ready: bool, since: datetime, reason: str = "", labels: Mapping[str, str] | None = None
) -> NodeFacts:
    """Return *facts* with whether the node is ready; the time stays when that is as it was."""
    same = facts.ready is ready and facts.ready_since is not None
    return msgspec.structs.replace(
        facts,
        ready=ready,
        ready_since=facts.ready_since if same else since,
        ready_reason="" if ready else plain(reason) or "NotReady",
        labels=facts.labels if labels is None else dict(labels),
    )


def uses(load: TopologyLoad) -> tuple[PortUse, ...]:
    """Return what goes through a node's ports. Only what is not nothing."""
    return tuple(
        PortUse(plain(port.nic), port.port, _within(port.sent_gbps), _within(port.received_gbps), congestion)
        for port in load.ports[:MOST_PORTS]
        for congestion in [min(1.0, max(0.0, port.congestion))]
        if congestion or port.sent_gbps or port.received_gbps
    )


def _within(gbps: float | None) -> float:
    return min(max(gbps or 0.0, 0.0), 1e6)


def fabric_of(nic: Nic) -> str:
    """Return which fabric an interface is on: by its link layer and by what it is for; empty where nobody knows."""
    if nic.use == "unknown" or not nic.ports or nic.virtual_of:
        return ""
    layer = INFINIBAND if nic.ports[0].layer == "infiniband" else ROCE if nic.rdma else ETHERNET
    return layer if nic.use == "compute" else f"{layer}-{nic.use}"


def _port(nic: Nic, port: NicPort, fabric: str, before: Port | None, since: datetime) -> Port:
    health = port.health
    found = Port(
        nic=plain(nic.name),
        number=port.number,
        fabric=fabric,
        gbps=_within(port.gbps),
        state=health.state,
        reasons=tuple(plain(reason) for reason in health.reasons[:4]),
        since=health.since,
        aliases=tuple(dict.fromkeys(alias for alias in (port.guid, nic.guid, port.netdev, port.mac) if alias)),
    )
    neighbour = _switch(port.neighbours)
    if neighbour is not None:
        return msgspec.structs.replace(
            found,
            switch=_identity(neighbour),
            switch_name=plain(neighbour.name),
            switch_port=plain(neighbour.port),
            gbps=found.gbps or (before.gbps if before is not None else 0.0),
            source=f"report/{plain(neighbour.source)}",
            why=plain(neighbour.reason),
            seen=neighbour.since,
        )
    if before is None or before.fabric != fabric:
        return found
    return msgspec.structs.replace(
        found,
        switch=before.switch,
        switch_name=before.switch_name,
        switch_port=before.switch_port,
        gbps=found.gbps or before.gbps,
        source=before.source,
        why=before.why,
        seen=before.seen,
        lost=(before.lost or since) if before.switch else None,
    )


def _switch(neighbours: Sequence[PortNeighbour]) -> PortNeighbour | None:
    possible = [each for each in neighbours if each.kind in _ORDER and each.chassis]
    return min(possible, key=lambda each: (_ORDER[each.kind], each.chassis), default=None)


def _identity(neighbour: PortNeighbour) -> str:
    return plain(neighbour.chassis, _LONGEST_ID).lower()


def _nvlink(domains: Sequence[NvlinkDomain]) -> Iterator[Port]:
    for domain in domains:
        if domain.name and not domain.refused:
            name = plain(domain.name, _LONGEST_ID).lower()
            yield Port(
                nic="nvlink",
                number=0,
                fabric=NVLINK,
                switch=name,
                switch_name=name,
                state="healthy",
                since=domain.since,
                source=f"report/{plain(domain.source)}",
                why=f"{len(domain.gpus)} GPUs are in this NVLink domain",
                seen=domain.since,
            )


def _problems(report: TopologyReport) -> Iterator[Problem]:
    since = {gpu.name: gpu.since for gpu in report.gpus}
    for finding in report.findings:
        if finding.severity == "error" and finding.code != "LinkDown":
            times = [since[name] for name in finding.subjects if name in since]
            message = f"{', '.join(plain(name) for name in finding.subjects[:8])}: {plain(finding.message)}"
            yield Problem(plain(finding.code), message, max(times, default=report.since))
