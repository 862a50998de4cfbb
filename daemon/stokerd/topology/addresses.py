"""What sysfs writes about PCI: addresses, links, classes, config space. Pure.

Source: kernel Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/pci-sysfs.c; PCI Express Base 6.0, 7.7.8 (ACS).
"""

from __future__ import annotations

import re

import msgspec

from stoker.fabrics.foreign import integer, leading_number

_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_HOST_BRIDGE = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
_NO_WIDTH = {0, 255}
_ACS = 0x000D
# Source validation, request and completion redirection: with these, traffic between peers goes up to the root.
_REDIRECTS = 0b0000_1100


class PcieLink(msgspec.Struct, frozen=True):
    """A link's speed (GT/s) and width (lanes), now and at most; None where the device does not say."""

    speed: float | None = None
    speed_max: float | None = None
    width: int | None = None
    width_max: int | None = None

    @property
    def degraded(self) -> str:
        """Return how the link is less than it could be; empty if it is not.

        Its width counts. Devices lower their speed when they are idle, so speed alone is told, not blamed.
        """
        if self.width and self.width_max and self.width < self.width_max:
            return f"x{self.width} of x{self.width_max}"
        return ""


def pci_address(text: str | None) -> str:
    """Return a PCI address as sysfs writes it (``0000:3b:00.0``); empty if *text* is none.

    NVML and nvidia-smi write domains of eight digits, and capitals.
    """
    match = _ADDRESS.fullmatch((text or "").strip())
    if match is None:
        return ""
    domain = (match[1] or "0").lstrip("0").lower().zfill(4)
    return f"{domain}:{match[2]}:{match[3]}.{match[4]}".lower()


def pci_path(target: str) -> tuple[str, ...]:
    """Return a device's place, from its host bridge down to itself, from where its link in /sys/bus/pci/devices leads.

    Empty if the link leads to no such place. Bridges of other kinds in between (VMD, a virtual bus) are passed over.
    """
    parts = target.replace("\\", "/").split("/")
    start = next((place for place, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), None)
    if start is None:
        return ()
    below = tuple(address for part in parts[start + 1 :] if (address := pci_address(part)))
    return (parts[start].lower(), *below) if below else ()


def pcie_link(speed: str | None, speed_max: str | None, width: str | None, width_max: str | None) -> PcieLink:
    """Return the link that sysfs describes: ``32.0 GT/s PCIe``, ``16``; ``Unknown``, 0 and 255 say nothing."""
    return PcieLink(_speed(speed), _speed(speed_max), _width(width), _width(width_max))


def generation_speed(generation: int | None) -> float | None:
    """Return the GT/s of a PCIe generation."""
    return _GIGATRANSFERS.get(generation or 0)


def _speed(text: str | None) -> float | None:
    value = leading_number(text)
    return value or None


def _width(text: str | None) -> int | None:
    value = integer(text)
    return None if value is None or value in _NO_WIDTH or value < 0 else value


def numa_node(text: str | None) -> int | None:
    """Return a NUMA node; None for -1, which says that nobody knows."""
    value = integer(text)
    return value if value is not None and 0 <= value < 1 << 16 else None


def pci_class(text: str | None) -> int:
    """Return the 24 bits of a device's class (``0x030200``), 0 where it cannot be read."""
    try:
        value = int((text or "").strip(), 16)
    except ValueError:
        return 0
    return value if 0 <= value < 1 << 24 else 0


def acs_redirects(config: bytes) -> bool | None:
    """Say whether a port's Access Control Services send traffic between its devices up to the root complex.

    None where the port has none, or where its extended configuration space was not given (only root may read it).
    """
    offset, seen = 0x100, 0
    while 0x100 <= offset <= len(config) - 8 and seen < 64:
        head = int.from_bytes(config[offset : offset + 4], "little")
        if head & 0xFFFF == _ACS:
            return bool(int.from_bytes(config[offset + 6 : offset + 8], "little") & _REDIRECTS)
        offset, seen = head >> 20, seen + 1
    return None
