"""What /sys/class/infiniband writes. Pure.

Source: kernel Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

import msgspec

from stoker.fabrics.foreign import integer, leading_number, plain

_STATE = re.compile(r"(\d{1,2})\s*:\s*(\w[\w ]*)")
_RATE = re.compile(r"\d+(?:\.\d+)?\s*Gb/sec(?:\s*\((\d{1,2})X(?:\s+([A-Z]+\d*))?\))?")
# Drivers disagree on how these are written: "LinkUp", "4: ACTIVE", "ActiveDefer".
_LOGICAL = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active"}
_PHYSICAL = {1: "sleep", 2: "polling", 3: "disabled", 4: "training", 5: "linkup", 6: "recovery", 7: "test"}


class Rate(msgspec.Struct, frozen=True):
    """What a port carries now: Gb/s, lanes, and the name of their speed. 0 and empty where it is not said."""

    gbps: float = 0.0
    width: int = 0
    speed: str = ""


def port_state(text: str | None) -> str:
    """Return ``active``, ``armed``, ``init``, ``down`` or ``unknown`` for ``4: ACTIVE``."""
    match = _STATE.fullmatch((text or "").strip())
    return _LOGICAL.get(int(match[1]), "unknown") if match else "unknown"


def physical_state(text: str | None) -> str:
    """Return ``linkup``, ``polling``, ``disabled`` and so on for ``5: LinkUp``."""
    match = _STATE.fullmatch((text or "").strip())
    return _PHYSICAL.get(int(match[1]), "unknown") if match else "unknown"


def rate(text: str | None) -> Rate:
    """Return what ``400 Gb/sec (4X NDR)`` says."""
    text = (text or "").strip()
    match = _RATE.match(text)
    if match is None:
        return Rate()
    return Rate(leading_number(text) or 0.0, int(match[1] or 0), match[2] or "")


def lid(text: str | None) -> int:
    """Return a LID (``0x1a``); 0 where there is none: 0xffff is what ports write that have none."""
    try:
        value = int((text or "").strip(), 0)
    except ValueError:
        return 0
    return value if 0 < value < 0xFFFF else 0


def gid(text: str | None) -> str:
    """Return a GID in its short form, empty for none; of RoCE, an address of IPv4 is written as such."""
    try:
        address = ipaddress.IPv6Address((text or "").strip())
    except ValueError:
        return ""
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return "" if int(address) & (1 << 64) - 1 == 0 else str(address)


def gid_type(text: str | None) -> str:
    """Return ``v1``, ``v2`` or ``ib`` for ``RoCE v2``, ``IB/RoCE v1``."""
    text = (text or "").strip().lower()
    return "v2" if text == "roce v2" else "v1" if "roce v1" in text else "ib" if text == "ib" else ""


def link_layer(text: str | None) -> str:
    """Return ``infiniband`` or ``ethernet``; what else a driver says, as it is."""
    return plain(text or "", 32).lower()


def counter(text: str | None) -> int | None:
    """Return a counter's value; None for ``N/A (no PMA)`` and whatever else is no number."""
    value = integer(text)
    return value if value is not None and value >= 0 else None


def counters(texts: Mapping[str, str | None]) -> tuple[dict[str, int], int]:
    """Return the counters that can be read, and how many cannot."""
    values = {name: counter(text) for name, text in texts.items()}
    known = {name: value for name, value in sorted(values.items()) if value is not None}
    return known, len(values) - len(known)
