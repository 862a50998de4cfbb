"""Calls that may hang, each in a thread of its own that keeps nobody: a driver may take its time, or never answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class StillHangs(Exception):
    """The last call has not come back yet, so there is no new one."""


class Blocking(Generic[T]):
    """Makes one kind of call, one at a time. A call that hangs costs a thread, and never a second one."""

    def __init__(self, name: str, function: Callable[..., T]) -> None:
        self._name = name
        self._function = function
        self._thread: threading.Thread | None = None

    async def call(self, timeout: float, *arguments: Any) -> T:
        """Return what the function returns. TimeoutError: it did not within *timeout* seconds; StillHangs."""
        if self._thread is not None and self._thread.is_alive():
            raise StillHangs
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def hand_over(result: T | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(cast("T", result))

        def work() -> None:
            result: T | None = None
            failure: Exception | None = None
            try:
                result = self._function(*arguments)
            except Exception as error:  # noqa: BLE001 - it is raised where it was called
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has been closed, and nobody waits any more
                loop.call_soon_threadsafe(hand_over, result, failure)

        # A daemon thread: an interpreter that ends does not wait for it.
        self._thread = threading.Thread(target=work, name=f"topology: {self._name}", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(timeout):
                return await answer
        finally:
            if answer.done() and not answer.cancelled():
                self._thread.join()  # it has handed over, and has nothing left to do
