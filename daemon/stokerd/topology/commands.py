"""Runs a tool and returns what it prints, within limits of time and size."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence

from stoker.fabrics.foreign import decode, plain
from stoker.service.children import kill_group, start

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_AFTER_KILL = 1.0
_SHOWN = 160


class CommandFailed(Exception):
    """It could not be run, took too long, printed too much, or ended with an error; the text says which."""


def find(name: str) -> str:
    """Return the path of a program; empty if there is none of that name."""
    return shutil.which(name, path=_PATH) or ""


class Command:
    """One tool. A process that a kill does not end, since its driver hangs, keeps a second one from being started."""

    def __init__(self) -> None:
        self._stuck: asyncio.subprocess.Process | None = None

    async def output(self, argv: Sequence[str], *, timeout: float, most: int) -> bytes:
        """Return what the tool prints, CommandFailed."""
        if self._stuck is not None and self._stuck.returncode is None:
            raise CommandFailed("its last call still hangs")
        try:
            process = await start(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": _PATH, "LC_ALL": "C"},
            )
        except OSError as error:
            raise CommandFailed(f"{argv[0]} cannot be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(timeout):
                output, errors = await _read(process, most)
                status = await process.wait()
        except TimeoutError:
            raise CommandFailed(f"no answer within {timeout:g} s") from None
        finally:
            await self._end(process)
        if status != 0:
            said = plain(decode(errors or output[-_SHOWN:]).strip(), _SHOWN)
            raise CommandFailed(f"{os.path.basename(argv[0])} ended with {status}: {said or 'it said nothing'}")  # noqa: PTH119
        return output

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        kill_group(process.pid)
        try:
            async with asyncio.timeout(_AFTER_KILL):
                await process.wait()
        except TimeoutError:
            self._stuck = process


async def _read(process: asyncio.subprocess.Process, most: int) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(_drain(process.stderr), name="topology: errors")
    try:
        parts, size = [], 0
        while part := await process.stdout.read(1 << 16):
            size += len(part)
            if size > most:
                raise CommandFailed(f"it printed more than {most} bytes")
            parts.append(part)
        return b"".join(parts), await errors
    finally:
        errors.cancel()


async def _drain(stream: asyncio.StreamReader) -> bytes:
    """Read all there is, so that the tool never waits for us, and keep the beginning."""
    kept = b""
    while part := await stream.read(4096):
        kept = kept or part
    return kept
