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
NvlinkEnd = Literal["gpu", "switch", "other"]


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
    driver: str = ""
    """Of the kernel: ``nvidia``, ``mlx5_core``; ``vfio-pci`` has it for a virtual machine."""
    iommu_group: int | None = None
    acs_redirects: bool | None = None
    """Whether a bridge above it sends traffic between devices up to the root; None: not known (only root may see)."""


class NumaNode(Fact):
    id: int
    cpus: str = ""
    memory_bytes: int = 0


class CpuInfo(Fact):
    model: str = ""
    sockets: int = 0
    cores: int = 0
    threads: int = 0


class MemoryInfo(Fact):
    bytes: int = 0
    swap_bytes: int = 0
    huge_pages: dict[str, int] = field(default_factory=dict)
    """How many there are, by their size: ``2MiB``."""


class Disk(Fact):
    """A disk of the machine, or of a network that looks like one."""

    name: str
    model: str = ""
    bytes: int = 0
    rotational: bool = False
    pcie: str = ""
    """PCI address of what it hangs on."""
    numa: int | None = None


class ImageOnNode(Wire):
    name: str
    """A tag if it has one, else a digest, else its id."""
    digest: str = ""
    bytes: int = 0


class ImagesOnNode(Fact):
    """What is on the node already; ``items`` may be fewer than ``total``, the largest being kept."""

    total: int = 0
    bytes: int = 0
    items: list[ImageOnNode] = field(default_factory=list)


class PodOnNode(Wire):
    namespace: str
    name: str
    uid: str = ""
    phase: str = ""
    containers: int = 0


class PodsOnNode(Fact):
    """``items`` may be fewer than ``total``."""

    total: int = 0
    containers: int = 0
    items: list[PodOnNode] = field(default_factory=list)


class NvlinkPeer(Wire):
    """NVLinks that are up and lead to one end."""

    kind: NvlinkEnd
    peer: str = ""
    """A GPU's name here, or a PCI address; empty where the driver does not say."""
    links: int = 1


class GpuXid(Wire):
    """An error that the driver wrote to the kernel's log since the machine started."""

    xid: int
    count: int
    last: datetime


class Gpu(Fact):
    name: str
    index: int
    pcie: PcieInfo
    model: str = ""
    vendor: str = ""
    uuid: str = ""
    serial: str = ""
    """Only where the settings say so."""
    memory_bytes: int | None = None
    clock_max_mhz: int | None = None
    mig: str = ""
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: str = ""
    throttled: list[str] = field(default_factory=list)
    xids: list[GpuXid] = field(default_factory=list)
    nvlinks: list[NvlinkPeer] = field(default_factory=list)
    nvlinks_down: int = 0
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
    pfc: list[int] | None = None
    """Priorities with flow control of their own (PFC); None: nobody says."""
    ecn: list[int] | None = None
    """Priorities for which RoCE answers marks of congestion (ECN); None: nobody says."""
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
    cpu: CpuInfo | None = None
    memory: MemoryInfo | None = None
    numa: list[NumaNode] = field(default_factory=list)
    disks: list[Disk] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    domains: list[NvlinkDomain] = field(default_factory=list)
    matrix: DistanceMatrix = field(default_factory=DistanceMatrix)
    fabric: FabricSummary | None = None
    images: ImagesOnNode | None = None
    pods: PodsOnNode | None = None
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


class GpuLoad(Wire):
    """As of when the driver was asked last."""

    gpu: str
    busy_percent: int | None = None
    memory_used_bytes: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


class Pressure(Wire):
    """The share of time in which some task (or all) waited for it, in percent over 10 s and 60 s: the kernel's PSI."""

    some10: float = 0.0
    some60: float = 0.0
    full10: float = 0.0
    full60: float = 0.0


class FileSystemLoad(Wire):
    mount: str
    device: str = ""
    bytes: int = 0
    free_bytes: int = 0


class MachineLoad(Wire):
    """What is not known is None, or not there."""

    cpu_percent: float | None = None
    """Of all CPUs together, since it was asked last."""
    load1: float | None = None
    load15: float | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    pressure: dict[str, Pressure] = field(default_factory=dict)
    """By ``cpu``, ``memory``, ``io``."""
    file_systems: list[FileSystemLoad] = field(default_factory=list)


class TopologyLoad(Wire):
    """``GET /v1/topology/load``: what changes all the time."""

    node: str
    at: datetime
    ports: list[PortLoad] = field(default_factory=list)
    gpus: list[GpuLoad] = field(default_factory=list)
    machine: MachineLoad = field(default_factory=MachineLoad)
