"""AMD GPUs from sysfs: memory, errors, and the links between them (XGMI), as the kernel's compute driver tells them.

Source: kernel drivers/gpu/drm/amd/amdkfd/kfd_topology.c; Documentation/gpu/amdgpu/driver-misc.rst and ras.rst.
"""

from __future__ import annotations

import re

from stoker.fabrics.foreign import integer
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.facts import MODELS, AmdReport, natural
from stokerd.topology.sysfs import Sysfs

_NODES = "sys/class/kfd/kfd/topology/nodes"
_DEVICES = "sys/bus/pci/devices"
_XGMI = 11  # CRAT's type of the link; 2 is PCIe
_MOST_NODES, _MOST_LINKS = 256, 256
_UNCORRECTED = re.compile(r"^ue:\s*(\d{1,18})\s*$", re.MULTILINE)


def read_amd(files: Sysfs) -> AmdReport:
    """Return the AMD GPUs that the compute driver knows; nothing where there is no such driver."""
    nodes: dict[int, tuple[str, dict[str, int]]] = {}
    for name in sorted(files.names(_NODES), key=natural)[:_MOST_NODES]:
        number, values = integer(name), _values(files.text(f"{_NODES}/{name}/properties"))
        address = _address(values)
        if number is not None and address:
            nodes[number] = (address, values)
    links = {}
    for number, (address, _) in nodes.items():
        for name in files.names(f"{_NODES}/{number}/io_links")[:_MOST_LINKS]:
            link = _values(files.text(f"{_NODES}/{number}/io_links/{name}/properties"))
            peer = nodes.get(link.get("node_to", -1))
            if link.get("type") == _XGMI and peer is not None:
                links[address, peer[0]] = "XGMI"
    gpus = (_gpu(files, address, values) for address, values in nodes.values())
    return AmdReport(tuple(sorted(gpus, key=lambda gpu: gpu.address)), dict(sorted(links.items())), files.lost)


def _values(text: str | None) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line."""
    pairs = (line.split() for line in (text or "").split("\n"))
    return {pair[0]: value for pair in pairs if len(pair) == 2 and (value := integer(pair[1])) is not None}


def _address(values: dict[str, int]) -> str:
    """Return a node's PCI address; empty for a CPU."""
    if not values.get("simd_count"):
        return ""
    location, domain = values.get("location_id", -1), values.get("domain", 0)
    if not (0 <= location < 1 << 16 and 0 <= domain < 1 << 32):
        return ""
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _gpu(files: Sysfs, address: str, values: dict[str, int]) -> Accelerator:
    base = f"{_DEVICES}/{address}"
    errors = _UNCORRECTED.search(files.text(f"{base}/ras/umc_err_count") or "")
    return Accelerator(
        address=address,
        model=MODELS.get((values.get("vendor_id", 0), values.get("device_id", 0)), ""),
        vendor="amd",
        memory_bytes=integer(files.text(f"{base}/mem_info_vram_total")),
        ecc_uncorrected=int(errors[1]) if errors else None,
    )
