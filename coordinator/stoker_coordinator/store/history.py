"""The last changes, for those who watch, and for lists that began before them."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from typing import Any

from msgspec import Struct

from stoker.objects.meta import Key, Object
from stoker_coordinator.errors import Expired, StoreClosed
from stoker_coordinator.store.protocol import Event, EventType

_BATCH = 256
_SLACK = 1024


class Change(Struct, frozen=True):
    """One change of one object."""

    revision: int
    key: Key
    object: Object
    """As it is now; as it was last when it is gone."""
    old: Object | None
    gone: bool
    at: float
    """By the store's monotonic clock."""


def event_of(change: Change, meant: Callable[[Object], bool]) -> Event[Any] | None:
    """Return what a change is to somebody who watches for the objects that are *meant*. Pure."""
    was = change.old is not None and meant(change.old)
    now = not change.gone and meant(change.object)
    if not was and not now:
        return None
    kind: EventType = "MODIFIED" if was and now else "ADDED" if now else "DELETED"
    return Event(kind, change.revision, change.object, change.old)


class History:
    """The changes that are kept, oldest first; at most *limit*, none older than *age* seconds."""

    def __init__(self, *, limit: int, age: float, floor: int = 0) -> None:
        self._limit = limit
        self._age = age
        self._changes: list[Change] = []
        self._first = 0
        """Index of the oldest one that counts; what is before it is dropped in bulk."""
        self.floor = floor
        """What happened up to this revision is not known any more."""
        self.revision = floor
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def add(self, change: Change) -> None:
        """Take a change in. `wake` afterwards."""
        self._changes.append(change)
        self.revision = change.revision

    def wake(self) -> None:
        """Tell those who wait for changes."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def close(self) -> None:
        """Those who watch get StoreClosed."""
        self._closed = True
        self.wake()

    def trim(self, now: float) -> list[Change]:
        """Forget what is too much or too old, and return it."""
        end = max(self._first, len(self._changes) - self._limit)
        while end < len(self._changes) and self._changes[end].at < now - self._age:
            end += 1
        dropped = self._changes[self._first : end]
        if dropped:
            self._first = end
            self.floor = dropped[-1].revision
        if self._first > _SLACK and self._first * 2 > len(self._changes):
            del self._changes[: self._first]
            self._first = 0
        return dropped

    def backwards(self, revision: int) -> Iterator[Change]:
        """Yield the changes after *revision*, newest first. Expired when some of them are not known any more."""
        self._check(revision)
        for index in range(len(self._changes) - 1, self._first - 1, -1):
            if self._changes[index].revision <= revision:
                return
            yield self._changes[index]

    def _check(self, revision: int) -> None:
        if revision < self.floor:
            raise Expired(
                f"revision {revision} is too old: changes are known from {self.floor} on",
                hint="list the objects anew, and watch from the list's revision",
            )
        if revision > self.revision:
            raise Expired(
                f"revision {revision} is unknown: the last one is {self.revision}",
                hint="the store may have been restored from a copy; list the objects anew",
            )

    def _after(self, revision: int) -> list[Change]:
        start = bisect_right(self._changes, revision, lo=self._first, key=lambda change: change.revision)
        return self._changes[start : start + _BATCH]

    async def watch(
        self, since: int, kinds: Collection[str], meant: Callable[[Object], bool], bookmarks: float
    ) -> AsyncGenerator[Event[Any], None]:
        """As `Store.watch` says; *kinds* by name, none: all."""
        cursor, clock = since, asyncio.get_running_loop().time
        yielded = clock()
        while True:
            if self._closed:
                raise StoreClosed("the store is closing", hint="watch again once it is back")
            self._check(cursor)
            batch = self._after(cursor)
            for change in batch:
                cursor = change.revision
                event = event_of(change, meant) if not kinds or change.key.kind in kinds else None
                if event is not None:
                    yield event
                    yielded = clock()
            left = yielded + bookmarks - clock()
            # Whoever watches for little hears that all is well, however much else happens.
            if bookmarks and left <= 0:
                yield Event("BOOKMARK", cursor)
                yielded = clock()
            elif len(batch) == _BATCH:
                await asyncio.sleep(0)  # a long way through what is not meant holds nobody up
            elif not batch:
                await self._news(left if bookmarks else None)

    async def _news(self, timeout: float | None) -> None:
        """Wait for a change, at most so long."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return
        finally:
            self._waiting.discard(waiter)
