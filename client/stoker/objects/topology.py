"""The topology of a node, as the local API of stokerd speaks it (JSON, camelCase).

A report is the same bytes as long as nothing changed. So each fact carries where it was found and since when it is so,
not when it was looked at last; and what changes all the time, such as load, is a document of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import field

from stoker.objects.images import Wire

VERSION = 1
"""Of the report's form. A reader that knows a lower one may use what it knows; meanings do not change under a name."""

SourceState = Literal["ok", "absent", "failed"]
NeighbourKind = Literal["switch", "host", "virtual", "self", "unknown"]
NicUse = Literal["compute", "storage", "management", "unknown"]
HealthState = Literal["healthy", "degraded", "down", "unknown"]
Severity = Literal["error", "warning", "info"]
ChangeKind = Literal["added", "removed", "changed"]


class Fact(Wire):
    """Something that was found: where, and since when it is so."""

    source: str
    """Name of one of the report's sources."""
    since: datetime


class TopologySource(Wire):
    """Where facts come from. One that fails takes only its own facts with it."""

    name: str
    state: SourceState
    since: datetime
    reason: str = ""
    unread: int = 0
    """Pieces of its output that were not understood."""
    samples: list[str] = field(default_factory=list)
    """The first of these."""


class PcieInfo(Wire):
    """Where a device is, and its link: GT/s and lanes, now and at most."""

    address: str
    path: list[str] = field(default_factory=list)
    """From the host bridge (``pci0000:15``) down to the device itself."""
    numa: int | None = None
    speed: float | None = None
    speed_max: float | None = None
    width: int | None = None
    width_max: int | None = None
    narrowest: str = ""
    """The bridge above it whose link has fewer lanes than it could have, and how many."""
    iommu_group: int | None = None
    acs_redirects: bool | None = None
    """Whether a bridge above it sends traffic between devices up to the root; None: not known (only root may see)."""


class NumaNode(Fact):
    id: int
    cpus: str = ""
    memory_bytes: int = 0


class Gpu(Fact):
    name: str
    index: int
    pcie: PcieInfo
    model: str = ""
    vendor: str = ""
    uuid: str = ""
    memory_bytes: int | None = None
    mig: str = ""
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: str = ""
    throttled: list[str] = field(default_factory=list)
    domain: str = ""
    """NVLink domain, as cluster.clique; empty where there is none: the report's domains say why."""
    nics: list[str] = field(default_factory=list)
    """The RDMA interfaces that are nearest to it."""
    nic_distance: str = ""


class NvlinkDomain(Fact):
    """A domain that GPUs of this node are a part of; or GPUs that are in none, and why (``refused``)."""

    name: str = ""
    cluster: str = ""
    clique: int | None = None
    gpus: list[str] = field(default_factory=list)
    refused: str = ""


class PortNeighbour(Fact):
    """Who is at the other end, and why we think so."""

    kind: NeighbourKind
    reason: str
    chassis: str
    """GUID of a switch of InfiniBand, or what LLDP calls the chassis."""
    port: str = ""
    name: str = ""
    port_description: str = ""
    management: list[str] = field(default_factory=list)
    vlan: int | None = None
    aggregate: int | None = None
    frame_size: int | None = None


class PortHealth(Fact):
    state: HealthState
    reasons: list[str] = field(default_factory=list)
    flaps: int = 0
    """Times that the link was lost; while it is flapping, as of when that began."""


class NicPort(Fact):
    number: int
    state: str
    health: PortHealth
    physical: str = ""
    layer: str = ""
    gbps: float = 0.0
    width: int = 0
    speed: str = ""
    lid: int = 0
    sm_lid: int = 0
    guid: str = ""
    gids: list[str] = field(default_factory=list)
    roce: list[str] = field(default_factory=list)
    netdev: str = ""
    mac: str = ""
    mtu: int = 0
    bond: str = ""
    vlans: list[int] = field(default_factory=list)
    neighbours: list[PortNeighbour] = field(default_factory=list)


class Nic(Fact):
    name: str
    """Of the RDMA device, or of the network device where there is none."""
    use: NicUse
    use_reason: str
    pcie: PcieInfo | None = None
    rdma: bool = False
    model: str = ""
    firmware: str = ""
    guid: str = ""
    rail: int | None = None
    gpus: list[str] = field(default_factory=list)
    """The GPUs that are nearest to it."""
    gpu_distance: str = ""
    virtual_of: str = ""
    """PCI address of the physical function, for a virtual one."""
    virtual_functions: int = 0
    ports: list[NicPort] = field(default_factory=list)


class DistanceMatrix(Wire):
    """Distances as ``nvidia-smi topo -m`` has them; each row is one string, its cells separated by blanks."""

    devices: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)


class FabricSummary(Fact):
    """A fabric's dump in numbers; only this node's own links are in the report."""

    form: str
    switches: int
    adapters: int
    unnamed: int = 0
    """Adapters known by their GUIDs alone."""
    down: int = 0


class TopologyFinding(Wire):
    """Something that is not as it should be."""

    code: str
    severity: Severity
    subjects: list[str]
    message: str
    remedy: str = ""


class TopologyReport(Wire):
    """``GET /v1/topology``."""

    version: int
    node: str
    since: datetime
    """When it became what it is."""
    sources: list[TopologySource] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    placement: dict[str, str] = field(default_factory=dict)
    numa: list[NumaNode] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    domains: list[NvlinkDomain] = field(default_factory=list)
    matrix: DistanceMatrix = field(default_factory=DistanceMatrix)
    fabric: FabricSummary | None = None
    findings: list[TopologyFinding] = field(default_factory=list)


class TopologyChange(Wire):
    """One small difference between two reports; ``before`` and ``after`` are as the report has them, shortened."""

    at: datetime
    kind: ChangeKind
    subject: str
    """``nic mlx5_0 port 1``"""
    field: str = ""
    before: str = ""
    after: str = ""


class TopologyEvent(Wire, tag="topology", tag_field="type"):
    """Server-sent: first the report as it is, then small changes as they happen."""

    report: TopologyReport | None = None
    changes: list[TopologyChange] = field(default_factory=list)


class PortLoad(Wire):
    nic: str
    port: int
    capacity_gbps: float = 0.0
    sent_gbps: float | None = None
    received_gbps: float | None = None
    congestion: float = 0.0
    """0: nothing waits; 1: nothing moves."""
    congestion_inputs: dict[str, float] = field(default_factory=dict)
    error_rates: dict[str, float] = field(default_factory=dict)
    """Per second; only what is not 0."""
    losses: int = 0
    """Times that the link was lost since stokerd started."""


class TopologyLoad(Wire):
    """``GET /v1/topology/load``: what changes all the time."""

    node: str
    at: datetime
    ports: list[PortLoad] = field(default_factory=list)
