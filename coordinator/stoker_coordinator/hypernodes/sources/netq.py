"""What NetQ says: its graph of switches and hosts, and the NVLink domains of compute nodes (NMX). Pure.

NetQ knows switches and hosts by names. Hosts are what it does not count to a tier, or has only heard of by LLDP; links
within a tier say nothing of what is above what, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stoker.fabrics.fabric import own_name
from stoker.fabrics.foreign import Unreadable, plain
from stoker_coordinator.hypernodes.central import BY_NAME
from stoker_coordinator.hypernodes.model import NVLINK, ROCE, Attachment, Reading
from stoker_coordinator.hypernodes.sources.trunks import Trunks

_BETWEEN = "-*-"
_MOST = 200_000


def read(data: bytes | str, *, source: str = "netq", fabric: str = ROCE) -> Reading:
    """Return what a graph says of hosts and switches."""
    unread = Unreadable()
    graph = _Graph(unread)
    parts = _list(_decoded(data, unread), unread)
    for part in parts:
        for node in _dicts(part.get("nodes"), unread):
            graph.add_node(node)
    attachments: dict[tuple[str, str, str], Attachment] = {}
    trunks = Trunks()
    for part in parts:
        for link in _dicts(part.get("links"), unread):
            for one, other in graph.ends(link):
                _connect(graph, one, other, attachments, trunks)
    return Reading(
        source=source,
        fabric=fabric,
        attachments=tuple(attachments.values()),
        trunks=trunks.all(),
        names={f"{BY_NAME}{name.lower()}": name for name in graph.switches.values()},
        unread=unread.total,
        unnamed=sum(not own_name(name)[0] for name in graph.hosts.values()),
    )


def read_domains(data: bytes | str, *, source: str = "nmx") -> Reading:
    """Return the NVLink domains of compute nodes (``nmx/v1/compute-nodes``)."""
    unread = Unreadable()
    attachments = []
    for node in _dicts(_decoded(data, unread), unread):
        name, domain = own_name(_text(node, "Name"))[0], _text(node, "DomainUUID").lower()
        if name and domain.strip("0-"):
            attachments.append(Attachment(switch=domain, host=name))
        else:
            unread.add(f"compute node {_text(node, 'Name') or _text(node, 'ID')} has no name or no domain")
    return Reading(source=source, fabric=NVLINK, attachments=tuple(attachments), unread=unread.total)


def _connect(
    graph: _Graph,
    one: tuple[str, str],
    other: tuple[str, str],
    attachments: dict[tuple[str, str, str], Attachment],
    trunks: Trunks,
) -> None:
    (here, port), (there, its_port) = one, other
    if there in graph.hosts and here in graph.switches:
        (here, port), (there, its_port) = (there, its_port), (here, port)
    if here in graph.hosts and there in graph.switches:
        host = own_name(graph.hosts[here])[0]
        switch = f"{BY_NAME}{graph.switches[there].lower()}"
        attachments[here, port, switch] = Attachment(switch=switch, host=host, device=port, switch_port=its_port)
    elif here in graph.switches and there in graph.switches and graph.tiers[here] != graph.tiers[there]:
        trunks.add(f"{BY_NAME}{graph.switches[here].lower()}", f"{BY_NAME}{graph.switches[there].lower()}")


class _Graph:
    def __init__(self, unread: Unreadable) -> None:
        self.hosts: dict[str, str] = {}
        self.switches: dict[str, str] = {}
        self.tiers: dict[str, int] = {}
        self._unread = unread

    def add_node(self, node: Mapping[str, Any]) -> None:
        """Take a tier of nodes, or a node alone."""
        inner = node.get("compounded_nodes")
        if isinstance(inner, list) and inner:
            for each in _dicts(inner, self._unread):
                self.add_node(each)
            return
        found, name, tier = _text(node, "id"), _text(node, "name"), node.get("tier")
        if not found or not name or not isinstance(tier, int):
            if node.get("node_type") != "tier":
                self._unread.add(f"a node without id, name or tier: {found or name}")
            return
        if tier < 0 or _text(node, "device_type") in {"host", "server"}:
            self.hosts[found] = name
        else:
            self.switches[found], self.tiers[found] = name, tier

    def ends(self, link: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """Yield the ends of each cable of a link, as (node, interface)."""
        cables = [
            each for each in _dicts(link.get("compounded_links", []), self._unread) if _BETWEEN in _text(each, "id")
        ]
        for cable in cables or [link]:
            one, between, other = _text(cable, "id").partition(_BETWEEN)
            ends = (_end(one), _end(other))
            if not between or any(end[0] not in self.hosts and end[0] not in self.switches for end in ends):
                self._unread.add(f"a link between what is not there: {_text(cable, 'id')}")
            else:
                yield ends


def _end(text: str) -> tuple[str, str]:
    node, _, interface = text.partition(":")
    return node, interface


def _decoded(data: bytes | str, unread: Unreadable) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        unread.add("it is no JSON")
        return []


def _list(found: Any, unread: Unreadable) -> list[Mapping[str, Any]]:
    return list(_dicts([found] if isinstance(found, dict) else found, unread))


def _dicts(found: Any, unread: Unreadable) -> Iterator[Mapping[str, Any]]:
    if not isinstance(found, list):
        unread.add(f"not a list: {str(found)[:60]}")
        return
    for each in found[:_MOST]:
        if isinstance(each, dict):
            yield each
        else:
            unread.add(f"not an object: {str(each)[:60]}")


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return plain(value) if isinstance(value, str) else ""
