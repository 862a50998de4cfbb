"""What ``lldpcli -f json show neighbors`` prints (``json0``, too). Pure.

Things come in several shapes: one interface is an object, several are a list; a chassis that has a name is under
that name, one that has none is not; one address is a string, two are a list; ``json0`` makes everything a list of
objects with a ``value``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from stoker.fabrics.foreign import Unread, Unreadable, decode, integer, plain
from stokerd.topology.neighbours import Neighbour

LONGEST = 8 << 20
_MOST_LISTED = 16


class LldpNeighbours(msgspec.Struct, frozen=True):
    """Who is where: pairs of interface and neighbour, in the order of the output."""

    pairs: tuple[tuple[str, Neighbour], ...] = ()
    unread: Unread = Unread()


def parse(data: bytes | str) -> LldpNeighbours:
    """Return the neighbours in an output of lldpcli. Never raises."""
    unread = Unreadable()
    try:
        document = msgspec.json.decode(decode(data[:LONGEST]))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        unread.add(f"not JSON: {error}")
        return LldpNeighbours(unread=unread.total)
    top = _first(document.get("lldp")) if isinstance(document, dict) else None
    if not isinstance(top, dict):
        unread.add("it has no part called lldp")
        return LldpNeighbours(unread=unread.total)
    pairs = []
    for interface, body in _interfaces(top.get("interface")):
        neighbour = _neighbour(body) if isinstance(body, dict) else None
        if neighbour is None or not interface:
            unread.add(f"{interface}: {body}")
        else:
            pairs.append((plain(interface, 32), neighbour))
    return LldpNeighbours(tuple(pairs), unread.total)


def _interfaces(part: Any) -> Iterator[tuple[str, Any]]:
    for item in part if isinstance(part, list) else [part]:
        if isinstance(item, dict) and isinstance(item.get("name"), str) and "chassis" in item:
            yield item["name"], item  # json0
        elif isinstance(item, dict):
            yield from item.items()
        elif item is not None:
            yield "", item


def _neighbour(body: dict[str, Any]) -> Neighbour | None:
    name, chassis = _named_chassis(_first(body.get("chassis")))
    port = _first(body.get("port"))
    if chassis is None or not isinstance(port, dict):
        return None
    identity, port_identity = _identity(chassis), _identity(port)
    if not identity[1]:
        return None
    vlans = [vlan for vlan in _listed(body.get("vlan")) if isinstance(vlan, dict)]
    primary = next((vlan for vlan in vlans if vlan.get("pvid") is True), None)
    aggregation = _first(port.get("aggregation"))
    return Neighbour(
        chassis=identity[1],
        chassis_type=identity[0],
        port=port_identity[1],
        port_type=port_identity[0],
        name=name or _text(chassis.get("name")),
        description=_text(chassis.get("descr")),
        port_description=_text(port.get("descr")),
        management=tuple(filter(None, (_text(address) for address in _listed(chassis.get("mgmt-ip"))))),
        capabilities=_capabilities(chassis),
        vlan=integer(str(primary.get("vlan-id"))) if primary else None,
        vlan_names=tuple(filter(None, (_text(vlan.get("value")) for vlan in vlans))),
        aggregated=None if aggregation is None else True,
        aggregate=integer(_text(aggregation)) if aggregation is not None else None,
        frame_size=integer(_text(port.get("mfs"))),
        ttl=integer(_text(port.get("ttl"))) or integer(_text(chassis.get("ttl"))) or 120,
    )


def _named_chassis(chassis: Any) -> tuple[str, dict[str, Any] | None]:
    if not isinstance(chassis, dict):
        return "", None
    if "id" in chassis:
        return "", chassis
    if len(chassis) == 1:
        name, inner = next(iter(chassis.items()))
        inner = _first(inner)
        if isinstance(inner, dict) and "id" in inner:
            return plain(name), inner
    return "", None


def _identity(part: dict[str, Any]) -> tuple[str, str]:
    found = _first(part.get("id"))
    if not isinstance(found, dict):
        return "", ""
    kind, value = _text(found.get("type")), _text(found.get("value"))
    return kind, value.lower() if kind == "mac" else value


def _capabilities(chassis: dict[str, Any]) -> tuple[str, ...] | None:
    if "capability" not in chassis:
        return None
    return tuple(
        _text(item.get("type"))
        for item in _listed(chassis["capability"])
        if isinstance(item, dict) and item.get("enabled") is True
    )


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _listed(value: Any) -> list[Any]:
    return value[:_MOST_LISTED] if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str:
    value = _first(value)
    if isinstance(value, dict):
        value = value.get("value")
    return plain(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
