"""A small SQLite database of a room's own, in a thread of its own: one call after another."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from stoker_coordinator.errors import StoreFailed

T = TypeVar("T")


class OneThread:
    """*thread*: where SQLite is called; None: a thread that is called *name*."""

    def __init__(self, path: Path, name: str, thread: Executor | None = None) -> None:
        self._path = path
        self._thread = thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, work: Callable[[], T]) -> T:
        """Return what *work* returns, in the thread. StoreFailed when SQLite or the disk fails, or after `end`."""
        try:
            # Shielded: a caller that goes away leaves the transaction to finish.
            return await asyncio.shield(asyncio.wrap_future(self._thread.submit(work)))
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(f"{self._path} failed: {error}", hint="is its file system full or read-only?") from error
        except RuntimeError as error:
            raise StoreFailed(f"{self._path} is closed") from error

    def end(self) -> None:
        """Take no more calls."""
        self._thread.shutdown(wait=False)
