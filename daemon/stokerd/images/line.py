"""The pulls that wait, in order, so that choosing among very many costs next to nothing. No event loop, no clock.

`queue.decide` looks at every pull that it is given. Of a long line only a few can be its answer: the best few of each
registry, and the one of each registry that becomes due next. These are kept at hand here.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from stokerd.images.queue import Waiting

_SLACK = 1000
"""Entries that no longer hold are dropped when they come up, or when there are so many more of them than others."""


@dataclass(slots=True)
class _Registry:
    """One registry's part of the line: those that are due by rank, the others by time."""

    due: list[tuple[int, int, int, Waiting]] = field(default_factory=list)
    later: list[tuple[float, int, Waiting]] = field(default_factory=list)


class Line:
    """All that waits, by key."""

    def __init__(self) -> None:
        self._entries: dict[str, Waiting] = {}
        self._registries: dict[str, _Registry] = {}
        self._held = 0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Waiting) -> None:
        """Add a pull, or note that it has changed."""
        if self._entries.get(entry.key) == entry:
            return
        self._entries[entry.key] = entry
        self._keep(entry)
        if self._held > 2 * len(self._entries) + _SLACK:
            self._registries, self._held = {}, 0
            for known in self._entries.values():
                self._keep(known)

    def take(self, key: str) -> None:
        """Let a pull leave the line; one that is not in it is no error."""
        self._entries.pop(key, None)

    def foremost(self, count: int, now: float) -> list[Waiting]:
        """Return the *count* best of each registry that are due, and the one of each registry that is due next."""
        found: list[Waiting] = []
        for name, registry in list(self._registries.items()):
            found += self._of(registry, count, now)
            if not registry.due and not registry.later:
                del self._registries[name]
        return found

    def _of(self, registry: _Registry, count: int, now: float) -> list[Waiting]:
        while registry.later and (registry.later[0][0] <= now or not self._holds(registry.later[0][2])):
            entry = heapq.heappop(registry.later)[2]
            self._held -= 1
            if self._holds(entry):
                self._rank(registry, entry)
        best: list[tuple[int, int, int, Waiting]] = []
        while registry.due and len(best) < count:
            ranked = heapq.heappop(registry.due)
            if self._holds(ranked[3]):
                best.append(ranked)
            else:
                self._held -= 1
        for ranked in best:
            heapq.heappush(registry.due, ranked)
        return [ranked[3] for ranked in best] + [timed[2] for timed in registry.later[:1]]

    def _holds(self, entry: Waiting) -> bool:
        return self._entries.get(entry.key) is entry

    def _keep(self, entry: Waiting) -> None:
        registry = self._registries.setdefault(entry.registry, _Registry())
        self._serial += 1
        heapq.heappush(registry.later, (entry.not_before, self._serial, entry))
        self._held += 1

    def _rank(self, registry: _Registry, entry: Waiting) -> None:
        self._serial += 1
        heapq.heappush(registry.due, (-entry.priority, entry.sequence, self._serial, entry))
        self._held += 1
