"""GPUs, network adapters, the tree of PCIe above them, and NUMA nodes, from sysfs."""

from __future__ import annotations

import re

from stoker.fabrics.foreign import integer, plain
from stokerd.topology.addresses import (
    PcieLink,
    acs_redirects,
    numa_node,
    pci_address,
    pci_class,
    pci_path,
    pcie_link,
)
from stokerd.topology.distances import Place
from stokerd.topology.facts import NumaFacts, PciDevice
from stokerd.topology.sysfs import Sysfs

_DEVICES = "sys/bus/pci/devices"
_NODES = "sys/devices/system/node"
_OF_INTEREST = frozenset((0x02, 0x03, 0x12))
_MOST_DEVICES = 4096
_MEMORY = re.compile(r"MemTotal:\s*(\d{1,15})\s*kB")


def read_pci(files: Sysfs) -> tuple[PciDevice, ...]:
    """Return the GPUs and network adapters, in the order of their addresses."""
    reader = _PciReader(files)
    found = []
    for name in files.names(_DEVICES)[:_MOST_DEVICES]:
        if not pci_address(name):
            continue
        kind = pci_class(files.text(f"{_DEVICES}/{name}/class"))
        if kind >> 16 in _OF_INTEREST:
            device = reader.read(name, kind)
            if device is not None and (device.is_gpu or device.is_network):
                found.append(device)
    return tuple(sorted(found, key=lambda device: device.place.address))


class _PciReader:
    def __init__(self, files: Sysfs) -> None:
        self._files = files
        self._bridges: dict[str, tuple[str, bool | None]] = {}  # many devices share their bridges

    def read(self, name: str, kind: int) -> PciDevice | None:
        files, base = self._files, f"{_DEVICES}/{name}"
        path = pci_path(files.target(base))
        if not path:
            return None  # gone meanwhile
        bridges = [self._bridge(address) for address in path[1:-1]]
        redirects = [redirect for _, redirect in bridges if redirect is not None]
        group = files.target(f"{base}/iommu_group").rpartition("/")[2]
        return PciDevice(
            place=Place(path, numa_node(files.text(f"{base}/numa_node"))),
            kind=kind,
            vendor=_hex(files.text(f"{base}/vendor")),
            device=_hex(files.text(f"{base}/device")),
            link=self._link(base),
            iommu_group=integer(group),
            acs_redirects=any(redirects) if redirects else None,
            narrowest=next((text for text, _ in bridges if text), ""),
            virtual_of=pci_address(files.target(f"{base}/physfn").rpartition("/")[2]),
            virtual_functions=integer(files.text(f"{base}/sriov_numvfs")) or 0,
            driver=plain(files.target(f"{base}/driver").rpartition("/")[2], 32),
        )

    def _link(self, base: str) -> PcieLink:
        names = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
        return pcie_link(*(self._files.text(f"{base}/{name}") for name in names))

    def _bridge(self, address: str) -> tuple[str, bool | None]:
        known = self._bridges.get(address)
        if known is None:
            base = f"{_DEVICES}/{address}"
            degraded = self._link(base).degraded
            config = self._files.data(f"{base}/config")
            redirects = acs_redirects(config) if config and len(config) > 256 else None
            known = (f"{address} {degraded}" if degraded else "", redirects)
            self._bridges[address] = known
        return known


def _hex(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0


def read_numa(files: Sysfs) -> tuple[NumaFacts, ...]:
    """Return the NUMA nodes that have CPUs or memory."""
    nodes = []
    for name in files.names(_NODES):
        number = integer(name.removeprefix("node")) if name.startswith("node") else None
        if number is None:
            continue
        memory = _MEMORY.search(files.text(f"{_NODES}/{name}/meminfo") or "")
        cpus = plain(files.text(f"{_NODES}/{name}/cpulist") or "", 256)
        nodes.append(NumaFacts(number, cpus, int(memory[1]) << 10 if memory else 0))
    return tuple(sorted((node for node in nodes if node.cpus or node.memory_bytes), key=lambda node: node.id))
