"""Clones of a checkpoint: native containers with a network of their own, brought back by CRIU; and containers that were
stopped, brought back to where they were.

Whatever fails, nothing is left of one: no process, record, snapshot, mount, network or address.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from stokerd.checkpoints import networks
from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.clone_types import Clone, CloneWish
from stokerd.checkpoints.cloning import CLONE_LABEL
from stokerd.checkpoints.cni import NetworkError
from stokerd.checkpoints.ending import in_thread, to_the_end
from stokerd.checkpoints.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNoSpace,
    CheckpointRefused,
    HookFailed,
)
from stokerd.checkpoints.fitting import misfits
from stokerd.checkpoints.loading import Watch
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.model import OWNER_LABEL, Tell, untold
from stokerd.checkpoints.reserve import Reserve
from stokerd.checkpoints.restoring import Plan, Restorer
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.surveying import node_of
from stokerd.checkpoints.taking import no_space
from stokerd.checkpoints.undoing import Undoer
from stokerd.errors import Conflict, NotFound, RuntimeFailure, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_LAZY_FROM = 64 << 20
"""Bytes of memory from which on it is faster to start without them."""
_LIVE = frozenset({"created", "running", "paused", "pausing"})
_NOT_LAZINESS = (NetworkError, RuntimeUnavailable, CheckpointDamaged, CheckpointNoSpace, HookFailed)
"""What fails eagerly in the same way."""


class Clones:
    """Makes clones and takes them down. ``under_way`` are those that are being made."""

    def __init__(
        self, runtime: NativeRuntime, shelf: Shelf, owner: str, clock: Callable[[], datetime], networks_ahead: int = 0
    ) -> None:
        self._runtime, self._shelf, self._owner, self._clock = runtime, shelf, owner, clock
        self.reserve = Reserve(runtime, shelf, networks_ahead)
        self._undoer = Undoer(runtime, shelf)
        self._restorer = Restorer(runtime, shelf, owner, self.reserve)
        self._watch = Watch(runtime, shelf, self._undoer)
        self.under_way: set[str] = set()
        self.left: Callable[[], object] = lambda: None
        """Is called when something was left that the next `converge` has to do."""

    async def make(self, manifest: Manifest, wish: CloneWish | None = None, tell: Tell = untold) -> Clone:
        """Bring the container of a checkpoint back once more; returns when it runs."""
        wish = wish or CloneWish()
        return await self._brought(manifest, wish, tell, lambda of: replace(self._new(of), labels=wish.labels))

    async def restore(self, manifest: Manifest, wish: CloneWish | None = None, tell: Tell = untold) -> Clone:
        """Bring a container that was stopped back to where it was, with the address that it had.

        One of ours comes back as itself. For one of CRI's a container of ours takes its place in the pod: in its
        namespaces and at its address, until the pod ends. CRI goes on showing the old one as exited.
        """
        place = await self._place(manifest)
        return await self._brought(manifest, wish or CloneWish(), tell, lambda _: place)

    async def list(self) -> tuple[Clone, ...]:
        return tuple(each for each in await asyncio.to_thread(self._shelf.clones) if each.state != "making")

    async def needing(self, checkpoint: str) -> tuple[str, ...]:
        """Return the clones that still read what is in a checkpoint's directory."""
        return tuple(
            each.id
            for each in await asyncio.to_thread(self._shelf.clones)
            if each.checkpoint == checkpoint and (each.state != "made" or each.memory == "loading")
        )

    async def must_be_whole(self, container: str) -> None:
        """Conflict while the memory of a clone is still out: a dump would wait for it, and take a broken one."""
        found = await asyncio.to_thread(self._shelf.clone, container)
        if found is not None and found.memory == "loading":
            raise Conflict(f"the memory of {container} is still coming in", hint="wait until it is loaded")

    async def remove(self, clone: str) -> None:
        """End a clone and remove all that is its own; NotFound when there is none."""
        async with self._undoer.alone(clone):
            found = {each.id: each for each in await asyncio.to_thread(self._shelf.clones)}
            if clone not in found:
                raise NotFound(f"no clone {clone} is here")
            await to_the_end(self._undoer.undo(found[clone]), f"remove {clone}")

    async def supervise(self) -> None:
        """Watch over clones, and keep networks ahead, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run(), name="checkpoints: memory and pods of clones")
            group.create_task(self.reserve.run(), name="checkpoints: networks ahead")

    async def converge(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Remove clones that were never finished, and what has no description any more; return what was removed, and
        what could not be. RuntimeUnavailable when containerd goes away."""
        described = {each.id: each for each in await asyncio.to_thread(self._shelf.clones)}
        records = await self._runtime.records.list(labels={OWNER_LABEL: self._owner})
        stray = {each.labels[CLONE_LABEL] for each in records if CLONE_LABEL in each.labels} - described.keys()
        lost = [each.id for each in described.values() if each.state != "made"]
        gone: list[str] = []
        left: list[str] = []
        for each in [*lost, *sorted(stray)]:
            try:
                if await self._clear_up(each, stray=each in stray):
                    gone.append(each)
            except RuntimeUnavailable:
                raise
            except (RuntimeFailure, CheckpointError, OSError) as error:
                _log.warning("cannot clear up after a clone", id=each, why=str(error))
                left.append(each)
        return tuple(gone), tuple(left)

    async def _clear_up(self, clone: str, *, stray: bool) -> bool:
        """Remove a clone that was found unfinished, or without a description, if that still holds: others were cleared
        up since, which takes long, and clones are finished meanwhile."""
        if clone in self.under_way:
            return False
        async with self._undoer.alone(clone):
            now = await asyncio.to_thread(self._shelf.clone, clone)
            if (now is not None) if stray else (now is None or now.state == "made"):
                return False
            await self._take_back(now or Clone(clone, "", self._clock()))
        return True

    # ------------------------------------------------------------------------------------------ making

    async def _brought(
        self, manifest: Manifest, wish: CloneWish, tell: Tell, begin: Callable[[Manifest], Clone]
    ) -> Clone:
        await self._fit(manifest)
        lazy = wish.mode == "lazy" or (wish.mode == "auto" and _pages(manifest) >= _LAZY_FROM)
        try:
            return await self._one(begin(manifest), manifest, wish, tell, lazy=lazy)
        except (CheckpointError, RuntimeFailure) as error:
            if not lazy or wish.mode == "lazy" or isinstance(error, _NOT_LAZINESS):
                raise
            _log.warning("a lazy restore failed; trying an eager one", checkpoint=manifest.id, why=error.message)
            return await self._one(begin(manifest), manifest, wish, tell, lazy=False)

    async def _fit(self, manifest: Manifest) -> None:
        """Refuse what cannot be restored on this node."""
        here = await asyncio.to_thread(node_of, self._runtime.info)
        found = misfits(manifest.node, here)
        if found:
            raise CheckpointRefused(
                f"checkpoint {manifest.id} cannot be restored here: {'; '.join(each.message for each in found)}",
                causes=tuple(each.message for each in found),
                hint=found[0].hint,
            )

    async def _one(self, clone: Clone, manifest: Manifest, wish: CloneWish, tell: Tell, *, lazy: bool) -> Clone:
        plan = await self._restorer.plan(manifest, wish, tell, lazy=lazy)
        async with self._undoer.alone(clone.id):
            if clone.state == "restoring":
                await self._must_be_free(clone, manifest)
            clone = await self._built(clone, plan)
        if lazy or clone.pod:
            self._watch.add(clone)
        _log.info("clone runs", id=clone.id, checkpoint=manifest.id, addresses=clone.addresses)
        return clone

    async def _must_be_free(self, clone: Clone, manifest: Manifest) -> None:
        """Look again: it may have been removed, or brought back by somebody else, since its place was found."""
        if await asyncio.to_thread(self._shelf.clone, clone.id) is None:
            raise _gone(manifest, f"{clone.id} was removed meanwhile")
        await self._must_be_stopped(clone.id)

    async def _built(self, clone: Clone, plan: Plan) -> Clone:
        """Make all of it, or nothing."""
        self.under_way.add(clone.id)
        begun, made = clone, False
        try:
            if clone.state == "restoring":  # a new one is written down with its network
                await in_thread(threading.Event(), partial(self._shelf.write_clone, clone))
                await self._undoer.clear(clone)
            clone = await self._restorer.build(clone, plan)
            made = True
        except OSError as error:
            raise no_space(error) or CheckpointError(f"{error.filename or clone.id}: {error.strerror}") from None
        finally:
            tidy = made
            try:
                if not made:
                    tidy = await to_the_end(self._give_up(begun), f"remove {clone.id}")
            finally:
                self.under_way.discard(clone.id)
                if not tidy:
                    self.left()
        return clone

    def _new(self, manifest: Manifest) -> Clone:
        return Clone(f"clone-{secrets.token_hex(8)}", manifest.id, self._clock())

    async def _give_up(self, begun: Clone) -> bool:
        """Take back what was made of a clone; False when that is left to the next `converge`."""
        found = await asyncio.to_thread(self._shelf.clone, begun.id)
        if found is not None:
            try:
                await self._take_back(replace(found, state=begun.state))
            except (RuntimeFailure, CheckpointError, OSError) as error:
                _log.warning("cannot clear up after a clone now", id=begun.id, why=str(error))
                return False
        return True

    async def _take_back(self, clone: Clone) -> None:
        """Undo what was made; one that was to come back keeps its network, so that it can be tried again, and ends with
        its pod as before."""
        if clone.state != "restoring":
            await self._undoer.undo(clone)
            return
        await self._undoer.clear(clone)
        stopped = replace(clone, state="made", pid=0, helper=0, memory="eager")
        await in_thread(threading.Event(), partial(self._shelf.write_clone, stopped))
        if stopped.pod:
            self._watch.add(stopped)

    # ------------------------------------------------------------------------------------------ in place

    async def _place(self, manifest: Manifest) -> Clone:
        """Find where a container was; Conflict when it runs, CheckpointRefused when its place is gone."""
        source = manifest.source
        for each in await self.list():
            if source.container_id in {each.id, each.origin}:
                return await self._again(each, manifest)
        if not source.pod_id:
            raise _gone(manifest, f"container {source.container_id} is not here any more")
        await self._must_be_stopped(source.container_id)
        address = await self._pod_address(manifest, source.pod_id)
        for container in await self._runtime.containers.list(pod_id=source.pod_id):
            if container.name == source.container_name:
                await self._must_be_stopped(container.id)
        return replace(
            self._new(manifest),
            id=f"restored-{secrets.token_hex(8)}",
            result=address,
            pod=source.pod_id,
            origin=source.container_id,
        )

    async def _again(self, known: Clone, manifest: Manifest) -> Clone:
        """One of ours, that comes back as itself."""
        await self._must_be_stopped(known.id)
        result, info = known.result, self._runtime.info
        if known.pod:
            result = await self._pod_address(manifest, known.pod)
        elif known.network and not await asyncio.to_thread(networks.is_there, info, known.netns or known.id):
            raise _gone(manifest, f"the network namespace of {known.id} is not there any more")
        return replace(
            known, checkpoint=manifest.id, state="restoring", result=result, pid=0, memory="eager", helper=0, why=""
        )

    async def _pod_address(self, manifest: Manifest, pod: str) -> dict[str, Any]:
        status, task = await self._runtime.pods.status(pod), await self._runtime.tasks.get(pod)
        if status is None or task is None or task.state not in _LIVE:
            raise _gone(manifest, f"pod {manifest.source.pod_name or pod} does not run any more")
        return {"ips": [{"address": each} for each in status.ips]}

    async def _must_be_stopped(self, container: str) -> None:
        task = await self._runtime.tasks.get(container)
        if task is not None and task.state in _LIVE:
            raise Conflict(
                f"container {container} runs: nothing can come back in its place",
                hint="checkpoint it with --stop, or make a clone",
            )


def _gone(manifest: Manifest, why: str) -> CheckpointRefused:
    return CheckpointRefused(
        f"checkpoint {manifest.id} cannot be restored in place: {why}", causes=(why,), hint="make a clone of it"
    )


def _pages(manifest: Manifest) -> int:
    """Return how much memory a checkpoint holds."""
    return sum(part.size for part in manifest.parts if part.path.startswith(f"{shelves.IMAGES}/pages-"))
