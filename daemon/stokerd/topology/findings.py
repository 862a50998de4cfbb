"""What is not as it should be, named: for `stoker doctor`, and for whoever places jobs. Pure; reads a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from stoker.objects.topology import Nic, NicPort, Severity, TopologyFinding, TopologyReport
from stokerd.topology.distances import NEAR
from stokerd.topology.facts import natural
from stokerd.topology.gpu_findings import gpu_findings

_ORDER = {"error": 0, "warning": 1, "info": 2}


def findings(
    report: TopologyReport, lost: Sequence[str] = (), young: Collection[tuple[str, int]] = ()
) -> list[TopologyFinding]:
    """Return the faults that a report shows, the worst first, in a stable order.

    *lost*: what the driver says of GPUs that it counts and cannot reach; *young*: ports whose link came up just now.
    """
    found = [
        *gpu_findings(report.gpus, lost),
        *_pcie(report),
        *_affinity(report),
        *_links(report.nics),
        *_rails(report.nics),
        *_neighbours(report.nics, young),
        *_flow_control(report.nics),
        *_domains(report),
        *_sources(report),
    ]
    return sorted(found, key=lambda each: (_ORDER[each.severity], each.code, [natural(name) for name in each.subjects]))


def _pcie(report: TopologyReport) -> Iterator[TopologyFinding]:
    devices = [(gpu.name, gpu.pcie) for gpu in report.gpus]
    devices += [(nic.name, nic.pcie) for nic in report.nics if nic.pcie is not None and not nic.virtual_of]
    redirected = []
    for name, place in devices:
        if place.width and place.width_max and place.width < place.width_max:
            yield _narrow(name, f"its PCIe link has {place.width} of {place.width_max} lanes")
        elif place.narrowest:
            yield _narrow(name, f"the bridge above it, {place.narrowest} lanes")
        if place.acs_redirects:
            redirected.append(name)
    if redirected and report.gpus:
        yield TopologyFinding(
            code="AcsRedirects",
            severity="info",
            subjects=redirected,
            message="access control sends traffic between devices up to the CPU, which slows GPUDirect down",
            remedy="on a node without virtual machines, switch ACS off on the bridges above them",
        )


def _narrow(name: str, message: str) -> TopologyFinding:
    return TopologyFinding(
        code="PcieLinkNarrow",
        severity="warning",
        subjects=[name],
        message=message,
        remedy="reseat the card or its riser; check the slot",
    )


def _affinity(report: TopologyReport) -> Iterator[TopologyFinding]:
    """A GPU without a NIC behind its switch, while its siblings have one, and the NIC that should be there."""
    near = [gpu for gpu in report.gpus if gpu.nic_distance in NEAR]
    far = [gpu for gpu in report.gpus if gpu.nic_distance not in NEAR]
    if not near or len(near) <= len(far):
        return
    speed = max((port.gbps for nic in report.nics if nic.use == "compute" for port in nic.ports), default=0.0)
    strays = [
        nic.name
        for nic in report.nics
        if nic.rdma and nic.gpu_distance not in NEAR and any(port.gbps >= speed > 0 for port in nic.ports)
    ]
    numa_of = {nic.name: nic.pcie.numa for nic in report.nics if nic.pcie is not None}
    for gpu in far:
        own = gpu.pcie.numa
        wrong = [name for name in strays if own is not None and numa_of.get(name, own) not in {own, None}]
        where = f"is on NUMA node {numa_of[wrong[0]]}, not {own}" if wrong else "is elsewhere"
        yield TopologyFinding(
            code="NicMisplaced",
            severity="warning",
            subjects=[gpu.name, *strays],
            message=f"{gpu.name} has no NIC behind its PCIe switch, as its siblings have"
            + (f"; {', '.join(strays)} would be fast enough, but {where}" if strays else ""),
            remedy="put the NIC into the slot of that GPU's switch; check that all NICs are found",
        )


def _links(nics: Sequence[Nic]) -> Iterator[TopologyFinding]:
    up = {_adapter(nic) for nic, port in _ports(nics) if port.health.state in {"healthy", "degraded"}}
    for nic, port in _ports(nics):
        health = port.health
        if health.state == "down" and nic.use in {"compute", "storage"}:
            yield _down(nic, port, another_is_up=_adapter(nic) in up)
        elif health.state == "degraded" and nic.use != "unknown":
            yield TopologyFinding(
                code="LinkFlapping" if "flapping" in health.reasons else "LinkDegraded",
                severity="warning",
                subjects=[nic.name],
                message=f"port {port.number} of {nic.name}: {', '.join(health.reasons)}",
                remedy="check cable and transceiver; clean the fibres",
            )


def _adapter(nic: Nic) -> str:
    """Return which card a NIC is on: its ports may be functions of one device."""
    return nic.pcie.address.rpartition(".")[0] if nic.pcie is not None else nic.name


def _down(nic: Nic, port: NicPort, *, another_is_up: bool) -> TopologyFinding:
    severity: Severity = "error" if nic.use == "compute" else "warning"
    message = f"port {port.number} of {nic.name} ({nic.use}) is down: {port.physical or port.state}"
    if another_is_up:
        # Not every port of an adapter has a cable; two that are bonded should.
        severity = "warning" if port.bond else "info"
        message += "; another port of this adapter is up"
    return TopologyFinding(
        code="LinkDown",
        severity=severity,
        subjects=[nic.name],
        message=message,
        remedy="check cable, transceiver and the switch's port",
    )


def _rails(nics: Sequence[Nic]) -> Iterator[TopologyFinding]:
    """Rails have a switch each, as far as they have one at all; two that share one are plugged crosswise."""
    switch_of: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    rail_of = {nic.name: nic.rail for nic in nics if nic.use == "compute" and nic.rail is not None}
    for nic, port in _ports(nics):
        if nic.name in rail_of:
            for neighbour in port.neighbours:
                if neighbour.kind == "switch":
                    switch_of.setdefault(neighbour.chassis, set()).add(nic.name)
                    names[neighbour.chassis] = neighbour.name or neighbour.chassis
    alone = sum(len({rail_of[name] for name in members}) == 1 for members in switch_of.values())
    for chassis, members in sorted(switch_of.items()):
        rails = Counter(rail_of[name] for name in members)
        subjects = sorted(members, key=natural)
        if len(rails) > 1 and alone > len(switch_of) / 2:
            yield TopologyFinding(
                code="RailsCrossed",
                severity="warning",
                subjects=subjects,
                message=f"NICs of rails {', '.join(map(str, sorted(rails)))} hang on one switch, {names[chassis]}, "
                "while other rails have a switch each",
                remedy="compare the cables with the plan of the rails",
            )
        twice = [rail for rail, count in rails.items() if count > 1]
        if twice and len(rails) == 1:
            yield TopologyFinding(
                code="RailWithoutRedundancy",
                severity="info",
                subjects=subjects,
                message=f"two NICs of rail {twice[0]} hang on one switch, {names[chassis]}: it takes both with it",
                remedy="plug them into two switches, if the network is built for that",
            )


def _neighbours(nics: Sequence[Nic], young: Collection[tuple[str, int]]) -> Iterator[TopologyFinding]:
    """Who has no neighbour while its siblings have one, its link being up for a while."""
    for use in ("compute", "storage", "management"):
        ports = [(nic, port) for nic, port in _ports(nics) if nic.use == use and port.health.state != "down"]
        with_one = [port for _, port in ports if any(each.kind == "switch" for each in port.neighbours)]
        if len(with_one) * 2 <= len(ports):
            continue
        for nic, port in ports:
            if (nic.name, port.number) not in young and not any(each.kind == "switch" for each in port.neighbours):
                others = ", ".join(sorted({each.kind for each in port.neighbours}))
                yield TopologyFinding(
                    code="NeighbourMissing",
                    severity="warning",
                    subjects=[nic.name],
                    message=f"port {port.number} of {nic.name} shows no switch"
                    + (f" (only: {others})" if others else "")
                    + f", while {len(with_one)} of {len(ports)} {use} ports do",
                    remedy="is LLDP on at that switch's port, and is the cable where it should be?",
                )


def _flow_control(nics: Sequence[Nic]) -> Iterator[TopologyFinding]:
    """Ports with RDMA over Ethernet whose settings are not those of most ports for the same use."""
    for name, words in (("pfc", "flow control (PFC)"), ("ecn", "congestion control (ECN)")):
        for use in ("compute", "storage"):
            told = [
                (nic, port, tuple(value))
                for nic, port in _ports(nics)
                if nic.rdma and nic.use == use and (value := getattr(port, name)) is not None
            ]
            if len(told) < 3:
                continue
            (usual, count), *_ = Counter(value for _, _, value in told).most_common()
            for nic, port, value in told:
                if value != usual and count > len(told) / 2:
                    yield TopologyFinding(
                        code="FlowControlDiffers",
                        severity="warning",
                        subjects=[nic.name],
                        message=f"port {port.number} of {nic.name} has {words} {_on(value)}, its siblings {_on(usual)}",
                        remedy="set all ports of one network alike, as their switches are",
                    )


def _on(priorities: Sequence[int]) -> str:
    return f"on for {', '.join(map(str, priorities))}" if priorities else "off"


def _domains(report: TopologyReport) -> Iterator[TopologyFinding]:
    real = [domain for domain in report.domains if not domain.refused]
    refused = [domain for domain in report.domains if domain.refused]
    if len(real) > 1 or (real and refused):
        yield TopologyFinding(
            code="NvlinkDomainsDiffer",
            severity="error",
            subjects=[name for domain in report.domains for name in domain.gpus],
            message="this node's GPUs are not of one NVLink domain: "
            + "; ".join(f"{', '.join(domain.gpus)}: {domain.name or domain.refused}" for domain in report.domains),
            remedy="look at the fabric manager, and at NVLink's state on this node",
        )
    elif refused and any("Healthy" in domain.refused or "status" in domain.refused for domain in refused):
        yield TopologyFinding(
            code="NvlinkDomainRefused",
            severity="warning",
            subjects=[name for domain in refused for name in domain.gpus],
            message=refused[0].refused,
            remedy="look at the fabric manager, and at NVLink's state on this node",
        )


def _sources(report: TopologyReport) -> Iterator[TopologyFinding]:
    for source in report.sources:
        if source.state == "failed":
            yield TopologyFinding(
                code="SourceFailed",
                severity="warning",
                subjects=[source.name],
                message=source.reason or "it failed",
            )
        if source.unread:
            yield TopologyFinding(
                code="NotUnderstood",
                severity="info",
                subjects=[source.name],
                message=f"{source.unread} pieces were not understood"
                + "".join(f"; {text}" for text in source.samples[:1]),
            )


def _ports(nics: Sequence[Nic]) -> Iterator[tuple[Nic, NicPort]]:
    return ((nic, port) for nic in nics for port in nic.ports)
