"""Freezing a container for a moment, and thawing it again whatever happened meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from stokerd.checkpoints.ending import to_the_end
from stokerd.errors import RuntimeFailure, RuntimeNotFound, RuntimeTimeout, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_THAW_TRIES = 40
_THAW_PAUSE = 0.25
"""Together as long as a containerd needs to come back; after that, the next reconciliation thaws."""
_DUMPER_PAUSE = 0.05

Dumpers = Callable[[str], tuple[int, ...]]
"""Tells which CRIU processes have a directory open."""


class Freeze:
    """One freeze of a container. ``thawed`` says afterwards whether it certainly runs again: where it is False, what is
    written down about the freeze must stay. ``ours`` is False where somebody else had frozen the container before."""

    def __init__(self, runtime: NativeRuntime, container_id: str, *, ours: bool) -> None:
        self._runtime, self._id, self.ours = runtime, container_id, ours
        self.thawed = True

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the container frozen within the block; it is thawed at the end, whatever happens in between."""
        if not self.ours:
            yield
            return
        self.thawed = False  # a pause that is broken off may take effect nevertheless
        try:
            await self._runtime.tasks.pause(self._id)
            yield
        finally:
            await to_the_end(self._thaw(), f"thaw {self._id}")

    async def _thaw(self) -> None:
        self.thawed = await thaw(self._runtime, self._id)


async def thaw(runtime: NativeRuntime, container_id: str) -> bool:
    """Let the container run again; say whether it is certain that it does (or is gone). Tries for some seconds."""
    for attempt in range(_THAW_TRIES):
        if attempt:
            await asyncio.sleep(_THAW_PAUSE)
        try:
            task = await runtime.tasks.get(container_id)
            if task is None or task.state not in {"paused", "pausing"}:
                return True
            await runtime.tasks.resume(container_id)
        except RuntimeNotFound:
            return True
        except (RuntimeUnavailable, RuntimeTimeout) as error:
            _log.debug("cannot thaw yet", container=container_id, why=error.message)
        except RuntimeFailure as error:
            _log.warning("cannot thaw; trying again", container=container_id, why=error.message)
        else:
            return True
    _log.error("a container stays frozen until containerd is back", container=container_id)
    return False


async def dump_ended(directory: str, dumpers: Dumpers, timeout: float) -> bool:
    """Wait until no CRIU works on this directory any more; say whether that is so.

    A CRIU whose runc was killed, because the call to containerd was broken off, may work on, and sets the freezer back
    at its end to what it found.
    """
    try:
        async with asyncio.timeout(timeout):
            while await asyncio.to_thread(dumpers, directory):  # noqa: ASYNC110 - of others' processes nobody tells
                await asyncio.sleep(_DUMPER_PAUSE)
    except TimeoutError:
        return False
    return True
