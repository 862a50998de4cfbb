"""Events for those who follow: a slow reader gets the newest state of each thing, never a growing queue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable

from stoker.objects.images import Event

Build = Callable[[], Event]


class Feed:
    """One reader's view. `put` replaces what waits under the same key; the event is built when it is read.

    Of more than *limit* things that wait, the oldest are dropped.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._pending: OrderedDict[Hashable, Build] = OrderedDict()
        self._some = asyncio.Event()
        self._ended = False

    def put(self, key: Hashable, build: Build) -> None:
        self._pending[key] = build
        if self._limit is not None and len(self._pending) > self._limit:
            self._pending.popitem(last=False)
        self._some.set()

    def end(self) -> None:
        """Let the reader stop once it has read what waits."""
        self._ended = True
        self._some.set()

    async def read(self) -> AsyncGenerator[Event, None]:
        while True:
            await self._some.wait()
            while self._pending:
                yield self._pending.popitem(last=False)[1]()
            if self._ended:
                return
            self._some.clear()


class Hub:
    """All feeds: those of single jobs, and those that watch the node."""

    MAX_WATCHED = 10_000
    """Things waiting in a watcher's feed before the oldest are dropped."""

    def __init__(self) -> None:
        self._jobs: dict[str, set[Feed]] = {}
        self._node: set[Feed] = set()
        self._serial = 0

    async def follow(self, job: str, first: Build, ended: Callable[[], bool]) -> AsyncGenerator[Event, None]:
        """Yield *first*, then what `tell_job` says of *job*, until `end_job`; *first* alone when it ended before."""
        if ended():
            yield first()
            return
        feed = Feed()
        self._jobs.setdefault(job, set()).add(feed)
        try:
            yield first()
            async for event in feed.read():
                yield event
        finally:
            feeds = self._jobs.get(job, set())
            feeds.discard(feed)
            if not feeds:
                self._jobs.pop(job, None)

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Yield everything that is told, from now on."""
        feed = Feed(self.MAX_WATCHED)
        self._node.add(feed)
        try:
            async for event in feed.read():
                yield event
        finally:
            self._node.discard(feed)

    def tell_job(self, job: str, key: Hashable, build: Build) -> None:
        for feed in self._jobs.get(job, ()):
            feed.put(key, build)
        for feed in self._node:
            feed.put((job, key), build)

    def end_job(self, job: str, last: Build) -> None:
        for feed in self._jobs.get(job, ()):
            feed.put("job", last)
            feed.end()
        for feed in self._node:
            feed.put((job, "job"), last)

    def tell_node(self, build: Build) -> None:
        """Tell the watchers of the node something that happened once, and must not be merged."""
        self._serial += 1
        for feed in self._node:
            feed.put(("node", self._serial), build)
