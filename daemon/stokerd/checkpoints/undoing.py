"""Taking clones down, whatever of them is there: each step is done again when it was broken off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from stokerd.checkpoints import lazy as helpers
from stokerd.checkpoints import networks
from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.nodes import run_on_node
from stokerd.checkpoints.shelf import Shelf
from stokerd.errors import RuntimeFailure
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.task_types import Task

_log = structlog.get_logger("checkpoints")
_KILL = 9
_KILL_TIMEOUT = 30.0
ROOT = "root"
"""Where a clone's root is mounted while files are put into it."""


def snapshot_of(clone: str) -> str:
    return f"stoker-{clone}"


def view_of(clone: str) -> str:
    """Return the name of the view that a root is copied from."""
    return f"{snapshot_of(clone)}-view"


class Undoer:
    """Removes what a clone is made of. Whoever calls has the clone alone."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf) -> None:
        self._runtime, self._shelf = runtime, shelf
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def alone(self, clone: str) -> AsyncIterator[None]:
        """One thing at a time with each clone: making it, removing it, telling what became of it. What was known of it
        before may no longer hold."""
        lock = self._locks.setdefault(clone, asyncio.Lock())
        self._users[clone] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[clone] -= 1
            if not self._users[clone]:
                del self._users[clone], self._locks[clone]

    async def undo(self, clone: Clone) -> None:
        """Remove all that is a clone's own. Its description goes last."""
        await self.clear(clone)
        await self._disconnect(clone)
        if not clone.pod:
            await networks.drop_netns(self._runtime.info, clone.netns or clone.id)
        await asyncio.to_thread(self._shelf.discard_clone, clone.id)
        await asyncio.to_thread(self._shelf.must_be_there)

    async def clear(self, clone: Clone) -> None:
        """Remove all but the network and the description."""
        await self._end(clone.id)
        helper = clone.helper or await asyncio.to_thread(helpers.begun, self._shelf.clone_path(clone.id, shelves.WORK))
        if helper:
            await asyncio.to_thread(helpers.kill, helper, self._shelf.clone_node_path(clone.id, shelves.WORK))
        await self._runtime.records.delete(clone.id)
        for name in (shelves.SHM, ROOT):
            if await asyncio.to_thread(self._shelf.clone_path(clone.id, name).exists):
                place = self._shelf.clone_node_path(clone.id, name)
                await run_on_node(self._runtime.info, ["umount", "--lazy", place])
        if clone.pod or clone.state == "restoring":
            await self._runtime.snapshots.remove(view_of(clone.id))
        await self._runtime.snapshots.remove(snapshot_of(clone.id))
        await asyncio.to_thread(self._shelf.empty_clone, clone.id)
        await asyncio.to_thread(self._shelf.must_be_there)  # else nothing was found because nothing could be seen

    async def _disconnect(self, clone: Clone) -> None:
        """Give the address back. Where ADD never succeeded, a plugin that fails again is no reason to keep the rest."""
        if clone.network is None:
            return
        try:
            await networks.detach(self._runtime.info, clone.netns or clone.id, clone.network, clone.result)
        except CheckpointError as error:
            if clone.result is not None:
                raise
            _log.warning("a network that was never made cannot be taken down", id=clone.id, why=error.message)

    async def _end(self, clone: str) -> None:
        """Kill all processes of the clone and wait until they are gone.

        One whose start was broken off may begin to run only now: the shim goes on with it, although nobody waits.
        """
        while (task := await self._runtime.tasks.get(clone)) is not None:
            await self._kill(clone, task)
            try:
                await self._runtime.tasks.delete(clone)
            except RuntimeFailure:
                now = await self._runtime.tasks.get(clone)
                if now is not None and now.state == task.state:
                    raise
            else:
                return

    async def _kill(self, clone: str, task: Task) -> None:
        if task.state in {"paused", "pausing"}:
            await self._runtime.tasks.resume(clone)
        if task.state != "stopped" and task.pid:
            await self._runtime.tasks.kill(clone, _KILL, everyone=True)
            try:
                async with asyncio.timeout(_KILL_TIMEOUT):
                    await self._runtime.tasks.wait(clone)
            except TimeoutError:
                raise CheckpointError(f"{clone} does not end although it was killed") from None
