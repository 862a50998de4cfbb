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


Hold = Literal["", "NodeBusy", "RegistryBusy", "RegistryResting", "Backoff", "DiskPressure"]


@dataclass(frozen=True, slots=True)
class Decision:
    """``start``: keys in order; ``holds``: why each of the others waits; ``wake_at``: when time alone changes this."""

    start: tuple[str, ...]
    holds: Mapping[str, Hold]
    wake_at: float | None


def decide(
    waiting: Iterable[Waiting],
    running: Iterable[str],
    limits: Limits,
    resting: Mapping[str, float],
    *,
    pressure: bool,
    now: float,
) -> Decision:
    """Choose the pulls to start.

    ``running`` has the registry of every running pull; ``resting`` says until when a registry is left alone.
    """
    used = Counter(running)
    free = limits.node - used.total()
    start: list[str] = []
    holds: dict[str, Hold] = {}
    wake: list[float] = []
    for entry in sorted(waiting, key=lambda item: (-item.priority, item.sequence)):
        hold = _hold(entry, free, used, limits, resting, pressure=pressure, now=now)
        if not hold:
            start.append(entry.key)
            used[entry.registry] += 1
            free -= 1
            continue
        holds[entry.key] = hold
        if hold == "Backoff":
            wake.append(entry.not_before)
        elif hold == "RegistryResting":
            wake.append(max(resting[entry.registry], entry.not_before))
    return Decision(tuple(start), holds, min(wake, default=None))


def _hold(
    entry: Waiting,
    free: int,
    used: Mapping[str, int],
    limits: Limits,
    resting: Mapping[str, float],
    *,
    pressure: bool,
    now: float,
) -> Hold:
    if entry.not_before > now:
        return "Backoff"
    if resting.get(entry.registry, 0.0) > now:
        return "RegistryResting"
    if free <= 0:
        return "NodeBusy"
    if used.get(entry.registry, 0) >= limits.registry:
        return "RegistryBusy"
    if pressure:
        return "DiskPressure"
    return ""
