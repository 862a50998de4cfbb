"""The plain values of this room. Pure.

Facts go in (``NodeFacts`` of each node, a ``Reading`` of each central source), domains come out (``HyperNode``).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct, field

from stoker.fabrics.foreign import Unread

INFINIBAND, ROCE, ETHERNET, NVLINK = "infiniband", "roce", "ethernet", "nvlink"

LinkHealth = Literal["healthy", "degraded", "down", "unknown"]
MemberKind = Literal["Node", "HyperNode"]
ConditionStatus = Literal["True", "False", "Unknown"]


# ---------------------------------------------------------------------------------------------- what is known


class Port(Struct, frozen=True, gc=False):
    """A port of a node, and the switch that it hangs on, as far as somebody says so.

    ``nic`` is empty where nobody tells of a link, but of a place in a tree alone.
    """

    nic: str
    number: int
    fabric: str
    switch: str = ""
    """The switch's identity: a GUID, a chassis, a name. Empty where nobody knows."""
    switch_name: str = ""
    switch_port: str = ""
    gbps: float = 0.0
    """What the link can carry; while it is down, what it could before."""
    state: LinkHealth = "unknown"
    reasons: tuple[str, ...] = ()
    since: datetime | None = None
    """When its state became what it is."""
    source: str = ""
    why: str = ""
    seen: datetime | None = None
    """Since when this source says so."""
    lost: datetime | None = None
    """Since when nobody says so any more; the link keeps its place."""
    aliases: tuple[str, ...] = ()
    """By what others may know it: GUIDs of port and adapter, network device, MAC address."""
    disputed: str = ""
    """What another source says instead."""


class Problem(Struct, frozen=True):
    """Something that makes a node unfit, and since when."""

    reason: str
    message: str
    since: datetime | None = None


class NodeFacts(Struct, frozen=True):
    """What is known of a node. ``ready`` is None where nobody has said it yet."""

    name: str
    ready: bool | None = None
    ready_since: datetime | None = None
    ready_reason: str = ""
    labels: Mapping[str, str] = {}
    ports: tuple[Port, ...] = ()
    problems: tuple[Problem, ...] = ()
    unplaced: int = 0
    """Interfaces of which nobody says what they are for, or that have no fabric."""


class PortUse(Struct, frozen=True, gc=False):
    """What goes through a port now."""

    nic: str
    number: int
    sent_gbps: float = 0.0
    received_gbps: float = 0.0
    congestion: float = 0.0


# ---------------------------------------------------------------------------------------------- central sources


class Attachment(Struct, frozen=True, gc=False):
    """What a central source says of one port of a host. ``host`` is empty where its name is nobody's own."""

    switch: str
    host: str = ""
    guid: str = ""
    device: str = ""
    port: int = 1
    switch_port: str = ""
    gbps: float = 0.0
    up: bool = True


class Trunk(Struct, frozen=True, gc=False):
    """All links between two switches. ``gbps`` is what those carry that are up; 0 where nobody says."""

    one: str
    other: str
    links: int = 1
    gbps: float = 0.0
    down: int = 0


class Reading(Struct, frozen=True):
    """What a central source has brought once."""

    source: str
    fabric: str
    attachments: tuple[Attachment, ...] = ()
    trunks: tuple[Trunk, ...] = ()
    names: Mapping[str, str] = {}
    """What switches are called, by their identity."""
    parents: Mapping[str, str] = {}
    """The parent of each of its domains, where the source itself tells the tree (``declared``)."""
    declared: bool = False
    unread: Unread = Unread()
    unnamed: int = 0
    """Adapters whose names are nobody's own."""

    @property
    def weight(self) -> int:
        """Return how much it says."""
        return len(self.attachments) + sum(trunk.links for trunk in self.trunks)


class SourceState(Struct, frozen=True):
    """A central source as it stands: what holds of it, and how it is doing."""

    name: str
    reading: Reading | None = None
    """What holds. A failure or an empty answer does not change it."""
    read_at: datetime | None = None
    state: Literal["ok", "failed", "held"] = "ok"
    since: datetime | None = None
    reason: str = ""
    held: int = 0
    """How often in a row it has said much less than before."""


# ---------------------------------------------------------------------------------------------- what is made of it


class Wire(Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """Base of what is shown."""


class Member(Wire, frozen=True):
    type: MemberKind
    name: str


class SwitchStatus(Wire, frozen=True):
    id: str
    name: str = ""
    links: int = 0
    """To nodes of this domain."""
    down: int = 0


class UnhealthyNode(Wire, frozen=True):
    name: str
    reason: str
    message: str = ""
    since: datetime | None = None


class UnhealthyLink(Wire, frozen=True):
    node: str
    nic: str
    port: int
    switch: str
    state: LinkHealth
    reason: str
    since: datetime | None = None


class Condition(Wire, frozen=True):
    type: str
    status: ConditionStatus
    reason: str
    message: str = ""
    last_transition_time: datetime | None = None


class HyperNode(Wire, frozen=True):
    """A domain: a switch, or some that belong together, with all that hangs beneath. Tier 1 is nearest to the nodes."""

    name: str
    fabric: str
    tier: int
    parent: str = ""
    members: tuple[Member, ...] = ()
    switches: tuple[SwitchStatus, ...] = ()
    node_count: int = 0
    ready_nodes: int = 0
    link_count: int = 0
    capacity_gbps: float = 0.0
    """What the links of its nodes carry, when all are well."""
    available_gbps: float = 0.0
    """What those carry that are not down."""
    sent_gbps: float = 0.0
    received_gbps: float = 0.0
    uplinks: int = 0
    uplink_gbps: float = 0.0
    """What its links to switches above carry; 0 where nobody says."""
    uplinks_down: int = 0
    oversubscription: float | None = None
    """What comes from below, as a multiple of what goes up."""
    congestion: float = 0.0
    """0: nothing waits; 1: nothing moves. Of its links, by what they carry."""
    congested_links: int = 0
    unhealthy_node_count: int = 0
    unhealthy_link_count: int = 0
    unhealthy_nodes: tuple[UnhealthyNode, ...] = ()
    """The first of them, as are the links."""
    unhealthy_links: tuple[UnhealthyLink, ...] = ()
    conditions: tuple[Condition, ...] = ()
    last_change: datetime | None = None
    """When its members, switches, nodes' or links' health changed last."""


class Delta(Struct, frozen=True):
    """What has become different. ``changed`` are whole, parents after their children."""

    changed: tuple[HyperNode, ...] = ()
    removed: tuple[str, ...] = ()


class Stamp(Struct, frozen=True):
    """What is remembered of a domain, so that times are when something became so."""

    mark: str
    since: datetime
    conditions: Mapping[str, tuple[str, datetime]] = {}


class NameMemory(Struct, frozen=True):
    """A name that was given, to which switches, and since when it is not in use (None: it is)."""

    fabric: str
    switches: tuple[str, ...]
    unused: datetime | None = None


class Memory(Struct, frozen=True):
    """What is kept over a restart, beside the facts: names that were given, and since when things are so."""

    names: Mapping[str, NameMemory] = field(default_factory=dict)
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
