"""How a domain is doing: of its own nodes, and of the domains beneath it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from stoker_coordinator.hypernodes.model import (
    Condition,
    HyperNode,
    Member,
    NodeFacts,
    Port,
    PortUse,
    Stamp,
    SwitchStatus,
    UnhealthyLink,
    UnhealthyNode,
)

MOST_LISTED = 64
"""Unhealthy nodes and links that a domain lists; their numbers are of all."""
CONGESTED_FROM, CONGESTED_UNTIL = 0.3, 0.1
_MANY_CONGESTED = 0.25
_NO_USE = PortUse("", 0)


class Frame(Struct, frozen=True):
    """A domain without its health: what it is, and where it stands."""

    name: str
    fabric: str
    tier: int
    parent: str
    children: tuple[str, ...]
    switches: tuple[str, ...]
    uplinks: int = 0
    uplink_gbps: float = 0.0
    uplinks_down: int = 0
    root: bool = False
    parts: int = 1
    """Of the fabric, at its root: into how many it falls apart."""


class Still(Struct, frozen=True):
    """What is shown of a domain and stays as long as its frame does."""

    members: tuple[Member, ...]
    switches: tuple[SwitchStatus, ...]
    mark: bytes


def still(frame: Frame, called: Mapping[str, str]) -> Still:
    """Return what stays of a domain; its switches as they are without links to nodes."""
    what = msgspec.msgpack.encode((frame.tier, frame.parent, frame.children, frame.switches, frame.uplinks_down))
    return Still(
        members=tuple(Member(type="HyperNode", name=each) for each in frame.children),
        switches=tuple(SwitchStatus(id=switch, name=called.get(switch, "")) for switch in frame.switches),
        mark=hashlib.blake2b(what, digest_size=12).digest(),
    )


class Tally:
    """What is summed over nodes and domains."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.node_count = self.ready = self.links = self.congested = self.bad_nodes = self.bad_links = 0
        self.capacity = self.available = self.sent = self.received = self.pressure = 0.0
        self.unhealthy_nodes: list[UnhealthyNode] = []
        self.unhealthy_links: list[UnhealthyLink] = []
        self.on_switch: dict[str, list[int]] = {}
        self.called: dict[str, str] = {}
        self.own = (0, 0)
        """Unhealthy nodes and links that are of no domain beneath; these come first."""
        self.changed: datetime | None = None

    def node(self, facts: NodeFacts, ports: Sequence[Port], use: Mapping[tuple[str, int], PortUse]) -> None:
        """Add a node, with its ports in this fabric."""
        self.nodes.append(facts.name)
        self.node_count += 1
        down = total = 0
        capacity = lost = 0.0
        on_switch, called = self.on_switch, self.called
        for port in ports:
            state, switch = port.state, port.switch
            if not port.nic or (not switch and state in _UNUSED):
                continue
            total += 1
            capacity += port.gbps
            counts = on_switch.get(switch)
            if counts is None:
                counts = on_switch[switch] = [0, 0]
            counts[0] += 1
            if port.switch_name and switch not in called:
                called[switch] = port.switch_name
            if state == "down":
                down += 1
                counts[1] += 1
                lost += port.gbps
            if state in _BAD:
                self._bad_link(facts.name, port)
            if use:
                self._use(port, use.get((port.nic, port.number), _NO_USE))
        self.links += total
        self.capacity += capacity
        self.available += capacity - lost
        cut_off = [port.since for port in ports if port.since is not None] if total and down == total else None
        self._fitness(facts, total, cut_off)
        self.own = (len(self.unhealthy_nodes), len(self.unhealthy_links))

    def _bad_link(self, node: str, port: Port) -> None:
        self.bad_links += 1
        self.unhealthy_links.append(
            UnhealthyLink(
                node=node,
                nic=port.nic,
                port=port.number,
                switch=port.switch_name or port.switch,
                state=port.state,
                reason=", ".join(port.reasons) or port.state,
                since=port.since,
            )
        )

    def _use(self, port: Port, use: PortUse) -> None:
        self.sent += use.sent_gbps
        self.received += use.received_gbps
        if port.state != "down":
            weight = port.gbps or 1.0
            self.pressure += use.congestion * weight
            self.congested += use.congestion >= CONGESTED_FROM

    def _fitness(self, facts: NodeFacts, links: int, cut_off: Sequence[datetime] | None) -> None:
        found: list[tuple[str, str, datetime | None]] = []
        if facts.ready is False:
            found.append((facts.ready_reason or "NotReady", "the node does not report", facts.ready_since))
        else:
            self.ready += 1
        if cut_off is not None:
            found.append(("NoLink", f"all {links} links to this fabric are down", max(cut_off, default=None)))
        found += [(problem.reason, problem.message, problem.since) for problem in facts.problems]
        if found:
            self.bad_nodes += 1
            reason, message, since = found[0]
            more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
            self.unhealthy_nodes.append(
                UnhealthyNode(name=facts.name, reason=reason, message=message + more, since=since)
            )

    def domain(self, below: HyperNode) -> None:
        """Add a domain beneath."""
        self.node_count += below.node_count
        self.ready += below.ready_nodes
        self.links += below.link_count
        self.capacity += below.capacity_gbps
        self.available += below.available_gbps
        self.sent += below.sent_gbps
        self.received += below.received_gbps
        self.pressure += below.congestion * (below.available_gbps or below.link_count)
        self.congested += below.congested_links
        self.bad_nodes += below.unhealthy_node_count
        self.bad_links += below.unhealthy_link_count
        self.unhealthy_nodes += below.unhealthy_nodes
        self.unhealthy_links += below.unhealthy_links
        if below.last_change is not None and (self.changed is None or below.last_change > self.changed):
            self.changed = below.last_change

    @property
    def congestion(self) -> float:
        """What waits, of all links by what they carry."""
        weight = self.available or float(self.links)
        return round(min(1.0, self.pressure / weight), 4) if weight else 0.0


_BAD = frozenset(("degraded", "down"))
_UNUSED = frozenset(("down", "unknown"))
"""States of a port that has no switch, and needs none: not every port has a cable."""


def describe(
    frame: Frame,
    stays: Still,
    tally: Tally,
    below: Sequence[HyperNode],
    sources: Sequence[tuple[str, str]],
    stamp: Stamp | None,
    now: datetime,
) -> tuple[HyperNode, Stamp]:
    """Return a domain as it is shown. *sources*: central ones that do not answer, and why; *stamp*: of before."""
    switches = tuple(_switch(each, tally) for each in stays.switches) if tally.nodes else stays.switches
    members = stays.members
    if tally.nodes:
        members += tuple(Member(type="Node", name=each) for each in tally.nodes)
    from_below = sum(each.uplink_gbps for each in below) if below else tally.capacity
    congestion = tally.congestion
    conditions = _conditions(frame, tally, sources, congestion, stamp)
    times = dict(stamp.conditions) if stamp is not None else {}
    timed = {}
    for each in conditions:
        before = times.get(each.type)
        timed[each.type] = before if before is not None and before[0] == each.status else (each.status, now)
    found = HyperNode(
        name=frame.name,
        fabric=frame.fabric,
        tier=frame.tier,
        parent=frame.parent,
        members=members,
        switches=switches,
        node_count=tally.node_count,
        ready_nodes=tally.ready,
        link_count=tally.links,
        capacity_gbps=round(tally.capacity, 3),
        available_gbps=round(tally.available, 3),
        sent_gbps=round(tally.sent, 3),
        received_gbps=round(tally.received, 3),
        uplinks=frame.uplinks,
        uplink_gbps=frame.uplink_gbps,
        uplinks_down=frame.uplinks_down,
        oversubscription=round(from_below / frame.uplink_gbps, 2) if frame.uplink_gbps else None,
        congestion=congestion,
        congested_links=tally.congested,
        unhealthy_node_count=tally.bad_nodes,
        unhealthy_link_count=tally.bad_links,
        unhealthy_nodes=tuple(tally.unhealthy_nodes[:MOST_LISTED]),
        unhealthy_links=tuple(tally.unhealthy_links[:MOST_LISTED]),
        conditions=tuple(
            msgspec.structs.replace(each, last_transition_time=timed[each.type][1]) for each in conditions
        ),
    )
    mark = _mark(stays, tally)
    since = stamp.since if stamp is not None and stamp.mark == mark else now
    last = max(since, tally.changed) if tally.changed is not None else since
    fresh = Stamp(mark, since, timed)
    kept = stamp if stamp == fresh and stamp is not None else fresh
    return msgspec.structs.replace(found, last_change=last), kept


def _switch(each: SwitchStatus, tally: Tally) -> SwitchStatus:
    links, down = tally.on_switch.get(each.id, (0, 0))
    return SwitchStatus(id=each.id, name=each.name or tally.called.get(each.id, ""), links=links, down=down)


def _mark(stays: Still, tally: Tally) -> str:
    """Return a digest of what counts as a change: not load, and not what is told by the domains beneath."""
    links = [
        (each.node, each.nic, each.port, each.state, each.reason) for each in tally.unhealthy_links[: tally.own[1]]
    ]
    nodes = [(each.name, each.reason) for each in tally.unhealthy_nodes[: tally.own[0]]]
    if not tally.nodes:
        return stays.mark.hex()
    what = msgspec.msgpack.encode((stays.mark, tally.nodes, nodes, links))
    return hashlib.blake2b(what, digest_size=12).hexdigest()


def _conditions(
    frame: Frame, tally: Tally, sources: Sequence[tuple[str, str]], congestion: float, stamp: Stamp | None
) -> list[Condition]:
    found = [_healthy(frame, tally), _congested(tally, congestion, stamp)]
    if frame.root:
        found.append(_connected(frame))
        found.append(_current(sources))
    return found


def _healthy(frame: Frame, tally: Tally) -> Condition:
    counts = (
        (tally.bad_nodes, tally.node_count, "nodes"),
        (tally.bad_links, tally.links, "links"),
        (frame.uplinks_down, frame.uplinks, "links upward"),
    )
    parts = [f"{count} of {total} {what}" for count, total, what in counts if count]
    if not parts:
        return Condition(type="Healthy", status="True", reason="AllWell")
    reason = "UnhealthyNodes" if tally.bad_nodes else "UnhealthyLinks"
    return Condition(type="Healthy", status="False", reason=reason, message=f"unhealthy: {', '.join(parts)}")


def _congested(tally: Tally, congestion: float, stamp: Stamp | None) -> Condition:
    share = tally.congested / tally.links if tally.links else 0.0
    before = stamp.conditions.get("Congested") if stamp is not None else None
    limit, most = CONGESTED_FROM, _MANY_CONGESTED
    if before is not None and before[0] == "True":
        limit, most = CONGESTED_UNTIL, _MANY_CONGESTED / 2
    if congestion >= limit or share >= most:
        message = (
            f"{congestion:.0%} of what its links could carry waits; {tally.congested} of {tally.links} are congested"
        )
        return Condition(type="Congested", status="True", reason="LinksCongested", message=message)
    return Condition(type="Congested", status="False", reason="LinksFree")


def _connected(frame: Frame) -> Condition:
    if frame.parts <= 1:
        return Condition(type="Connected", status="True", reason="CommonSwitches")
    message = f"no source tells of links between its {frame.parts} parts"
    return Condition(type="Connected", status="Unknown", reason="NoCommonSwitch", message=message)


def _current(sources: Sequence[tuple[str, str]]) -> Condition:
    if not sources:
        return Condition(type="SourcesCurrent", status="True", reason="AllAnswer")
    message = "; ".join(f"{name}: {why}" for name, why in sources)
    return Condition(
        type="SourcesCurrent", status="False", reason="SourceFailed", message=f"what it said before holds: {message}"
    )
