"""Barriers and failures on demand, by place and in the order in which they were asked for.

A place is a call (``images.Get``, ``cri.PullImage``) or a stage of a pull (``resolve``, ``layer``, ``unpack:0``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from stokerd.errors import StokerError


class Hold:
    """A barrier: whoever comes to its place waits there until `release`. `reached` is set by the first who comes."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.waiting = 0

    def release(self) -> None:
        """Let through all who wait and all who will come."""
        self.released.set()

    async def pass_through(self) -> None:
        self.waiting += 1
        self.reached.set()
        try:
            await self.released.wait()
        finally:
            self.waiting -= 1


@dataclass(slots=True, eq=False)
class _Rule:
    place: str
    reference: str
    after: int
    times: int
    error: StokerError | str | None = None
    hold: Hold | None = None
    seen: set[object] = field(default_factory=set)
    """Attempts that have failed by this rule: the layers of one pull run side by side and fail once."""

    def concerns(self, places: Collection[str], reference: str) -> bool:
        return self.times > 0 and self.place in places and self.reference in {"", reference}


class Script:
    """What is to go wrong."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def fail(
        self, place: str, error: StokerError | str, *, reference: str = "", after: int = 0, times: int = 1
    ) -> None:
        """Fail the next *times* passes of *place*, with the error itself, or with one of that text."""
        self._rules.append(_Rule(place, reference, after, times, error=error))

    def hold(self, place: str, *, reference: str = "", after: int = 0, times: int = 1 << 30) -> Hold:
        """Stop whoever comes to *place* until the returned barrier is released."""
        hold = Hold()
        self._rules.append(_Rule(place, reference, after, times, hold=hold))
        return hold

    def clear(self) -> None:
        """Forget all rules, and let all who wait go on."""
        rules, self._rules = self._rules, []
        for rule in rules:
            if rule.hold is not None:
                rule.hold.release()

    def next_stop(self, places: Collection[str], reference: str, offset: int) -> int | None:
        """Return the first number of bytes after *offset* at which some rule wants to be asked."""
        return min((r.after for r in self._rules if r.after > offset and r.concerns(places, reference)), default=None)

    async def due(
        self, places: Collection[str], *, reference: str = "", offset: int = 0, visitor: object = None
    ) -> StokerError | str | None:
        """Wait at the barriers of this place; return the failure that is due.

        A *visitor*, which stands for one attempt, fails by each rule once.
        """
        for rule in list(self._rules):
            if not rule.concerns(places, reference) or offset < rule.after or visitor in rule.seen:
                continue
            rule.times -= 1
            if rule.hold is not None:
                await rule.hold.pass_through()
            if rule.error is not None:
                if visitor is not None:
                    rule.seen.add(visitor)
                return rule.error
        return None
