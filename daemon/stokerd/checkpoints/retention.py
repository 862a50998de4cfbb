"""Which checkpoints are to go, by age, number and size. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec


class Kept(msgspec.Struct, frozen=True):
    """A complete checkpoint. One ``in_use`` (a clone still takes its memory from it) or ``pinned`` never goes."""

    id: str
    created_at: datetime
    bytes: int
    in_use: bool = False
    pinned: bool = False


class Limits(msgspec.Struct, frozen=True):
    """0 and None: no such limit."""

    age: timedelta | None = None
    count: int = 0
    bytes: int = 0


def expired(kept: Iterable[Kept], limits: Limits, now: datetime) -> tuple[str, ...]:
    """Return the ids of those that are to be removed, the oldest first.

    What is pinned or in use counts towards the limits and stays, even when it alone exceeds them. The newest one
    goes for its age alone: a checkpoint that was just made would be gone at once.
    """
    oldest_first = sorted(kept, key=lambda each: (each.created_at, each.id))
    count, size = len(oldest_first), sum(each.bytes for each in oldest_first)
    gone: list[str] = []
    for each in oldest_first:
        if each.in_use or each.pinned:
            continue
        newest = each is oldest_first[-1]
        too_old = limits.age is not None and now - each.created_at > limits.age
        too_many = 0 < limits.count < count and not newest
        too_much = 0 < limits.bytes < size and not newest
        if too_old or too_many or too_much:
            gone.append(each.id)
            count, size = count - 1, size - each.bytes
    return tuple(gone)
