"""Events for those who follow a request: a slow reader gets its newest state, never a growing queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from stoker.objects.containers import RecreateEvent, RecreateStatus

Build = Callable[[], RecreateStatus]


class Hub:
    """Who follows which request."""

    def __init__(self) -> None:
        self._readers: dict[str, set[asyncio.Event]] = {}

    async def follow(self, request: str, build: Build) -> AsyncGenerator[RecreateEvent, None]:
        """Yield the request as *build* gives it, now and whenever it is told to have changed, until it has ended."""
        status = build()
        if status.phase == "Completed":
            yield RecreateEvent(recreate=status)
            return
        changed = asyncio.Event()
        self._readers.setdefault(request, set()).add(changed)
        try:
            while True:
                changed.clear()
                status = build()
                yield RecreateEvent(recreate=status)
                if status.phase == "Completed":
                    return
                await changed.wait()
        finally:
            readers = self._readers.get(request, set())
            readers.discard(changed)
            if not readers:
                self._readers.pop(request, None)

    def tell(self, request: str) -> None:
        """Say that a request has changed."""
        for changed in self._readers.get(request, ()):
            changed.set()
