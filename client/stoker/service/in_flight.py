"""What of an HTTP service is under way, for a stop to wait for or to end: requests, and streams that stay open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class InFlight:
    """Counts the requests under way, so that a stop can wait for them."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        self._count += 1
        self._idle.clear()

    def leave(self) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def wait_idle(self, timeout: float) -> bool:
        """Return whether the last request ended within *timeout* seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class OpenStreams:
    """The streams that are open. *count* is told their number."""

    def __init__(self, count: Callable[[int], object]) -> None:
        self._count = count
        self._open: set[asyncio.Timeout] = set()
        self.closing = False

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def one(self, until: float | None = None) -> AsyncIterator[None]:
        """Hold a stream open for as long as the block takes. It is left quietly when its time is over (*until*, on the
        loop's clock), when all are closed, and when the client goes away."""
        scope = asyncio.timeout_at(until)
        self._open.add(scope)
        self._count(len(self._open))
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        except ConnectionResetError:
            pass
        finally:
            self._open.discard(scope)
            self._count(len(self._open))

    def close(self) -> None:
        """End all of them. Whoever opens them looks at ``closing`` before."""
        self.closing = True
        now = asyncio.get_running_loop().time()
        for scope in self._open:
            scope.reschedule(now)
