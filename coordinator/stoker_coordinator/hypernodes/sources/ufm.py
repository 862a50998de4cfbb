"""What UFM says of all ports: ``GET /ufmRest/resources/ports``. Pure.

A port without a peer, or whose link is down, has no switch: UFM writes ``N/A`` or nothing there. Hosts are told from
switches by what UFM calls them, and known by GUIDs; ``system_name`` counts as a host's name only if it is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.fabrics.fabric import own_name
from stoker.fabrics.foreign import Unreadable, guid, integer, plain
from stoker_coordinator.hypernodes.model import INFINIBAND, Attachment, Reading
from stoker_coordinator.hypernodes.sources.trunks import Trunks

PATH = "/ufmRest/resources/ports"
_NOTHING = frozenset(("", "n/a", "na", "none", "null", "unknown", "-"))
_UP = frozenset(("active", "linkup", "link up", "up", "5", "4"))
_SPEED = {"2.5": 2.5, "5": 5.0, "10": 10.0, "14": 14.0625, "25": 25.0, "50": 50.0, "100": 100.0, "200": 200.0}
_NAMED_SPEED = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR": 14.0625,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
_MOST_RECORDS = 500_000


def read(data: bytes | str, *, source: str = "ufm", fabric: str = INFINIBAND) -> Reading:
    """Return what an answer says of hosts and switches."""
    unread = Unreadable()
    records = _records(data, unread)
    reader = _Reader(unread)
    for record in records[:_MOST_RECORDS]:
        if isinstance(record, dict):
            reader.take(record)
        else:
            unread.add(str(record)[:200])
    return Reading(
        source=source,
        fabric=fabric,
        attachments=tuple(reader.attachments.values()),
        trunks=reader.trunks.all(),
        names=reader.names,
        unread=unread.total,
        unnamed=sum(not each.host for each in reader.attachments.values()),
    )


def _records(data: bytes | str, unread: Unreadable) -> list[Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        unread.add("the answer is no JSON: " + (data[:60] if isinstance(data, str) else repr(data[:60])))
        return []
    if isinstance(found, dict):  # one page, as newer versions give it
        found = next((found[key] for key in ("ports", "data", "results") if isinstance(found.get(key), list)), None)
    if not isinstance(found, list):
        unread.add("the answer is no list of ports")
        return []
    return found


def _text(record: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = record.get(name)
        if isinstance(value, str | int) and plain(str(value)).lower() not in _NOTHING:
            return plain(str(value))
    return ""


def _is_up(record: Mapping[str, Any]) -> bool:
    states = [_text(record, name).lower() for name in ("physical_state", "logical_state")]
    return all(state in _UP for state in states if state)


def _gbps(record: Mapping[str, Any]) -> float:
    width = integer(_text(record, "active_width").lower().rstrip("x")) or 0
    speed = _text(record, "active_speed")
    lane = _NAMED_SPEED.get(speed.upper()) or _SPEED.get(speed.lower().removesuffix("gbps").strip(), 0.0)
    return min(width, 12) * lane


def _node_of(record: Mapping[str, Any], port_name: str, *names: str) -> str:
    """Return the GUID of a node: ports are called after it (``248a0703008fa15c_25``), at either end of a link."""
    return guid(_text(record, port_name).partition("_")[0]) or guid(_text(record, *names))


class _Reader:
    def __init__(self, unread: Unreadable) -> None:
        self.attachments: dict[tuple[str, int], Attachment] = {}
        self.trunks = Trunks()
        self.names: dict[str, str] = {}
        self._unread = unread
        self._seen: set[tuple[str, str]] = set()

    def take(self, record: Mapping[str, Any]) -> None:
        """Read one port. Each link is there twice, from its two ends."""
        described = _text(record, "description").lower()
        own, peer = (
            _node_of(record, "name", "guid", "systemID"),
            _node_of(record, "peer", "peer_node_guid", "peer_guid"),
        )
        if not own or not described:
            self._unread.add(msgspec.json.encode(dict(record)).decode()[:200])
        elif "computer" in described or "host" in described or "hca" in described:
            self._host(record, peer)
        elif "switch" in described:
            if name := _text(record, "system_name", "node_description"):
                self.names.setdefault(own, name)
            if peer:
                self._trunk(record, own, peer)
        elif "gateway" not in described and "router" not in described:
            self._unread.add(f"a port of what is called {described}")

    def _host(self, record: Mapping[str, Any], switch: str) -> None:
        if not switch:
            return
        adapter = guid(_text(record, "guid", "systemID"))
        if name := _text(record, "peer_node_name"):
            self.names.setdefault(switch, name)
        named, device = own_name(_text(record, "node_description"))
        system = own_name(_text(record, "system_name").split(" ")[0])[0]
        number = integer(_text(record, "external_number", "number")) or 1
        self.attachments[adapter, number] = Attachment(
            switch=switch,
            host=named or system,
            guid=adapter,
            device=device,
            port=number,
            switch_port=_text(record, "peer_port_dname").rpartition(":")[2],
            gbps=_gbps(record),
            up=_is_up(record),
        )

    def _trunk(self, record: Mapping[str, Any], own: str, peer: str) -> None:
        here, there = _text(record, "name", "guid"), _text(record, "peer")
        if "computer" in _text(record, "peer_node_description").lower() or (there, here) in self._seen:
            return
        self._seen.add((here, there))
        self.trunks.add(own, peer, _gbps(record), up=_is_up(record))
