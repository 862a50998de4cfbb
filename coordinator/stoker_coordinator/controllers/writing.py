"""Writes of controllers: many at a time, one at a time for each object, tried again while the store fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from stoker_coordinator.errors import CoordinatorError, StoreClosed

_log = structlog.get_logger("controllers")
_FIRST_PAUSE, _LAST_PAUSE = 0.2, 10.0

Write = Callable[[], Awaitable[object]]
Done = Callable[[str], object]
REPLACED = "replaced"


class Writer:
    """`put` queues a write under a key; a later one for the same key takes the place of one that has not begun.

    A write looks at things when it runs, so the last one is as good as all of them. Each *done* is called once: with
    "" when it was written, with why not when it never will be, "replaced" among them.
    """

    def __init__(self, width: int = 64) -> None:
        self._width = width
        self._waiting: dict[Any, tuple[Write, Done]] = {}
        self._running: set[Any] = set()
        self._ready: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, key: Any, write: Write, done: Done = lambda _: None) -> None:
        """Have *write* done soon; it does not begin before the caller waits for something."""
        replaced = self._waiting.get(key)
        if replaced is None and key not in self._running:
            self._ready.put_nowait(key)
        self._waiting[key] = (write, done)
        if replaced is not None:
            replaced[1](REPLACED)

    def pending(self, key: Any) -> bool:
        return key in self._waiting or key in self._running

    async def run(self) -> None:
        """Write until cancelled; what is being written then may or may not be."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._width):
                group.create_task(self._work(), name=f"controllers: write {number}")

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            write, done = self._waiting.pop(key)
            self._running.add(key)
            try:
                problem = await self._try(key, write)
            finally:
                self._running.discard(key)
            done(problem)
            if key in self._waiting:
                self._ready.put_nowait(key)

    async def _try(self, key: Any, write: Write) -> str:
        pause = _FIRST_PAUSE
        while True:
            try:
                await write()
            except StoreClosed as error:
                return error.message
            except CoordinatorError as error:
                _log.warning("cannot be written", what=str(key), why=error.message, again=error.retryable)
                if not error.retryable:
                    return error.message
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_PAUSE)
                if key in self._waiting:
                    return REPLACED
            else:
                return ""
