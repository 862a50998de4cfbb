"""Calls through the ports, with a deadline each; what a client has started outlives the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from stokerd.api.errors import DeadlineExceeded
from stokerd.errors import StokerError

log = structlog.get_logger("stokerd.api")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds."""

    health: float = 5.0
    """Then the answer is 503: a probe wants to know, not to wait."""
    body: float = 30.0
    """For a request's body to arrive."""
    call: float = 60.0
    plan: float = 300.0
    """A plan asks registries about every image that is not here."""


class Calls:
    """The calls that the HTTP requests of one server make."""

    def __init__(self) -> None:
        self._changes: set[asyncio.Task[Any]] = set()

    async def read(self, call: Awaitable[T], seconds: float) -> T:
        """Await a call that changes nothing: it is cancelled at the deadline and when the client goes away."""
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                return await call
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineExceeded(f"no answer within {seconds:g} s") from None

    async def change(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        """Await a call that changes something: it runs to its end whether or not somebody still waits for it."""
        task = asyncio.create_task(call, name="api-change")
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise
        if not done:
            task.add_done_callback(_report)
            raise DeadlineExceeded(
                f"not finished within {seconds:g} s",
                hint="stokerd is still at it; look at the state before you try again",
            )
        return task.result()

    async def drain(self, timeout: float) -> None:
        """Let the changes that are under way finish within *timeout* seconds, then cancel the rest."""
        if not self._changes:
            return
        _, late = await asyncio.wait(self._changes, timeout=timeout)
        for task in late:
            task.add_done_callback(_report)
            task.cancel()
        if late:
            await asyncio.wait(late)


def _report(task: asyncio.Task[Any]) -> None:
    """Nobody waits for the outcome any more, so a failure goes to the log."""
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, StokerError):
        log.warning("a request failed after its client had gone", reason=error.reason, error=error.message)
    elif error is not None:
        log.error("a request failed unexpectedly after its client had gone", exc_info=error)
