"""How a domain looks in a picture. Pure."""

from __future__ import annotations

from typing import Literal

from stoker_coordinator.hypernodes.model import HyperNode

Mood = Literal["healthy", "degraded", "down"]


def mood(domain: HyperNode) -> Mood:
    """Return how a domain is doing as a whole; it is down when none of its links is up."""
    if domain.link_count and domain.capacity_gbps and not domain.available_gbps:
        return "down"
    return "degraded" if domain.unhealthy_node_count or domain.unhealthy_link_count else "healthy"


def congested(domain: HyperNode) -> bool:
    """Say whether it counts as congested."""
    return any(each.type == "Congested" and each.status == "True" for each in domain.conditions)


def speed(gbps: float) -> str:
    """Return a speed for people."""
    return f"{gbps / 1000:.3g} Tb/s" if gbps >= 1000 else f"{gbps:.3g} Gb/s"


def heading(domain: HyperNode) -> list[str]:
    """Return what is told of a domain, in one or two lines."""
    fit = "" if domain.ready_nodes == domain.node_count else f" ({domain.ready_nodes} ready)"
    first = f"{domain.node_count} nodes{fit}"
    if domain.switches:
        first += f", {len(domain.switches)} switch{'es' if len(domain.switches) > 1 else ''}"
    second = []
    if domain.capacity_gbps:
        second.append(speed(domain.capacity_gbps))
    if domain.oversubscription is not None:
        second.append(f"{domain.oversubscription:g}:1 up")
    if domain.unhealthy_link_count:
        second.append(f"{domain.unhealthy_link_count} bad links")
    return [first, ", ".join(second)] if second else [first]
