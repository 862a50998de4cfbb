"""Clones of a checkpoint: native containers with a network of their own, brought back by CRIU.

Whatever fails, nothing is left of one: no process, record, snapshot, mount, network or address.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from stokerd.checkpoints import lazy as helpers
from stokerd.checkpoints import networks
from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.clone_types import Clone, Mode
from stokerd.checkpoints.cloning import CLONE_LABEL, Places, clone_spec
from stokerd.checkpoints.cni import NetworkError
from stokerd.checkpoints.copying import copy_tree
from stokerd.checkpoints.criu import Tuning, config, parse_version
from stokerd.checkpoints.ending import in_thread, settled, to_the_end
from stokerd.checkpoints.errors import CheckpointError, CheckpointNoSpace, CheckpointRefused, CriuCrashed
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.model import CHECKPOINT_LABEL, GC_ROOT_LABEL, OWNER_LABEL, Tell, untold
from stokerd.checkpoints.nodes import must, run_on_node
from stokerd.checkpoints.refusals import explain
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.taking import no_space
from stokerd.errors import NotFound, RuntimeFailure, RuntimeTimeout, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.task_types import AnyValue, ContainerRecord, Restore

_log = structlog.get_logger("checkpoints")
_START_TIMEOUT = 300.0
_LAZY_FROM = 64 << 20
"""Bytes of memory from which on it is faster to start without them."""
_RETRY_PAUSE = 0.25
_KILL = 9
_KILL_TIMEOUT = 30.0
_SHM_SIZE = "64m"


class Clones:
    """Makes clones and takes them down. ``under_way`` are those that are being made."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf, owner: str, clock: Callable[[], datetime]) -> None:
        self._runtime, self._shelf, self._owner, self._clock = runtime, shelf, owner, clock
        self.under_way: set[str] = set()
        self._connected: list[Clone] = []
        self._loading: asyncio.Queue[Clone] = asyncio.Queue()

    async def make(self, manifest: Manifest, *, hostname: str = "", mode: Mode = "auto", tell: Tell = untold) -> Clone:
        """Bring the container of a checkpoint back once more; returns when it runs."""
        lazy = mode == "lazy" or (mode == "auto" and _pages(manifest) >= _LAZY_FROM)
        try:
            return await self._one(manifest, hostname, tell, lazy=lazy)
        except (CheckpointError, RuntimeFailure) as error:
            if not lazy or mode == "lazy" or isinstance(error, NetworkError | RuntimeUnavailable):
                raise
            _log.warning("a lazy restore failed; trying an eager one", checkpoint=manifest.id, why=error.message)
            return await self._one(manifest, hostname, tell, lazy=False)

    async def _one(self, manifest: Manifest, hostname: str, tell: Tell, *, lazy: bool) -> Clone:
        clone = replace(self._next(), checkpoint=manifest.id)
        made = False
        try:
            clone = await self._make(clone, manifest, hostname, tell, lazy=lazy)
            made = True
        except OSError as error:
            raise no_space(error) or CheckpointError(f"{error.filename or clone.id}: {error.strerror}") from None
        finally:
            if not made:
                await to_the_end(self._give_up(clone.id), f"remove {clone.id}")
            self.under_way.discard(clone.id)
        return clone

    async def list(self) -> tuple[Clone, ...]:
        return tuple(each for each in await asyncio.to_thread(self._shelf.clones) if each.state == "made")

    async def remove(self, clone: str) -> None:
        """End a clone and remove all that is its own; NotFound when there is none."""
        found = {each.id: each for each in await asyncio.to_thread(self._shelf.clones)}
        if clone not in found:
            raise NotFound(f"no clone {clone} is here")
        await to_the_end(self.undo(found[clone]), f"remove {clone}")

    async def converge(self) -> tuple[str, ...]:
        """Remove clones that were never finished, and what has no description any more; return what was removed."""
        described = {each.id: each for each in await asyncio.to_thread(self._shelf.clones)}
        records = await self._runtime.records.list(labels={OWNER_LABEL: self._owner})
        stray = {each.labels[CLONE_LABEL] for each in records if CLONE_LABEL in each.labels} - described.keys()
        lost = [each for each in described.values() if each.state == "making"]
        lost += [Clone(each, "", self._clock()) for each in sorted(stray)]
        gone = [each for each in lost if each.id not in self.under_way]
        for each in gone:
            await self.undo(each)
        return tuple(each.id for each in gone)

    # ------------------------------------------------------------------------------------------ networks ahead

    async def connect(self, count: int) -> None:
        """Have networks for so many clones to come, no more and no fewer: each starts sooner by the making of one.

        They are clones of which nothing else is there yet, so whoever clears up after clones clears up after them.
        """
        while len(self._connected) > count:
            clone = self._connected.pop()
            await to_the_end(self._give_up(clone.id), f"remove {clone.id}")
            self.under_way.discard(clone.id)
        await asyncio.gather(*(self._connect() for _ in range(count - len(self._connected))))

    async def _connect(self) -> None:
        clone, made = self._next(fresh=True), False
        try:
            clone = await self._described(clone)
            clone = replace(clone, result=await self._attach(clone))
            await asyncio.to_thread(self._shelf.write_clone, clone)
            made = True
        finally:
            if not made:
                await to_the_end(self._give_up(clone.id), f"remove {clone.id}")
                self.under_way.discard(clone.id)
        self._connected.append(clone)

    def _next(self, *, fresh: bool = False) -> Clone:
        """Return a clone to be made: one that has a network, or a new one."""
        if self._connected and not fresh:
            return replace(self._connected.pop(0), created_at=self._clock())
        clone = Clone(f"clone-{secrets.token_hex(8)}", "", self._clock())
        self.under_way.add(clone.id)
        return clone

    async def _described(self, clone: Clone) -> Clone:
        """Write down what is about to be made, its network above all."""
        if clone.network is None:
            clone = replace(clone, network=await networks.configuration(self._runtime.info))
        await asyncio.to_thread(self._shelf.write_clone, clone)
        return clone

    # ------------------------------------------------------------------------------------------ making

    async def _make(self, clone: Clone, manifest: Manifest, hostname: str, tell: Tell, *, lazy: bool) -> Clone:
        tell("surrounding")
        golden, files = await asyncio.to_thread(self._shelf.golden, manifest.id)
        clone = await self._described(clone)
        places = await asyncio.to_thread(self._lay_out, clone, files, manifest.tcp, lazy)
        if manifest.shm_digest:
            places = replace(places, shm=self._shelf.clone_node_path(clone.id, shelves.SHM))
        spec = clone_spec(golden.document(), clone.id, places, hostname)
        clone = await self._surround(clone, manifest, self._record(clone, golden, spec), lazy=lazy)
        await asyncio.to_thread(self._shelf.write_clone, clone)
        tell("restoring")
        pid = await self._start(clone)
        clone = replace(clone, pid=pid, state="made")
        await asyncio.to_thread(self._shelf.write_clone, clone)
        if lazy:
            await asyncio.to_thread(helpers.tell, self._shelf.clone_path(clone.id, shelves.WORK), pid)
            self._loading.put_nowait(clone)
        _log.info("clone runs", id=clone.id, checkpoint=manifest.id, addresses=clone.addresses)
        return clone

    async def _surround(self, clone: Clone, manifest: Manifest, record: ContainerRecord, *, lazy: bool) -> Clone:
        """Make all that the processes need, side by side: network, root and shim, /dev/shm, and who brings the memory.

        What has begun is waited for although something else has failed: only what is there can be removed.
        """
        begun: dict[str, asyncio.Task[Any]] = {}

        def begin(name: str, work: Coroutine[Any, Any, Any]) -> None:
            begun[name] = asyncio.create_task(work, name=f"{name} of {clone.id}")

        if clone.result is None:
            begin("network", self._attach(clone))
        begin("task", self._create(clone, manifest, record))
        if manifest.shm_digest:
            begin("shm", self._fill_shm(clone, manifest))
        if lazy:
            images = self._shelf.node_path(manifest.id, shelves.IMAGES)
            begin("helper", helpers.start(self._runtime.info, clone.id, images, self._work(clone.id)))
        cancelled = await settled(asyncio.gather(*begun.values(), return_exceptions=True))
        failed = next((error for task in begun.values() if (error := task.exception()) is not None), None)
        if cancelled is not None or failed is not None:
            raise cancelled or failed  # type: ignore[misc]
        if "network" in begun:
            clone = replace(clone, result=begun["network"].result())
        return replace(clone, memory="loading", helper=begun["helper"].result()) if lazy else clone

    def _lay_out(self, clone: Clone, files: dict[str, bytes], tcp: str, lazy: bool) -> Places:
        """Write what the clone has instead of its pod's files, and CRIU's configuration. In a thread."""
        version = parse_version(self._runtime.info.criu_version)
        kept = tcp == "established"
        tuning = Tuning("established" if kept else "close", skip_network_lock=not kept, lazy_pages=lazy)
        (self._shelf.clone_path(clone.id) / shelves.WORK).mkdir(mode=0o700)
        self._shelf.clone_path(clone.id, "criu.conf").write_text(config(version, "restore", tuning), encoding="utf-8")
        mounted: dict[str, str] = {}
        for number, (place, content) in enumerate(sorted(files.items())):
            name = f"file-{number}"
            self._shelf.clone_path(clone.id, name).write_bytes(content)
            self._shelf.clone_path(clone.id, name).chmod(0o644)
            mounted[place] = self._shelf.clone_node_path(clone.id, name)
        return Places(networks.netns_path(clone.id), "", self._shelf.clone_node_path(clone.id, "criu.conf"), mounted)

    async def _attach(self, clone: Clone) -> dict[str, Any]:
        assert clone.network is not None
        await networks.make_netns(self._runtime.info, clone.id)
        return (await networks.attach(self._runtime.info, clone.id, clone.network)).result

    async def _create(self, clone: Clone, manifest: Manifest, record: ContainerRecord) -> None:
        """Make root, record and task. What the task is to join need not be there before it starts."""
        labels = {GC_ROOT_LABEL: clone.created_at.isoformat(timespec="seconds"), CLONE_LABEL: clone.id}
        labels[OWNER_LABEL] = self._owner
        rootfs = await self._runtime.snapshots.prepare(record.snapshot_key, manifest.root.snapshot, labels=labels)
        await self._runtime.records.create(record)
        images = self._shelf.node_path(manifest.id, shelves.IMAGES)
        restore = Restore(images, self._work(clone.id))
        await self._runtime.tasks.create(clone.id, rootfs, options=record.options, restore=restore)

    def _record(self, clone: Clone, golden: ContainerRecord, spec: dict[str, Any]) -> ContainerRecord:
        labels = {CLONE_LABEL: clone.id, CHECKPOINT_LABEL: clone.checkpoint, OWNER_LABEL: self._owner}
        return ContainerRecord(
            id=clone.id,
            image=golden.image,
            runtime=golden.runtime,
            spec=AnyValue(golden.spec.type, msgspec.json.encode(spec)),
            snapshotter=golden.snapshotter,
            snapshot_key=_snapshot(clone.id),
            options=golden.options,
            labels=labels,
        )

    async def _fill_shm(self, clone: Clone, manifest: Manifest) -> None:
        """Give the clone a /dev/shm of its own, with what was in its pod's."""
        place = self._shelf.clone_path(clone.id, shelves.SHM)
        await asyncio.to_thread(place.mkdir, 0o1777)
        target = self._shelf.clone_node_path(clone.id, shelves.SHM)
        options = f"nosuid,nodev,noexec,mode=1777,size={_SHM_SIZE}"
        await must(self._runtime.info, "mount", "-t", "tmpfs", "-o", options, "shm", target)
        source = self._shelf.path(manifest.id, shelves.SHM)
        stop = threading.Event()
        await in_thread(stop, lambda: copy_tree(str(source), str(place), stop.is_set))

    async def _start(self, clone: Clone) -> int:
        try:
            return await self._runtime.tasks.start(clone.id, timeout=_START_TIMEOUT)
        except RuntimeFailure as error:
            raise await self._explained(clone, error) from None

    async def _explained(self, clone: Clone, error: RuntimeFailure) -> CheckpointError | RuntimeFailure:
        path = self._shelf.clone_path(clone.id, shelves.WORK, "restore.log")
        log = await asyncio.to_thread(shelves.tail, path)
        verdict = explain(log, error.message)
        _log.warning("a restore failed", id=clone.id, outcome=verdict.outcome, why=error.message, log=verdict.excerpt)
        what = "; ".join(verdict.causes) or "; ".join(verdict.excerpt[-2:]) or error.message
        text, hint = f"CRIU cannot restore: {what}", verdict.hint or None
        if verdict.outcome == "refused":
            return CheckpointRefused(text, causes=verdict.causes, hint=hint)
        if verdict.outcome == "crashed":
            return CriuCrashed(text, hint=hint)
        if verdict.outcome == "no-space":
            return CheckpointNoSpace(text, hint=hint)
        return CheckpointError(text, hint=hint) if log else error

    def _work(self, clone: str) -> str:
        return self._shelf.clone_node_path(clone, shelves.WORK)

    # ------------------------------------------------------------------------------------------ memory

    async def supervise(self) -> None:
        """Watch over the helpers of all clones whose memory is not in yet, those of an earlier stokerd included."""
        for clone in await asyncio.to_thread(self._shelf.clones):
            if clone.state == "made" and clone.memory == "loading":
                self._loading.put_nowait(clone)
        watched: set[str] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                clone = await self._loading.get()
                if clone.id not in watched:
                    watched.add(clone.id)
                    group.create_task(self._watch(clone), name=f"memory of {clone.id}")

    async def _watch(self, clone: Clone) -> None:
        """Wait for the end of a helper; a clone whose memory is lost is killed."""
        await helpers.ended(clone.helper, self._work(clone.id))
        while True:
            try:
                await self._memory_ended(clone)
            except (RuntimeUnavailable, RuntimeTimeout):
                await self._runtime.wait_ready()
                await asyncio.sleep(_RETRY_PAUSE)
            except (RuntimeFailure, OSError) as error:
                _log.warning("cannot look after a clone", id=clone.id, why=str(error))
                return
            else:
                return

    async def _memory_ended(self, clone: Clone) -> None:
        work = self._shelf.clone_path(clone.id, shelves.WORK)
        if not await asyncio.to_thread(self._shelf.clone_path(clone.id, shelves.CLONE).exists):
            return  # it was removed, and its helper with it
        if await asyncio.to_thread(helpers.exit_status, work) == 0:
            await asyncio.to_thread(self._shelf.write_clone, replace(clone, memory="loaded", helper=0))
            return
        log = await asyncio.to_thread(shelves.tail, work / helpers.LOG)
        why = (log.strip().splitlines() or ["criu lazy-pages was killed"])[-1]
        _log.error("a clone has lost its memory and is killed", id=clone.id, why=why)
        task = await self._runtime.tasks.get(clone.id)
        if task is not None and task.state != "stopped":
            await self._runtime.tasks.kill(clone.id, _KILL, everyone=True)
        await asyncio.to_thread(self._shelf.write_clone, replace(clone, memory="lost", helper=0, why=why))

    # ------------------------------------------------------------------------------------------ undoing

    async def _give_up(self, clone: str) -> None:
        """Take back what was made of a clone; what cannot be done now is done by the next `converge`."""
        found = {each.id: each for each in await asyncio.to_thread(self._shelf.clones)}
        if clone in found:
            try:
                await self.undo(found[clone])
            except (RuntimeFailure, CheckpointError, OSError) as error:
                _log.warning("cannot clear up after a clone now", id=clone, why=str(error))

    async def undo(self, clone: Clone) -> None:
        """Remove all that is a clone's own, whatever of it is there. Its description goes last."""
        info = self._runtime.info
        await self._end(clone.id)
        helper = clone.helper or await asyncio.to_thread(helpers.begun, self._shelf.clone_path(clone.id, shelves.WORK))
        if helper:
            await asyncio.to_thread(helpers.kill, helper, self._work(clone.id))
        await self._runtime.records.delete(clone.id)
        await self._runtime.snapshots.remove(_snapshot(clone.id))
        await self._disconnect(clone)
        await networks.drop_netns(info, clone.id)
        if await asyncio.to_thread(self._shelf.clone_path(clone.id, shelves.SHM).exists):
            await run_on_node(info, ["umount", "--lazy", self._shelf.clone_node_path(clone.id, shelves.SHM)])
        await asyncio.to_thread(self._shelf.discard_clone, clone.id)

    async def _disconnect(self, clone: Clone) -> None:
        """Give the address back. Where ADD never succeeded, a plugin that fails again is no reason to keep the rest."""
        if clone.network is None:
            return
        try:
            await networks.detach(self._runtime.info, clone.id, clone.network, clone.result)
        except CheckpointError as error:
            if clone.result is not None:
                raise
            _log.warning("a network that was never made cannot be taken down", id=clone.id, why=error.message)

    async def _end(self, clone: str) -> None:
        """Kill all processes of the clone and wait until they are gone."""
        task = await self._runtime.tasks.get(clone)
        if task is None:
            return
        if task.state in {"paused", "pausing"}:
            await self._runtime.tasks.resume(clone)
        if task.state != "stopped" and task.pid:
            await self._runtime.tasks.kill(clone, _KILL, everyone=True)
            try:
                async with asyncio.timeout(_KILL_TIMEOUT):
                    await self._runtime.tasks.wait(clone)
            except TimeoutError:
                raise CheckpointError(f"{clone} does not end although it was killed") from None
        await self._runtime.tasks.delete(clone)


def _snapshot(clone: str) -> str:
    return f"stoker-{clone}"


def _pages(manifest: Manifest) -> int:
    """Return how much memory a checkpoint holds."""
    return sum(part.size for part in manifest.parts if part.path.startswith(f"{shelves.IMAGES}/pages-"))
