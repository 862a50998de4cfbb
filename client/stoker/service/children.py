"""Programs that are run to their end, and of which nothing stays when they are broken off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


async def communicate(process: asyncio.subprocess.Process, stdin: bytes | None = None) -> tuple[bytes, bytes]:
    """Return what a program prints, on both streams, when it has ended.

    The program must have been started in a session of its own. Whatever breaks this off - a timeout, a cancellation -
    kills it with all processes that it has started, also when it has ended itself and those go on.
    """
    finished = False
    try:
        printed = await process.communicate(stdin)
        finished = True
        return printed
    finally:
        if not finished:
            kill_group(process.pid)
            await asyncio.shield(process.wait())


def kill_group(leader: int) -> None:
    """Kill a process that leads a session, and all that are in its group, also when itself is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
