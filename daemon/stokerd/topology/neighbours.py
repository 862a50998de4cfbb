"""Who is at the other end of an Ethernet link, as it says itself by LLDP. Pure.

An LLDP frame is a claim of whoever is on the wire: a switch, another host, a hypervisor's virtual switch, or the
firmware of our own adapter. They are told apart here, and nobody's claims grow without limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

NeighbourKind = Literal["switch", "host", "virtual", "self", "unknown"]
MOST_PER_INTERFACE = 8
"""Neighbours kept of one interface. A wire whose switch passes LLDP on may show some, a hostile one thousands."""

_VIRTUAL_PORT = re.compile(
    r"(?:vnet|tap|veth|vif|virbr|vmnic|vethernet|dvportgroup|fwpr|cali|lxc)[\d./-]*\b", re.IGNORECASE
)
_VIRTUAL_WORDS = re.compile(
    r"open ?v(?:irtual )?switch|\bovs\b|vmware|\besxi?\b|hyper-?v|hypervisor|\bkvm\b|\bqemu\b", re.IGNORECASE
)
_VIRTUAL_MACS = ("52:54:00", "00:50:56", "00:0c:29", "00:15:5d", "00:16:3e", "08:00:27")


class Neighbour(msgspec.Struct, frozen=True):
    """What one LLDP agent says. ``capabilities`` are the enabled ones, None where it does not say."""

    chassis: str
    chassis_type: str = ""
    port: str = ""
    port_type: str = ""
    name: str = ""
    description: str = ""
    port_description: str = ""
    management: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None
    vlan: int | None = None
    vlan_names: tuple[str, ...] = ()
    aggregated: bool | None = None
    aggregate: int | None = None
    frame_size: int | None = None
    ttl: int = 120

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What makes two frames be about the same neighbour."""
        return self.chassis_type, self.chassis, self.port_type, self.port


def kind_of(neighbour: Neighbour, own_macs: Iterable[str] = ()) -> tuple[NeighbourKind, str]:
    """Return what a neighbour is, and why we think so. *own_macs*: this node's, in lower case with colons."""
    macs = set(own_macs)
    if neighbour.chassis in macs or (neighbour.port in macs and neighbour.port_type == "mac"):
        return "self", "its MAC address is one of this node's: an adapter's own firmware, or a loop"
    for what, text in (("its port", neighbour.port), ("its port", neighbour.port_description)):
        if _VIRTUAL_PORT.match(text):
            return "virtual", f"{what} is called {text}"
    words = _VIRTUAL_WORDS.search(neighbour.description)
    if words:
        return "virtual", f"it calls itself {words[0]}"
    if neighbour.chassis_type == "local" and _VIRTUAL_WORDS.search(neighbour.chassis):
        return "virtual", f"its chassis is called {neighbour.chassis}"
    if neighbour.chassis_type == "mac" and neighbour.chassis.startswith(_VIRTUAL_MACS):
        return "virtual", f"its MAC address {neighbour.chassis} is a virtual machine's"
    enabled = neighbour.capabilities
    if enabled is None:
        return "unknown", "it does not say what it can do"
    forwards = [name for name in ("Bridge", "Router") if name in enabled]
    if forwards:
        return "switch", f"it says that it is a {' and '.join(forwards).lower()}"
    return "host", "it says that it forwards nothing"


class _Heard(msgspec.Struct, frozen=True):
    neighbour: Neighbour
    until: float


class Hearsay(msgspec.Struct, frozen=True):
    """What was heard on all interfaces, and until when it holds. ``refused``: neighbours beyond the limit."""

    heard: Mapping[str, tuple[_Heard, ...]] = {}
    refused: int = 0

    def hear(self, interface: str, neighbour: Neighbour, now: float) -> Hearsay:
        """Take what *neighbour* said on *interface* at *now*; a lifetime of 0 is its farewell."""
        others = tuple(
            each
            for each in self.heard.get(interface, ())
            if each.neighbour.identity != neighbour.identity and each.until > now
        )
        if neighbour.ttl <= 0:
            return self._with(interface, others, self.refused)
        if len(others) >= MOST_PER_INTERFACE:
            return self._with(interface, others, self.refused + 1)
        return self._with(interface, (*others, _Heard(neighbour, now + neighbour.ttl)), self.refused)

    def forget(self, interface: str) -> Hearsay:
        """Drop what was heard on an interface whose link went down."""
        return self._with(interface, (), self.refused)

    def at(self, now: float) -> dict[str, tuple[Neighbour, ...]]:
        """Return who is there at *now*, by interface, in a stable order."""
        alive = {
            interface: tuple(
                sorted((each.neighbour for each in heard if each.until > now), key=lambda each: each.identity)
            )
            for interface, heard in sorted(self.heard.items())
        }
        return {interface: found for interface, found in alive.items() if found}

    def _with(self, interface: str, heard: tuple[_Heard, ...], refused: int) -> Hearsay:
        rest = {name: found for name, found in self.heard.items() if name != interface}
        return Hearsay({**rest, interface: heard} if heard else rest, refused)
