"""A server in a thread of its own, for tests that run the command line as it is: synchronous, in the main thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.unit.api.fakes import Api, running_api


class Served:
    """The server's fakes, and a way into its loop."""

    def __init__(self) -> None:
        self.api: Api
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="served")

    @property
    def socket(self) -> str:
        return str(self.api.socket)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what *function* returns in the server's loop, awaited if need be."""

        async def inside() -> Any:
            result = function(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(inside(), self.loop).result(20)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with running_api() as api:
            self.api = api
            self._ready.set()
            await self._stop.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def served() -> Iterator[Served]:
    """Serve fakes until the end of the block."""
    server = Served()
    server.start()
    try:
        yield server
    finally:
        server.stop()
