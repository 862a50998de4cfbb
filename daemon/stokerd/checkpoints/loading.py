"""Watching over what runs beside clones: helpers that bring their memory, and pods that some of them live in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from msgspec.structs import replace

from stokerd.checkpoints import lazy as helpers
from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.ending import in_thread
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.undoing import Undoer
from stokerd.errors import RuntimeFailure, RuntimeNotFound, RuntimeTimeout, RuntimeUnavailable, StokerError
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_RETRY_PAUSE = 0.25
"""The first one: with each failure that is not containerd's absence it is twice as long, up to `_RETRY_MOST`."""
_RETRY_MOST = 60.0
_TELL_FROM = 2.0
"""A pause before which the disk may fail without a word, as it does at first where it is seen through a containerd that
was started anew."""
_KILL = 9


class Watch:
    """One task for each clone whose memory is still out, and for each that is in a pod's namespaces."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf, undoer: Undoer) -> None:
        self._runtime, self._shelf, self._undoer = runtime, shelf, undoer
        self._new: asyncio.Queue[Clone] = asyncio.Queue()

    def add(self, clone: Clone) -> None:
        """Watch over one that was just made."""
        self._new.put_nowait(clone)

    async def run(self) -> None:
        """Watch until cancelled, over clones of an earlier stokerd too."""
        for clone in await self._known():
            if clone.state == "made":
                self.add(clone)
        async with asyncio.TaskGroup() as group:
            watched: dict[str, asyncio.Task[None]] = {}
            while True:
                clone = await self._new.get()
                for what, watch in (("memory", self._memory), ("pod", self._pod)):
                    name = f"{what} of {clone.id} {clone.helper or clone.pod}"
                    wanted = clone.memory == "loading" if what == "memory" else bool(clone.pod)
                    if wanted and (name not in watched or watched[name].done()):
                        watched[name] = group.create_task(self._insist(watch, clone), name=name)
                for name in [name for name, task in watched.items() if task.done()]:
                    del watched[name]

    async def _known(self) -> tuple[Clone, ...]:
        """Return all clones, as soon as they can be seen."""
        pause = _RETRY_PAUSE
        while True:
            try:
                return await asyncio.to_thread(self._shelf.clones)
            except (StokerError, OSError) as error:
                _log.info("the clones cannot be seen yet", why=str(error))
            await self._runtime.wait_ready()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_MOST)

    async def _insist(self, watch: Callable[[Clone], Awaitable[None]], clone: Clone) -> None:
        """Try until it succeeds, or the clone is gone: nobody else would look after it before the next start."""
        pause = _RETRY_PAUSE
        while True:
            try:
                await watch(clone)
            except (RuntimeUnavailable, RuntimeTimeout):
                await self._runtime.wait_ready()
                await asyncio.sleep(_RETRY_PAUSE)
            except (RuntimeFailure, CheckpointError, OSError) as error:
                if pause >= _TELL_FROM or not isinstance(error, OSError):
                    _log.warning("cannot look after a clone yet", id=clone.id, why=str(error))
                await self._runtime.wait_ready()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_MOST)
            else:
                return

    # ------------------------------------------------------------------------------------------ memory

    async def _memory(self, clone: Clone) -> None:
        """Wait for the end of a helper; a clone whose memory is lost is killed."""
        await helpers.ended(clone.helper, self._shelf.clone_node_path(clone.id, shelves.WORK))
        async with self._undoer.alone(clone.id):  # a helper ends also because its clone is being removed
            now = await asyncio.to_thread(self._shelf.clone, clone.id)
            if now is not None and now.helper == clone.helper:  # else it was removed, or restored anew
                await self._settle(now)

    async def _settle(self, clone: Clone) -> None:
        """Write down how a helper ended, and kill its clone where that was not well."""
        status, log = await asyncio.to_thread(self._outcome, clone.id)
        if status == 0:
            await self._write(replace(clone, memory="loaded", helper=0))
            return
        why = (log.strip().splitlines() or ["criu lazy-pages was killed"])[-1]
        _log.error("a clone has lost its memory and is killed", id=clone.id, why=why)
        task = await self._runtime.tasks.get(clone.id)
        if task is not None and task.state != "stopped":
            await self._runtime.tasks.kill(clone.id, _KILL, everyone=True)
        await self._write(replace(clone, memory="lost", helper=0, why=why))

    async def _write(self, clone: Clone) -> None:
        await in_thread(threading.Event(), partial(self._shelf.write_clone, clone))

    def _outcome(self, clone: str) -> tuple[int | None, str]:
        """Return how a helper ended, None when it was killed, and the end of its log; RuntimeUnavailable when that
        cannot be seen. The path is of this moment: when the helper was started, it may have led through a containerd
        that is gone."""
        work = self._shelf.clone_path(clone, shelves.WORK)
        status, log = helpers.exit_status(work), shelves.tail(work / helpers.LOG)
        if status is None and not work.is_dir():
            self._shelf.must_be_there()
            if self._shelf.clone_path(clone, shelves.WORK) != work:
                raise RuntimeUnavailable(f"the directory of {clone} could not be reached")
        return status, log

    # ------------------------------------------------------------------------------------------ pods

    async def _pod(self, clone: Clone) -> None:
        """Take a container down that lives in a pod's namespaces, when the pod has ended."""
        try:
            await self._runtime.tasks.wait(clone.pod)
        except RuntimeNotFound:
            _log.debug("the pod of a restored container is gone already", id=clone.id)
        async with self._undoer.alone(clone.id):
            now = await asyncio.to_thread(self._shelf.clone, clone.id)
            if now is not None and now.pod == clone.pod:
                _log.info("a restored container ends with its pod", id=clone.id, pod=clone.pod)
                await self._undoer.undo(now)
