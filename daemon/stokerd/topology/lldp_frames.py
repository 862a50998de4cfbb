"""LLDP frames, byte by byte. Pure; made for frames that somebody hostile sends.

Source: IEEE 802.1AB-2016 clause 8 (TLVs), 802.1Q annex D (00-80-C2), 802.3 clause 79 (00-12-0F).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import msgspec

from stoker.fabrics.foreign import plain
from stokerd.topology.neighbours import Neighbour

ETHERTYPE = 0x88CC
LONGEST_FRAME = 9216
_CHASSIS_TYPES = {1: "component", 2: "ifalias", 3: "port", 4: "mac", 5: "ip", 6: "ifname", 7: "local"}
_PORT_TYPES = {1: "ifalias", 2: "component", 3: "mac", 4: "ip", 5: "ifname", 6: "circuit", 7: "local"}
_CAPABILITIES = (
    "Other", "Repeater", "Bridge", "Wlan", "Router", "Telephone", "Docsis", "Station", "Cvlan", "Svlan", "Tpmr",
)  # fmt: skip
_DOT1, _DOT3 = b"\x00\x80\xc2", b"\x00\x12\x0f"
_KNOWN = frozenset(((_DOT1, b"\x01"), (_DOT1, b"\x03"), (_DOT1, b"\x07"), (_DOT3, b"\x03"), (_DOT3, b"\x04")))
_MOST_MANAGEMENT, _MOST_VLANS = 4, 16


class LldpFrame(msgspec.Struct, frozen=True):
    """A frame: the neighbour that it tells of, or why it tells of none. ``unread``: TLVs that were not understood."""

    source: str = ""
    neighbour: Neighbour | None = None
    problem: str = ""
    unread: int = 0


def parse(frame: bytes) -> LldpFrame:
    """Return what an Ethernet frame says. Never raises."""
    if len(frame) < 14 or len(frame) > LONGEST_FRAME:
        return LldpFrame(problem="not the length of an LLDP frame")
    source = _mac(frame[6:12])
    start = 12
    while frame[start : start + 2] in {b"\x81\x00", b"\x88\xa8"}:
        start += 4
    if int.from_bytes(frame[start : start + 2]) != ETHERTYPE:
        return LldpFrame(source, problem="not an LLDP frame")
    reader = _Reader()
    problem = reader.read(frame[start + 2 :])
    return LldpFrame(source, None if problem else Neighbour(**reader.found), problem, reader.unread)


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.unread = 0

    def read(self, data: bytes) -> str:
        """Read all TLVs; return what is wrong with the frame as a whole, or nothing."""
        position = number = 0
        while position + 2 <= len(data):
            head = int.from_bytes(data[position : position + 2])
            kind, length = head >> 9, head & 0x1FF
            value = data[position + 2 : position + 2 + length]
            position += 2 + length
            if kind == 0:
                break
            if len(value) < length:
                self.unread += 1
                break
            if number < 3:
                if kind != number + 1 or not self._mandatory(kind, value):
                    return f"its {('chassis', 'port', 'lifetime')[number]} is missing or malformed"
            elif not self._optional(kind, value):
                self.unread += 1
            number += 1
        return "" if number >= 3 else f"its {('chassis', 'port', 'lifetime')[number]} is missing or malformed"

    def _mandatory(self, kind: int, value: bytes) -> bool:
        if kind == 3:
            self.found["ttl"] = int.from_bytes(value[:2])
            return len(value) >= 2
        if len(value) < 2 or len(value) > 256:
            return False
        types = _CHASSIS_TYPES if kind == 1 else _PORT_TYPES
        name = types.get(value[0])
        text = _identifier(name, value[1:])
        key = "chassis" if kind == 1 else "port"
        self.found[key], self.found[f"{key}_type"] = text, name or "other"
        return bool(text)

    def _optional(self, kind: int, value: bytes) -> bool:
        reader = _OPTIONAL.get(kind)
        if reader is not None:
            return reader(self, value)
        return kind == 127 and self._organisation(value)

    def _text(self, key: str, value: bytes) -> bool:
        self.found.setdefault(key, plain(value.decode("utf-8", errors="replace")))
        return True

    def _capabilities(self, value: bytes) -> bool:
        if len(value) < 4:
            return False
        enabled = int.from_bytes(value[2:4])
        self.found["capabilities"] = tuple(name for bit, name in enumerate(_CAPABILITIES) if enabled >> bit & 1)
        return True

    def _management(self, value: bytes) -> bool:
        length = value[0] if value else 0
        if length < 2 or len(value) < 1 + length:
            return False
        address = _address(value[1 : 1 + length])
        known = self.found.get("management", ())
        if address and address not in known and len(known) < _MOST_MANAGEMENT:
            self.found["management"] = (*known, address)
        return bool(address)

    def _organisation(self, value: bytes) -> bool:
        owner, kind, rest = value[:3], value[3:4], value[4:]
        if owner == _DOT1 and kind == b"\x01" and len(rest) >= 2:
            self.found["vlan"] = int.from_bytes(rest[:2]) & 0xFFF or None
        elif owner == _DOT1 and kind == b"\x03" and len(rest) >= 3 and len(rest) >= 3 + rest[2]:
            names = self.found.get("vlan_names", ())
            if len(names) < _MOST_VLANS:
                self.found["vlan_names"] = (*names, plain(rest[3 : 3 + rest[2]].decode("utf-8", errors="replace"), 32))
        elif (owner, kind) in {(_DOT1, b"\x07"), (_DOT3, b"\x03")} and len(rest) >= 5:
            self.found["aggregated"] = bool(rest[0] & 2)
            self.found["aggregate"] = int.from_bytes(rest[1:5]) or None
        elif owner == _DOT3 and kind == b"\x04" and len(rest) >= 2:
            self.found["frame_size"] = int.from_bytes(rest[:2])
        else:
            # Others' own TLVs are nothing that we miss; a broken one of these standards is.
            return len(value) >= 4 and (owner, kind) not in _KNOWN
        return True


_OPTIONAL: dict[int, Callable[[_Reader, bytes], bool]] = {
    4: lambda reader, value: reader._text("port_description", value),  # noqa: SLF001 - a table of its own methods
    5: lambda reader, value: reader._text("name", value),  # noqa: SLF001
    6: lambda reader, value: reader._text("description", value),  # noqa: SLF001
    7: _Reader._capabilities,  # noqa: SLF001
    8: _Reader._management,  # noqa: SLF001
}


def _identifier(kind: str | None, value: bytes) -> str:
    if kind == "mac" and len(value) == 6:
        return _mac(value)
    if kind == "ip":
        return _address(value) or value[:64].hex()
    text = plain(value.decode("utf-8", errors="replace"))
    return text if text and "\ufffd" not in text else value[:64].hex()


def _address(value: bytes) -> str:
    """Return an address behind its IANA family number; empty if it is of another family."""
    family, rest = value[0], value[1:]
    if family == 1 and len(rest) == 4:
        return str(ipaddress.IPv4Address(rest))
    if family == 2 and len(rest) == 16:
        return str(ipaddress.IPv6Address(rest))
    return _mac(rest) if family == 6 and len(rest) == 6 else ""


def _mac(value: bytes) -> str:
    return value.hex(":")
