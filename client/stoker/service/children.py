"""Programs that are run to their end, and of which nothing stays when they are broken off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any


async def start(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a program in a session of its own; *options* are those of `asyncio.create_subprocess_exec`.

    OSError when it cannot be run. A cancellation waits for the start, and kills what was started with all that it has
    started by then: asyncio would kill the program alone.
    """
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(*argv, start_new_session=True, **options), name=f"start {argv[0]}"
    )
    cancelled: asyncio.CancelledError | None = None
    while not starting.done():
        try:
            await asyncio.wait({starting})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return starting.result()
    if starting.exception() is None:
        await _end(starting.result())
    raise cancelled


async def communicate(process: asyncio.subprocess.Process, stdin: bytes | None = None) -> tuple[bytes, bytes]:
    """Return what a program prints, on both streams, when it has ended.

    It was started by `start`. Whatever breaks this off - a timeout, a cancellation - kills it with all processes that
    it has started, also when it has ended itself and those go on.
    """
    finished = False
    try:
        printed = await process.communicate(stdin)
        finished = True
        return printed
    finally:
        if not finished:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it with its group, and wait for it; not for who has left the group and holds its pipes open, for whom
    asyncio would wait."""
    kill_group(process.pid)
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]  # noqa: SLF001
    for descriptor in range(3):
        pipe = transport.get_pipe_transport(descriptor)
        if pipe is not None:
            pipe.close()
    try:
        await asyncio.shield(process.wait())
    finally:
        transport.close()


def kill_group(leader: int) -> None:
    """Kill a process that leads a session, and all that are in its group, also when itself is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
