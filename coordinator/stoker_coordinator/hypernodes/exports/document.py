"""Trees as JSON: each fabric with its domains, the root first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stoker_coordinator.hypernodes.model import HyperNode, Wire


class FabricDocument(Wire, frozen=True):
    name: str
    root: str
    tiers: int
    node_count: int
    domains: tuple[HyperNode, ...]


class TopologyDocument(Wire, frozen=True):
    """All fabrics, by name."""

    version: int
    fabrics: tuple[FabricDocument, ...]


def document(domains: Iterable[HyperNode]) -> TopologyDocument:
    """Return *domains* as one document."""
    by_fabric: dict[str, list[HyperNode]] = {}
    for each in domains:
        by_fabric.setdefault(each.fabric, []).append(each)
    return TopologyDocument(version=1, fabrics=tuple(_fabric(name, by_fabric[name]) for name in sorted(by_fabric)))


def _fabric(name: str, domains: list[HyperNode]) -> FabricDocument:
    ordered = sorted(domains, key=lambda each: (-each.tier, each.name))
    top = ordered[0]
    return FabricDocument(name=name, root=top.name, tiers=top.tier, node_count=top.node_count, domains=tuple(ordered))


def encode(domains: Iterable[HyperNode]) -> bytes:
    """Return *domains* as JSON for people and programs."""
    return msgspec.json.format(msgspec.json.encode(document(domains)), indent=1) + b"\n"
