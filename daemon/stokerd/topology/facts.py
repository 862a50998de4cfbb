"""What was found on a node, before it is a report: plain values, one class for each kind of thing. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from stoker.fabrics.fabric import Fabric
from stoker.fabrics.foreign import Unread
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.addresses import PcieLink
from stokerd.topology.classes import UseRule
from stokerd.topology.distances import Place
from stokerd.topology.health import PortHealth
from stokerd.topology.metadata import Placement
from stokerd.topology.neighbours import Neighbour
from stokerd.topology.rdma_values import Rate

GPU_VENDORS: Mapping[int, str] = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel", 0x1DA3: "habana"}
MODELS: Mapping[tuple[int, int], str] = {
    (0x1002, 0x7408): "AMD Instinct MI250X",
    (0x1002, 0x740C): "AMD Instinct MI250X",
    (0x1002, 0x740F): "AMD Instinct MI210",
    (0x1002, 0x74A0): "AMD Instinct MI300A",
    (0x1002, 0x74A1): "AMD Instinct MI300X",
    (0x1002, 0x74A5): "AMD Instinct MI325X",
    (0x1002, 0x75A0): "AMD Instinct MI350X",
}
"""GPUs whose driver is not asked, by vendor and device."""

_DISPLAY, _ACCELERATOR, _NETWORK = 0x03, 0x12, 0x02
_VGA = 0x0300
_NUMBERS = re.compile(r"(\d{1,9})")


class PciDevice(msgspec.Struct, frozen=True):
    """A GPU or a network adapter on PCIe."""

    place: Place
    kind: int = 0
    vendor: int = 0
    device: int = 0
    link: PcieLink = PcieLink()
    iommu_group: int | None = None
    acs_redirects: bool | None = None
    narrowest: str = ""
    virtual_of: str = ""
    virtual_functions: int = 0
    driver: str = ""

    @property
    def is_gpu(self) -> bool:
        """Say whether it computes: displays of a board's management chip do not."""
        base = self.kind >> 16
        if base == _DISPLAY:
            return self.vendor in {0x10DE, 0x1002} or (self.vendor == 0x8086 and self.kind >> 8 != _VGA)
        return base == _ACCELERATOR and self.vendor in GPU_VENDORS

    @property
    def is_network(self) -> bool:
        """Say whether it is a network adapter, of Ethernet or InfiniBand."""
        return self.kind >> 16 == _NETWORK


class Gid(msgspec.Struct, frozen=True):
    """An entry of a port's table of addresses."""

    index: int
    gid: str
    kind: str = ""


class RdmaPort(msgspec.Struct, frozen=True):
    number: int
    state: str = "unknown"
    physical: str = "unknown"
    layer: str = ""
    rate: Rate = Rate()
    lid: int = 0
    sm_lid: int = 0
    guid: str = ""
    gids: tuple[Gid, ...] = ()
    netdev: str = ""
    counters: Mapping[str, int] = {}


class RdmaDevice(msgspec.Struct, frozen=True):
    name: str
    address: str = ""
    guid: str = ""
    firmware: str = ""
    model: str = ""
    ports: tuple[RdmaPort, ...] = ()


class NetDevice(msgspec.Struct, frozen=True):
    """A network device that has hardware beneath it."""

    name: str
    address: str = ""
    port: int = 0
    mac: str = ""
    up: bool | None = None
    gbps: float = 0.0
    mtu: int = 0
    bond: str = ""
    vlans: tuple[int, ...] = ()
    default_route: bool = False
    networks: tuple[str, ...] = ()
    losses: int | None = None
    layer: str = "ethernet"
    pfc: tuple[int, ...] | None = None
    ecn: tuple[int, ...] | None = None
    counters: Mapping[str, int] = {}


class NumaFacts(msgspec.Struct, frozen=True):
    id: int
    cpus: str = ""
    memory_bytes: int = 0


class CpuFacts(msgspec.Struct, frozen=True):
    model: str = ""
    sockets: int = 0
    cores: int = 0
    threads: int = 0


class MemoryFacts(msgspec.Struct, frozen=True):
    """``huge_pages``: how many there are by their size in KiB."""

    total: int = 0
    swap: int = 0
    huge_pages: Mapping[int, int] = {}


class DiskFacts(msgspec.Struct, frozen=True):
    name: str
    model: str = ""
    size: int = 0
    rotational: bool = False
    address: str = ""
    numa: int | None = None


class Tree(msgspec.Struct, frozen=True):
    """What is on PCIe, NUMA nodes, CPUs, memory and disks: what rarely changes. ``unread`` is by source."""

    pci: tuple[PciDevice, ...] = ()
    numa: tuple[NumaFacts, ...] = ()
    cpu: CpuFacts | None = None
    memory: MemoryFacts | None = None
    disks: tuple[DiskFacts, ...] = ()
    unread: Mapping[str, Unread] = {}


class Ports(msgspec.Struct, frozen=True):
    """The ports, with their counters: the part of the hardware that changes all the time. ``unread`` is by source."""

    rdma: tuple[RdmaDevice, ...] = ()
    nets: tuple[NetDevice, ...] = ()
    unread: Mapping[str, Unread] = {}


class Xid(msgspec.Struct, frozen=True):
    """An error of a GPU that its driver wrote to the kernel's log: how often, and when last."""

    address: str
    number: int
    count: int
    last: datetime


class FabricPeer(msgspec.Struct, frozen=True):
    """Who is at the other end of a port of InfiniBand, as it answers itself."""

    kind: str
    guid: str
    port: int = 0
    name: str = ""


class AskedPeers(msgspec.Struct, frozen=True):
    """By device and port; ``unread``: ports whose other end did not answer."""

    peers: Mapping[tuple[str, int], FabricPeer] = {}
    unread: Unread = Unread()


class ImageFacts(msgspec.Struct, frozen=True):
    name: str
    digest: str = ""
    size: int = 0


class PodFacts(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str = ""
    phase: str = ""
    containers: int = 0


class Contents(msgspec.Struct, frozen=True):
    """What is on the node already."""

    images: tuple[ImageFacts, ...] = ()
    pods: tuple[PodFacts, ...] = ()


class AmdReport(msgspec.Struct, frozen=True):
    """GPUs in the order of their addresses; ``links`` has ``XGMI`` by the addresses of two of them."""

    gpus: tuple[Accelerator, ...] = ()
    links: Mapping[tuple[str, str], str] = {}
    unread: Unread = Unread()


class Hardware(msgspec.Struct, frozen=True):
    """What sysfs shows of a node."""

    pci: tuple[PciDevice, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    nets: tuple[NetDevice, ...] = ()
    numa: tuple[NumaFacts, ...] = ()
    cpu: CpuFacts | None = None
    memory: MemoryFacts | None = None
    disks: tuple[DiskFacts, ...] = ()
    unread: Mapping[str, Unread] = {}
    """By source."""


class SourceReport(msgspec.Struct, frozen=True):
    """How a source did."""

    name: str
    state: Literal["ok", "absent", "failed"] = "ok"
    reason: str = ""
    unread: Unread = Unread()


class Heard(msgspec.Struct, frozen=True):
    """A neighbour that LLDP told of, and by which source."""

    neighbour: Neighbour
    source: str = "lldp"


class Observation(msgspec.Struct, frozen=True):
    """All that is known of a node at one time. What a source did not give is left as it is here."""

    node: str
    hardware: Hardware = Hardware()
    gpus: tuple[Accelerator, ...] = ()
    gpu_source: str = "nvidia-smi"
    gpu_links: Mapping[tuple[str, str], str] = {}
    """``NV18`` or ``XGMI`` by the PCI addresses of two GPUs."""
    gpus_lost: tuple[str, ...] = ()
    """Of GPUs that the driver counts and cannot reach, why."""
    neighbours: Mapping[str, tuple[Heard, ...]] = {}
    fabric: Fabric | None = None
    asked: Mapping[tuple[str, int], FabricPeer] = {}
    """Who is at the other end of ports of InfiniBand, by device and port."""
    xids: tuple[Xid, ...] = ()
    contents: Contents | None = None
    placement: Placement = Placement()
    serials: bool = False
    """Whether serial numbers are told."""
    labels: Mapping[str, str] = {}
    rules: tuple[UseRule, ...] = ()
    health: Mapping[tuple[str, int], PortHealth] = {}
    """By the NIC's name and the port's number."""
    young: frozenset[tuple[str, int]] = frozenset()
    """Ports whose link came up just now: who is at the other end may not have said so yet."""
    sources: tuple[SourceReport, ...] = ()


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``mlx5_2`` before ``mlx5_10``."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in _NUMBERS.split(name) if part)
