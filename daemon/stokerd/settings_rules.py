"""Rules, labels and addresses as they are written in the configuration, one text each. Pure.

A rule says what a network interface is for, then by what it is known: ``storage name=ens*f0np0 vlan=100``. What it
leaves open matches everything.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any

USES = ("compute", "storage", "management", "unknown")
_NODE_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_ADDRESS = re.compile(r"unix:/.+|(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):\d{1,5}")
_LABEL = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?)=(\S.{0,62}|)")


def parse_rule(text: str) -> dict[str, Any]:
    """Return a rule's fields, as `topology.classes.UseRule` has them. ValueError says what is wrong."""
    use, *conditions = text.split()[:16] or [""]
    if use not in USES:
        raise ValueError(f"{text!r} does not begin with one of {', '.join(USES)}")
    fields: dict[str, Any] = {"use": use}
    for condition in conditions:
        name, equals, value = condition.partition("=")
        kind = _CONDITIONS.get(name)
        if kind is None or not equals or not value:
            raise ValueError(f"{condition!r} is none of {', '.join(f'{each}=' for each in _CONDITIONS)}")
        field, read = kind
        try:
            fields[field] = read(value)
        except ValueError as error:
            raise ValueError(f"{condition!r}: {error}") from None
    return fields


def _number(value: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", value):
        raise ValueError("not a number of Gb/s")
    return float(value)


def _vlan(value: str) -> int:
    if not re.fullmatch(r"\d{1,4}", value) or not 0 < int(value) < 4095:
        raise ValueError("not a VLAN, 1 to 4094")
    return int(value)


def _layer(value: str) -> str:
    if value not in {"infiniband", "ethernet"}:
        raise ValueError("not infiniband or ethernet")
    return value


def _subnet(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise ValueError("not a subnet such as 10.1.0.0/16") from None


def _yes(value: str) -> bool:
    if value not in {"yes", "no"}:
        raise ValueError("not yes or no")
    return value == "yes"


_CONDITIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("name", str),
    "vlan": ("vlan", _vlan),
    "layer": ("layer", _layer),
    "least-gbps": ("least_gbps", _number),
    "most-gbps": ("most_gbps", _number),
    "subnet": ("subnet", _subnet),
    "near-gpu": ("near_gpu", _yes),
}


def parse_label(text: str) -> tuple[str, str]:
    """Return a label's name and value; ValueError."""
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not name=value, as in rack=r12")
    return match[1], match[2]


def problems(rules: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return what is wrong with the texts, each with its place."""
    found = []
    for name, texts, parse in (("rules", rules, parse_rule), ("labels", labels, parse_label)):
        for number, text in enumerate(texts, start=1):
            try:
                parse(text)
            except ValueError as error:
                found.append(f"topology.{name}: number {number}: {error}")
    return found


def uplink_problems(coordinator: str, ca: str, node: str) -> list[str]:
    """Return what is wrong with how the coordinator is to be reached."""
    found = []
    if coordinator and _ADDRESS.fullmatch(coordinator) is None:
        found.append(f"uplink.coordinator: {coordinator!r} is neither host:port nor unix:/path")
    elif coordinator and not ca and not is_local(coordinator):
        found.append("uplink.ca: missing; only a loopback address or a unix socket may be without TLS")
    if node and _NODE_NAME.fullmatch(node) is None:
        found.append(f"uplink.node: {node!r} is no name for a node: lower-case letters, digits, hyphens and dots")
    return found


def is_local(address: str) -> bool:
    """Say whether an address cannot be reached from another machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
