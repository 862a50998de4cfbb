"""Event streams that a test feeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Generic, TypeVar

E = TypeVar("E")


class Feed(Generic[E]):
    """An iterator of events that a test feeds, and that notes when it was closed."""

    def __init__(self, first: Sequence[E] = ()) -> None:
        self._queue: asyncio.Queue[E | Exception | None] = asyncio.Queue()
        self.started = asyncio.Event()
        self.closed = asyncio.Event()
        self.taken = 0
        for event in first:
            self._queue.put_nowait(event)

    def put(self, event: E | Exception | None) -> None:
        """None ends the stream; an exception is raised in it."""
        self._queue.put_nowait(event)

    async def __call__(self) -> AsyncIterator[E]:
        self.started.set()
        try:
            while True:
                event = await self._queue.get()
                if event is None:
                    return
                if isinstance(event, Exception):
                    raise event
                self.taken += 1
                yield event
        finally:
            self.closed.set()
