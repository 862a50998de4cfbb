"""Freezing a container for a moment, and thawing it again whatever happened meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog

from stokerd.checkpoints.catching import being_frozen, thaw_group
from stokerd.checkpoints.ending import settled, to_the_end
from stokerd.errors import RuntimeBusy, RuntimeFailure, RuntimeNotFound, RuntimeTimeout, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_THAW_TRIES = 40
_THAW_PAUSE = 0.25
"""Together as long as a containerd needs to come back; after that, the next reconciliation thaws."""
_FREEZE_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between the tries to freeze; each of them takes runc a second or so, ten on cgroup v2."""
_FREEZE_SECONDS = 20.0
"""After that it is not tried again."""
_DUMPER_PAUSE = 0.05
_KILL = 9
_END_TIMEOUT = 10.0

Dumpers = Callable[[str], tuple[int, ...]]
"""Tells which CRIU processes have a directory open."""


class Freeze:
    """One freeze of a container. ``thawed`` says afterwards whether it certainly runs again: where it is False, what is
    written down about the freeze must stay. ``ours`` is False where somebody else had frozen the container before;
    ``kept`` becomes True where it is not to run again, since it is to end."""

    def __init__(self, runtime: NativeRuntime, container_id: str, *, ours: bool) -> None:
        self._runtime, self.id, self.ours = runtime, container_id, ours
        self.thawed, self.kept = True, False
        self._given_up = asyncio.Event()

    async def pause(self) -> None:
        if self.ours:
            self.thawed = False  # a pause that is broken off may take effect nevertheless
            await freeze(self._runtime, self.id, self._given_up)

    def give_up(self) -> None:
        """Do not try again to freeze it."""
        self._given_up.set()

    async def thaw(self) -> None:
        if not self.thawed and not self.kept:
            self.thawed = await thaw(self._runtime, self.id)


@asynccontextmanager
async def held(*freezes: Freeze) -> AsyncIterator[None]:
    """Hold the containers frozen within the block: all stand when it begins, and all are thawed at its end, whatever
    happens in between."""
    try:
        await stand(*freezes)
        yield
    finally:
        await to_the_end(_thaw_all(freezes), f"thaw {', '.join(each.id for each in freezes)}")


async def stand(*freezes: Freeze) -> None:
    """Freeze the containers. A call that is under way is waited for, also by who is cancelled: it would take effect
    after whatever is done against it."""
    pausing = asyncio.gather(*(each.pause() for each in freezes), return_exceptions=True)
    cancelled = await settled(pausing, partial(_give_up, freezes))
    failed = cancelled or next((error for error in pausing.result() if error is not None), None)
    if failed is not None:
        raise failed


def _give_up(freezes: Sequence[Freeze]) -> None:
    for each in freezes:
        each.give_up()


async def _thaw_all(freezes: Sequence[Freeze]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in freezes:
            group.create_task(each.thaw(), name=f"thaw {each.id}")


async def freeze(runtime: NativeRuntime, container_id: str, given_up: asyncio.Event | None = None) -> None:
    """Freeze a container. RuntimeBusy when its processes do not stand after some tries, or *given_up* is set.

    On cgroup v1 runc gives up after a second where processes keep appearing, or wait for a disk, and leaves it to its
    caller to try again (https://github.com/opencontainers/runc/pull/4388).
    """
    given_up, clock = given_up or asyncio.Event(), asyncio.get_running_loop().time
    end_at, failed = clock() + _FREEZE_SECONDS, RuntimeBusy("")
    for pause in (*_FREEZE_PAUSES, 0.0):
        try:
            await runtime.tasks.pause(container_id)
        except RuntimeBusy as error:
            failed = error
        else:
            return
        if not pause or clock() > end_at:
            break
        _log.info("a container could not be frozen; trying again", container=container_id, why=failed.message)
        if await _happens(given_up, pause):
            break
    why = f"the processes of container {container_id} could not be frozen in time: {failed.message}"
    hint = "try again when they start fewer others, or when disk and CPU are less busy"
    raise RuntimeBusy(why, status=failed.status, call=failed.call, hint=hint)


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for something that may happen within this time; say whether it has."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def thaw(runtime: NativeRuntime, container_id: str) -> bool:
    """Let the container run again; say whether it is certain that it does (or is gone). Tries for some seconds.

    Where a runc is still at work for a caller that is gone, or was ended meanwhile, containerd says that it runs: the
    process and the cgroup tell.
    """
    for attempt in range(_THAW_TRIES):
        if attempt:
            await asyncio.sleep(_THAW_PAUSE)
        try:
            task = await runtime.tasks.get(container_id)
            if task is None:
                return True
            if task.state not in {"paused", "pausing"}:
                if await asyncio.to_thread(being_frozen, container_id):
                    continue
                if await asyncio.to_thread(thaw_group, task.pid):
                    _log.warning("a cgroup was frozen without containerd's knowledge; thawed", container=container_id)
                return True
            await runtime.tasks.resume(container_id)
        except RuntimeNotFound:
            return True
        except (RuntimeUnavailable, RuntimeTimeout) as error:
            _log.debug("cannot thaw yet", container=container_id, why=error.message)
        except OSError as error:
            _log.warning("cannot thaw; trying again", container=container_id, why=f"{error.filename}: {error.strerror}")
        except RuntimeFailure as error:
            _log.warning("cannot thaw; trying again", container=container_id, why=error.message)
        else:
            return True
    _log.error("a container stays frozen; it is tried again later", container=container_id)
    return False


async def end(runtime: NativeRuntime, container_id: str) -> bool:
    """Kill a container that may stand; say whether it is certain that it is gone. Tries for some seconds."""
    for attempt in range(_THAW_TRIES):
        if attempt:
            await asyncio.sleep(_THAW_PAUSE)
        try:
            task = await runtime.tasks.get(container_id)
            if task is None or task.state == "stopped":
                return True
            await runtime.tasks.kill(container_id, _KILL, everyone=True)
            if task.state in {"paused", "pausing"}:
                with contextlib.suppress(RuntimeFailure):  # killing thaws, but not everywhere
                    await runtime.tasks.resume(container_id)
            async with asyncio.timeout(_END_TIMEOUT):
                await runtime.tasks.wait(container_id)
        except RuntimeNotFound:
            return True
        except (RuntimeFailure, TimeoutError) as error:
            _log.warning("a container does not end yet", container=container_id, why=str(error))
        else:
            return True
    _log.error("a container that was checkpointed to be stopped stands, and is ended later", container=container_id)
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
