"""Not losing a cancellation."""

from __future__ import annotations

import asyncio


def heed_cancellation() -> None:
    """Raise CancelledError when this task has been cancelled.

    For loops that go on after a failure: when a part of `asyncio.gather` fails in the moment in which the whole is
    cancelled, gather raises the failure alone, and the loop would live on.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
