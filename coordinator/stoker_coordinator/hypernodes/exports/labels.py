"""A node's place as labels, in the keys of Topograph: those of its version 1, and the ones before. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from stoker_coordinator.hypernodes.model import NVLINK, HyperNode
from stoker_coordinator.hypernodes.naming import LONGEST, slug

TIER = "fabric.topograph.run/tier-"
ACCELERATOR = "accelerator.topograph.run/domain"
OLD = (
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/core",
)
OLD_ACCELERATOR = "network.topology.nvidia.com/accelerator"


def labels(
    domains: Iterable[HyperNode], *, fabric: str, old: bool = True, new: bool = True
) -> dict[str, dict[str, str]]:
    """Return the labels of each node: its domains of *fabric*, nearest first, and its NVLink domain."""
    found = list(domains)
    above = {each.name: each.parent for each in found}
    placed: dict[str, dict[str, str]] = {}
    for each in sorted(found, key=lambda each: (each.fabric, each.name)):
        if each.fabric not in {fabric, NVLINK}:
            continue
        own = _nvlink(each, old=old, new=new) if each.fabric == NVLINK else _tiers(each.name, above, old=old, new=new)
        for member in each.members:
            if member.type == "Node":
                placed.setdefault(member.name, {}).update(own)
    return dict(sorted(placed.items()))


def _tiers(name: str, above: Mapping[str, str], *, old: bool, new: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    number = 0
    while name:
        if new:
            found[f"{TIER}{number}"] = value(name)
        if old and number < len(OLD):
            found[OLD[number]] = value(name)
        name, number = above.get(name, ""), number + 1
    return found


def _nvlink(domain: HyperNode, *, old: bool, new: bool) -> dict[str, str]:
    name = value(domain.switches[0].id if domain.switches else domain.name)
    return {**({ACCELERATOR: name} if new else {}), **({OLD_ACCELERATOR: name} if old else {})}


def value(text: str) -> str:
    """Return *text* as a label's value: at most 63 characters, with a letter or digit at either end."""
    if (
        len(text) <= LONGEST
        and all((char.isalnum() and char.isascii()) or char in "-_." for char in text)
        and (text[:1].isalnum() and text[-1:].isalnum())
    ):
        return text
    return slug(text) or hashlib.sha256(text.encode()).hexdigest()[:16]
