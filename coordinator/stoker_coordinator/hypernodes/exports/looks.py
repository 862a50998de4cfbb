"""How a domain looks in a picture. Pure."""

from __future__ import annotations

from typing import Literal

from stoker_coordinator.hypernodes.model import HyperNode

Mood = Literal["healthy", "degraded", "down"]


_NEXT_TO_NONE = 0.1


def mood(domain: HyperNode) -> Mood:
    """Return how a domain is doing as a whole; it is down when next to none of its links are up."""
    if domain.capacity_gbps and domain.available_gbps < domain.capacity_gbps * _NEXT_TO_NONE:
        return "down"
    return (
        "degraded" if domain.unhealthy_node_count or domain.unhealthy_link_count or domain.uplinks_down else "healthy"
    )


def cut_off(domain: HyperNode) -> bool:
    """Say whether nothing gets through between a domain and what is above it."""
    return mood(domain) == "down" or 0 < domain.uplinks == domain.uplinks_down


def congested(domain: HyperNode) -> bool:
    """Say whether it counts as congested."""
    return any(each.type == "Congested" and each.status == "True" for each in domain.conditions)


def speed(gbps: float) -> str:
    """Return a speed for people."""
    number, unit = (gbps / 1000, "Tb/s") if gbps >= 1000 else (gbps, "Gb/s")
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def counted(number: int, what: str, *, many: str = "") -> str:
    """Return a number of things for people."""
    return f"{number} {what}" if number == 1 else f"{number} {many or what + 's'}"


def heading(domain: HyperNode) -> list[str]:
    """Return what is told of a domain, in one or two lines."""
    fit = "" if domain.ready_nodes == domain.node_count else f" ({domain.ready_nodes} ready)"
    first = counted(domain.node_count, "node") + fit
    if domain.switches:
        first += f", {counted(len(domain.switches), 'switch', many='switches')}"
    second = []
    if domain.capacity_gbps:
        second.append(speed(domain.capacity_gbps))
    if domain.oversubscription is not None:
        second.append(f"{domain.oversubscription:g}:1 up")
    if domain.unhealthy_link_count:
        second.append(counted(domain.unhealthy_link_count, "bad link"))
    if domain.uplinks_down:
        second.append(f"{domain.uplinks_down} of {domain.uplinks} ways up down")
    return [first, ", ".join(second)] if second else [first]
