"""Objects of a cluster about its nodes and how they hang together: Node is ours, HyperNode has Volcano's schema."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import field

from stoker.objects.meta import Condition, LabelSelector, Object, ObjectMeta, Part

OURS = "stoker.dev/v1"
VOLCANO = "topology.volcano.sh/v1alpha1"

MemberType = Literal["Node", "HyperNode"]


class NodeSpec(Part, frozen=True):
    paused: bool = False
    """The node gets no new work; what runs goes on."""


class NodeCapability(Part, frozen=True):
    name: str
    available: bool = False
    detail: str = ""


class NodeStatus(Part, frozen=True):
    """What the node says of itself. Conditions: Ready, RuntimeReady, TopologyHealthy."""

    conditions: tuple[Condition, ...] = ()
    boot_id: str = field(default="", name="bootID")
    stokerd_version: str = ""
    protocol_version: int = 0
    runtime_name: str = ""
    runtime_version: str = ""
    addresses: tuple[str, ...] = ()
    capabilities: tuple[NodeCapability, ...] = ()
    connected: bool = False
    connected_since: datetime | None = None
    last_seen: datetime | None = None
    """Not more often than once a minute while nothing else changes."""
    images: int = 0
    pods: int = 0
    disk_free_bytes: int = 0
    topology_generation: int = 0


class Node(Object, tag="Node", kw_only=True, frozen=True):
    """A node with a stokerd."""

    api_version: str = OURS
    metadata: ObjectMeta
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


class ExactMatch(Part, frozen=True):
    name: str


class RegexMatch(Part, frozen=True):
    pattern: str


class MemberSelector(Part, frozen=True):
    """Exactly one of the three."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None
    """Of nodes only."""


class HyperNodeMember(Part, frozen=True):
    type: MemberType
    selector: MemberSelector


class HyperNodeSpec(Part, frozen=True):
    tier: int
    """1 is nearest the nodes."""
    members: tuple[HyperNodeMember, ...] = ()
    tier_name: str = ""


class UnhealthyNode(Part, frozen=True):
    name: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None


class UnhealthyLink(Part, frozen=True):
    """One end, the other end, and what is wrong between them."""

    a: str
    b: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None


class HyperNodeStatus(Part, frozen=True):
    """nodeCount and conditions are Volcano's, the rest is ours."""

    node_count: int = 0
    conditions: tuple[Condition, ...] = ()
    nodes: tuple[str, ...] = ()
    """At tier 1 only: higher tiers are the sum of their members."""
    members: int = 0
    switches: tuple[str, ...] = ()
    fabric: str = ""
    capacity_gbps: float = 0.0
    """Of the links downward."""
    uplink_gbps: float = 0.0
    used_gbps: float = 0.0
    oversubscription: float = 0.0
    """Capacity downward over capacity upward; 0 where there is nothing above."""
    congested: bool = False
    unhealthy_nodes: tuple[UnhealthyNode, ...] = ()
    unhealthy_links: tuple[UnhealthyLink, ...] = ()
    last_change: datetime | None = None
    observed_generation: int = 0


class HyperNode(Object, tag="HyperNode", kw_only=True, frozen=True):
    """A part of a fabric within which nodes reach each other equally well."""

    api_version: str = VOLCANO
    metadata: ObjectMeta
    spec: HyperNodeSpec
    status: HyperNodeStatus = field(default_factory=HyperNodeStatus)
