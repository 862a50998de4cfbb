"""Which pulls start now. Pure: from the queue, the limits and the time it names those to start and when to look again.

Priorities order the queue, the time of asking breaks ties. A limit holds for the node and for each registry; a registry
that answered 429 rests as a whole; while the disk is under pressure, or the runtime is away, nothing new starts.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

WINDOW = 32
"""How many of a registry's best are looked at when the next pull is chosen."""
_SUFFIX = re.compile(r"[-_.][^-_.]*$")


class Waiting(msgspec.Struct, frozen=True):
    """A pull in the queue. ``not_before`` is a time of the caller's monotonic clock, in seconds."""

    key: str
    registry: str
    priority: int
    sequence: int
    not_before: float = 0.0
    family: str = ""


class Limits(msgspec.Struct, frozen=True):
    """Pulls at one time: on the node, and from any one registry."""

    node: int
    registry: int


class Room(msgspec.Struct, frozen=True):
    """What the node's state allows: pulls that run by registry, registries that rest until a time, and the rest.

    ``families``: those of the pulls that run.
    """

    running: Mapping[str, int]
    resting: Mapping[str, float]
    pressure: bool = False
    runtime_ready: bool = True
    families: Collection[str] = frozenset()


Hold = Literal["", "RuntimeDown", "Backoff", "RegistryResting", "NodeBusy", "RegistryBusy", "DiskPressure"]


class Decision(msgspec.Struct, frozen=True):
    """``start``: keys in order; ``wake_at``: when time alone changes the answer, None when it does not."""

    start: tuple[str, ...] = ()
    wake_at: float | None = None


def decide(waiting: Iterable[Waiting], limits: Limits, room: Room, now: float) -> Decision:
    """Choose the pulls to start. A long queue is gone through once, and not at all while nothing can start."""
    used = Counter(room.running)
    free = limits.node - used.total()
    if free <= 0 or room.pressure or not room.runtime_ready:
        return Decision()  # until a pull ends, the disk calms down or the runtime is back
    due: defaultdict[str, list[Waiting]] = defaultdict(list)
    later: dict[str, float] = {}
    for entry in waiting:
        registry = entry.registry
        if used[registry] >= limits.registry:
            continue
        at = due_at(entry, room)
        if at <= now:
            due[registry].append(entry)
        else:
            later[registry] = min(at, later.get(registry, at))
    best = sorted(
        (entry for entries in due.values() for entry in heapq.nsmallest(WINDOW, entries, key=_order)), key=_order
    )
    start = _choose(best, free, used, limits, room)
    wake: Iterable[float] = ()
    if len(start) < free:
        wake = (at for registry, at in later.items() if used[registry] < limits.registry)
    return Decision(tuple(entry.key for entry in start), min(wake, default=None))


def _choose(best: list[Waiting], free: int, used: Counter[str], limits: Limits, room: Room) -> list[Waiting]:
    """Choose up to *free* of *best*, and count them in *used*.

    Among those of the highest rank, one of a family that does not run is taken first: images of one family mostly share
    their base, and pulling two of them at a time is waiting for the same layers twice. As soon as a family no longer
    runs, its next is as good as any, so nobody is passed over for long.
    """
    start: list[Waiting] = []
    families = set(room.families)
    while len(start) < free:
        open_ones = [entry for entry in best if used[entry.registry] < limits.registry]
        if not open_ones:
            break
        rank = open_ones[0].priority
        fresh = (entry for entry in open_ones if entry.priority == rank and entry.family not in families)
        chosen = next(fresh, open_ones[0])
        best.remove(chosen)
        start.append(chosen)
        used[chosen.registry] += 1
        families |= {chosen.family} - {""}
    return start


def family_of(repository: str) -> str:
    """Return what images that were probably built on one base have in common: ``team/app-web`` → ``team/app``.

    *repository* is the name without tag and digest, host included. Tags of one repository are always one family.
    """
    path, slash, last = repository.rpartition("/")
    stem = _SUFFIX.sub("", last) or last
    return f"{path}{slash}{stem}"


def _order(entry: Waiting) -> tuple[int, int]:
    return -entry.priority, entry.sequence


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
