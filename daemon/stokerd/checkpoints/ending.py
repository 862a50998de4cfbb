"""Work that is brought to its end, whoever stops waiting for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T], name: str) -> T:
    """Await *work* although this task is cancelled meanwhile; the cancellation goes on when it has ended.

    For what may not be left in the middle: thawing what we froze. Such work has deadlines of its own.
    """
    task = asyncio.create_task(work, name=name)
    cancelled = await settled(task)
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def settled(task: asyncio.Future[Any], told: Callable[[], object] | None = None) -> asyncio.CancelledError | None:
    """Wait until *task* has ended; return the cancellation of this one that came meanwhile, of which *told* is told."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            if told is not None:
                told()
    return cancelled


async def in_thread(stop: threading.Event, work: Callable[[], T], pool: Executor | None = None) -> T:
    """Run blocking *work* in a thread. When this task is cancelled, *stop* is set, and the thread is waited for.

    Without a *pool* it is one of the few threads that all of the daemon has: for what only the disk can hold up.
    """
    future = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        await settled(future)
        if not future.cancelled():
            future.exception()
        raise


async def in_own_thread(stop: threading.Event, work: Callable[[], T], name: str) -> T:
    """The same in a thread of its own: for what waits for others, which may need a thread themselves to go on."""
    with ThreadPoolExecutor(1, thread_name_prefix=name) as own:
        return await in_thread(stop, work, own)
