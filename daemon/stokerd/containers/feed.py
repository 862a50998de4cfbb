"""Events for those who follow a request: a slow reader gets its newest state, never a growing queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from stoker.objects.containers import RecreateEvent, RecreateStatus

Build = Callable[[], RecreateStatus]


class _Reader:
    def __init__(self) -> None:
        self.changed = asyncio.Event()


class Hub:
    """Who follows which request."""

    def __init__(self) -> None:
        self._readers: dict[str, set[_Reader]] = {}

    async def follow(self, request: str, build: Build) -> AsyncGenerator[RecreateEvent, None]:
        """Yield the request as *build* gives it, now and whenever it is told to have changed, until it has ended."""
        status = build()
        if status.phase == "Completed":
            yield RecreateEvent(recreate=status)
            return
        reader = _Reader()
        self._readers.setdefault(request, set()).add(reader)
        try:
            while True:
                reader.changed.clear()
                status = build()
                yield RecreateEvent(recreate=status)
                if status.phase == "Completed":
                    return
                await reader.changed.wait()
        finally:
            readers = self._readers.get(request, set())
            readers.discard(reader)
            if not readers:
                self._readers.pop(request, None)

    def tell(self, request: str) -> None:
        """Say that a request has changed."""
        for reader in self._readers.get(request, ()):
            reader.changed.set()
