"""Which pulls start now. Pure: from the queue, the limits and the time it names those to start and when to look again.

Priorities order the queue, the time of asking breaks ties. A limit holds for the node and for each registry; a registry
that answered 429 rests as a whole; while the disk is under pressure nothing new starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pull in the queue. ``not_before`` is a time of the caller's monotonic clock, in seconds."""

    key: str
    registry: str
    priority: int
    sequence: int
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Pulls at one time: on the node, and from any one registry."""

    node: int
    registry: int


@dataclass(frozen=True, slots=True)
class Room:
    """What the node's state allows: pulls that run by registry, registries that rest until a time, and the rest."""

    running: Mapping[str, int]
    resting: Mapping[str, float]
    pressure: bool = False
    runtime_ready: bool = True


Hold = Literal["", "RuntimeDown", "Backoff", "RegistryResting", "NodeBusy", "RegistryBusy", "DiskPressure"]


@dataclass(frozen=True, slots=True)
class Decision:
    """``start``: keys in order; ``wake_at``: when time alone changes the answer, None when it does not."""

    start: tuple[str, ...]
    wake_at: float | None


def decide(waiting: Iterable[Waiting], limits: Limits, room: Room, now: float) -> Decision:
    """Choose the pulls to start."""
    entries = list(waiting)
    wake_at = min((due for entry in entries if (due := due_at(entry, room)) > now), default=None)
    used = Counter(room.running)
    start: list[str] = []
    free = limits.node - used.total()
    if free <= 0 or room.pressure or not room.runtime_ready:
        return Decision((), wake_at)
    for entry in sorted(entries, key=lambda item: (-item.priority, item.sequence)):
        if due_at(entry, room) > now or used[entry.registry] >= limits.registry:
            continue
        start.append(entry.key)
        used[entry.registry] += 1
        free -= 1
        if free == 0:
            break
    return Decision(tuple(start), wake_at)


def due_at(entry: Waiting, room: Room) -> float:
    """Return the time from which nothing but limits holds the pull."""
    return max(entry.not_before, room.resting.get(entry.registry, 0.0))


def why(entry: Waiting, limits: Limits, room: Room, now: float) -> Hold:
    """Say what a pull waits for; empty when it could start."""
    if not room.runtime_ready:
        return "RuntimeDown"
    if entry.not_before > now:
        return "Backoff"
    if room.resting.get(entry.registry, 0.0) > now:
        return "RegistryResting"
    if sum(room.running.values()) >= limits.node:
        return "NodeBusy"
    if room.running.get(entry.registry, 0) >= limits.registry:
        return "RegistryBusy"
    return "DiskPressure" if room.pressure else ""
