"""Checkpoints of one container, or of several in one freeze: survey, intent, freeze, dump and copy, thaw, manifest.

Whatever fails, the containers run on, and nothing is left: no snapshot, no file. What cannot be cleared up now, because
containerd is away, is written down in the intent, and `converging` does it.

A container that is to be stopped stands until its checkpoint is complete, and is killed only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from time import perf_counter

import msgspec
import structlog

from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.catching import caught, still, thaw_group
from stokerd.checkpoints.copying import Copied, copy_tree
from stokerd.checkpoints.describing import Describer
from stokerd.checkpoints.digests import tree_digest
from stokerd.checkpoints.ending import in_thread, settled, to_the_end
from stokerd.checkpoints.errors import (
    CheckpointError,
    CheckpointNoSpace,
    CheckpointRefused,
    CheckpointTimeout,
    CriuCrashed,
)
from stokerd.checkpoints.freezing import Dumpers, Freeze, dump_ended, end, held
from stokerd.checkpoints.manifest import Manifest, Root, Together
from stokerd.checkpoints.model import (
    GC_ROOT_LABEL,
    Tell,
    Wish,
    active_key,
    root_name,
    shared_memory,
    snapshot_labels,
    untold,
)
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.preparing import Job, Preparer
from stokerd.checkpoints.refusals import explain
from stokerd.checkpoints.scratch import Scratch, Tried, look
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.surveying import Survey
from stokerd.errors import RuntimeFailure, RuntimeInvalid, RuntimeNoSpace, RuntimeTimeout
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ORPHAN_TIMEOUT = 60.0
_VIEW_TRIES = 5
_VIEW_PAUSE = 0.1
_NEARLY = 0.9


def utc_now() -> datetime:
    return datetime.now(UTC)


class Captured(msgspec.Struct, frozen=True):
    """What was taken of one container within the freeze: its root's copy, and whether there was a /dev/shm to take.
    ``since`` is when it began to stand, where CRIU alone held it (`perf_counter`)."""

    upper: str
    root: Copied
    shm: bool
    since: float = 0.0


class Taker:
    """Makes checkpoints. *survey* and *dumpers* read the machine; tests bring their own."""

    def __init__(
        self,
        runtime: NativeRuntime,
        shelf: Shelf,
        owner: str,
        survey: Survey,
        dumpers: Dumpers,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._runtime, self._shelf, self._owner, self._dumpers = runtime, shelf, owner, dumpers
        self._preparer = Preparer(runtime, shelf, survey, clock)
        self._describer = Describer(runtime, shelf)
        self.under_way: set[str] = set()
        """Checkpoints that are being made: nobody else clears those up."""
        self.left: Callable[[], object] = lambda: None
        """Is called when something was left that the next reconciliation has to do."""

    async def take(
        self, container_ids: Sequence[str], wish: Wish, tell: Tell = untold, *, grouped: bool = False
    ) -> tuple[Manifest, ...]:
        """Checkpoint the containers in one freeze. CheckpointRefused, before anything is frozen, names what stands in
        the way. When one of them fails, there is no checkpoint of any."""
        try:
            return await self._take(container_ids, wish, tell, grouped=grouped)
        except _TooLate as late:
            _log.info("the files could not be copied within the dump; once more, frozen", containers=container_ids)
            return await self._take(container_ids, wish, tell, grouped=grouped, tried=late.tried)

    async def _take(
        self, container_ids: Sequence[str], wish: Wish, tell: Tell, *, grouped: bool, tried: Tried | None = None
    ) -> tuple[Manifest, ...]:
        tell("surveying")
        found = await self._preparer.prepare(container_ids, wish, tell, grouped=grouped, quick=tried is None)
        jobs = [msgspec.structs.replace(job, tried=tried) for job in found]
        freezes = tuple(Freeze(self._runtime, job.record.id, ours=not job.intent.was_paused) for job in jobs)
        self.under_way.update(job.id for job in jobs)
        try:
            await in_thread(threading.Event(), lambda: self._shelf.begin(*(job.intent for job in jobs)))
            return await self._make(jobs, freezes)
        except OSError as error:
            raise no_space(error) or CheckpointError(f"{error.filename or jobs[0].id}: {error.strerror}") from None
        except RuntimeNoSpace as error:
            raise CheckpointNoSpace(error.message) from None
        finally:
            certain = [job.id for job, freeze in zip(jobs, freezes, strict=True) if freeze.thawed]
            tidy = False
            try:
                tidy = await to_the_end(self._clear(certain), f"clear {', '.join(certain)}")
            finally:
                self.under_way.difference_update(job.id for job in jobs)
                if not tidy or len(certain) < len(jobs):
                    self.left()

    # ------------------------------------------------------------------------------------------ the work

    async def _make(self, jobs: Sequence[Job], freezes: Sequence[Freeze]) -> tuple[Manifest, ...]:
        uppers = [await self._target(job) for job in jobs]
        if jobs[0].quick:
            return await self._make_quickly(jobs[0], uppers[0])
        jobs[0].tell("freezing")
        began = perf_counter()
        stop = jobs[0].intent.stop
        made: tuple[Manifest, ...] = ()
        async with held(*freezes):
            jobs[0].tell("frozen")
            captured = [await self._both(job, upper) for job, upper in zip(jobs, uppers, strict=True)]
            if stop:
                made = await self._complete(jobs, captured, began)
                await to_the_end(self._stop(jobs, freezes), f"stop {', '.join(job.record.id for job in jobs)}")
        frozen = next((each for each in freezes if not each.thawed and not each.kept), None)
        if frozen is not None:
            raise CheckpointError(f"container {frozen.id} could not be thawed: containerd is away")
        if not stop:
            made = await self._complete(jobs, captured, began, (perf_counter() - began) * 1000)
        _tell_log(made)
        return made

    async def _make_quickly(self, job: Job, upper: str) -> tuple[Manifest, ...]:
        """Leave it to CRIU to stop the processes and to let them go. _TooLate when that was too short for the copy."""
        try:
            captured = await self._both(job, upper)
        except BaseException:  # also where it is cancelled: the CRIU that ran meanwhile may have died
            await to_the_end(self._thaw_group(job), f"thaw {job.record.id}")
            raise
        frozen_ms = (perf_counter() - captured.since) * 1000
        made = await self._complete((job,), (captured,), captured.since, frozen_ms)
        _tell_log(made)
        return made

    async def _thaw_group(self, job: Job) -> None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(thaw_group, job.task.pid)

    async def _target(self, job: Job) -> str:
        """Make the snapshot that the root filesystem is copied into, and return its upper directory."""
        labels = snapshot_labels(job.id, self._owner, job.began)
        target = root_of(await self._runtime.snapshots.prepare(active_key(job.id), job.parent, labels=labels))
        if target is None or not target.upper:
            raise CheckpointError("the snapshot for the root filesystem is not on containerd's overlayfs")
        return target.upper

    async def _complete(
        self, jobs: Sequence[Job], captured: Sequence[Captured], began: float, frozen_ms: float | None = None
    ) -> tuple[Manifest, ...]:
        """Bring all to the disk. Of a group all manifests are written, and then what makes them count."""
        jobs[0].tell("sealing")
        made = []
        for job, taken in zip(jobs, captured, strict=True):
            root = await self._root(job, taken)
            took = (perf_counter() - began) * 1000 if frozen_ms is None else frozen_ms
            manifest = await self._describer.describe(job, root, took, shm=taken.shm)
            await in_thread(threading.Event(), partial(self._shelf.seal, manifest))
            made.append(manifest)
        if jobs[0].group:
            name = jobs[0].wish.name or jobs[0].group
            together = Together(jobs[0].group, name, jobs[0].began, tuple(job.id for job in jobs))
            await in_thread(threading.Event(), lambda: self._shelf.seal_group(together))
        return tuple(made)

    async def _root(self, job: Job, taken: Captured) -> Root:
        stop = threading.Event()
        digest = await in_thread(stop, lambda: tree_digest(self._here(taken.upper), stop.is_set))
        labels = snapshot_labels(job.id, self._owner, job.began)
        await self._runtime.snapshots.commit(active_key(job.id), root_name(job.id), labels=labels)
        return Root(
            snapshot=root_name(job.id),
            parent=job.parent,
            snapshotter=job.record.snapshotter,
            digest=digest,
            bytes=taken.root.bytes,
            entries=taken.root.entries,
        )

    async def _stop(self, jobs: Sequence[Job], freezes: Sequence[Freeze]) -> None:
        """End the containers, which stand. What does not succeed is done by the next reconciliation."""
        jobs[0].tell("stopping")
        for job, freeze in zip(jobs, freezes, strict=True):
            freeze.kept = True
            if await end(self._runtime, job.record.id):
                freeze.thawed = True
                await asyncio.to_thread(self._shelf.forget_intent, job.id)

    async def _both(self, job: Job, target: str) -> Captured:
        """Dump the memory and copy the files, side by side: nothing of the container runs meanwhile.

        A dump is never broken off: its CRIU may work on without runc, with the container in its hands.
        """
        job.tell("dumping")
        stop, ended = threading.Event(), threading.Event()
        began = perf_counter()
        before = await in_thread(stop, lambda: look(self._here(job.upper)))
        if job.tried is not None:
            before = job.tried.and_now(before)
        work: Callable[[], Captured | None] = partial(self._copy, job, target, stop, before)
        if job.quick:
            work = partial(self._copy_meanwhile, job, target, stop, before, ended)
        dump = asyncio.create_task(self._dump(job), name=f"dump {job.id}")
        copy = asyncio.create_task(in_thread(stop, work), name=f"copy {job.id}")
        dump.add_done_callback(lambda done: stop.set() if done.cancelled() or done.exception() else ended.set())
        cancelled = await settled(asyncio.gather(dump, copy, return_exceptions=True), stop.set)
        if cancelled is not None:
            raise cancelled
        for task in (dump, copy):
            error = task.exception()
            if error is not None:
                raise error
        captured = copy.result()
        if captured is None:
            raise _TooLate(Tried(before, began, perf_counter()))
        return captured

    async def _dump(self, job: Job) -> None:
        images, work = (self._shelf.node_path(job.id, name) for name in (shelves.IMAGES, shelves.WORK))
        options = job.wish.dump_options(job.together)
        began = perf_counter()
        try:
            await self._runtime.tasks.checkpoint(job.record.id, images, work, options, timeout=job.wish.timeout)
        except RuntimeFailure as error:
            # containerd may be a moment ahead with the deadline, and then breaks the call off without a word.
            late = isinstance(error, RuntimeTimeout) or perf_counter() - began > job.wish.timeout * _NEARLY
            await dump_ended(self._shelf.node_path(job.id), self._dumpers, _ORPHAN_TIMEOUT)
            if not late:
                raise await self._explained(job, error) from None
            raise CheckpointTimeout(
                f"the dump was not complete within {job.wish.timeout:g} s",
                hint="give it more time (timeout), or checkpoint while the container uses less memory",
            ) from None

    async def _explained(self, job: Job, error: RuntimeFailure) -> CheckpointError | RuntimeFailure:
        log = await asyncio.to_thread(self._shelf.log_tail, job.id, "dump.log")
        verdict = explain(log, error.message, full=await asyncio.to_thread(self._shelf.is_full))
        _log.warning("the dump failed", id=job.id, outcome=verdict.outcome, why=error.message, log=verdict.excerpt)
        what = "; ".join(verdict.causes) or "; ".join(verdict.excerpt[-2:])
        hint = verdict.hint or None
        if verdict.outcome == "no-space":
            return CheckpointNoSpace(f"no space for the memory of container {job.record.id}", hint=hint)
        if verdict.outcome == "refused":
            return CheckpointRefused(f"CRIU refuses: {what}", causes=verdict.causes, hint=hint)
        if verdict.outcome == "crashed":
            return CriuCrashed(f"CRIU died during the dump: {error.message}", hint=hint)
        if not log:
            return error
        return CheckpointError(f"CRIU failed: {what or error.message}")

    def _copy(self, job: Job, target: str, stop: threading.Event, before: Scratch) -> Captured:
        """Copy the root filesystem, and the pod's /dev/shm. In a thread."""
        copied = copy_tree(self._here(job.upper), self._here(target), stop.is_set, skip=before.is_criu)
        before.mend(self._here(target), copied)
        shm = shared_memory(job.record.document())
        if not shm:
            return Captured(target, copied, shm=False)
        place = self._shelf.path(job.id, shelves.SHM)
        place.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            copy_tree(self._here(shm), str(place), stop.is_set)
            return Captured(target, copied, shm=True)
        return Captured(target, copied, shm=False)

    def _copy_meanwhile(
        self, job: Job, target: str, stop: threading.Event, before: Scratch, ended: threading.Event
    ) -> Captured | None:
        """Copy while CRIU holds all processes; None when it did not hold them from the first file to the last."""
        held = caught(job.task.pid, lambda: stop.is_set() or ended.is_set())
        if held is None:
            return None
        before = before.looked_again(look(self._here(job.upper)), held.since)
        captured = self._copy(job, target, stop, before)
        if not still(job.task.pid, held):
            return None
        return msgspec.structs.replace(captured, since=held.since)

    # ------------------------------------------------------------------------------------------ after

    async def _clear(self, checkpoints: Sequence[str]) -> bool:
        """Remove what incomplete checkpoints left; complete ones stay. False when that is left to the next one."""
        tidy = True
        for checkpoint in checkpoints:
            try:
                if await asyncio.to_thread(self._shelf.manifest, checkpoint) is None:
                    await remove(self._runtime, self._shelf, checkpoint)
            except (RuntimeFailure, CheckpointError, OSError) as error:
                _log.warning("cannot clear up now; the next reconciliation does", id=checkpoint, why=str(error))
                tidy = False
        return tidy

    def _here(self, path: str) -> str:
        return f"{self._runtime.info.host_root}{path}"


class _TooLate(CheckpointError):
    """CRIU had let the processes go before the copy of their files was complete."""

    def __init__(self, tried: Tried) -> None:
        super().__init__("the dump ended before the copy of the files")
        self.tried = tried


def _tell_log(made: Sequence[Manifest]) -> None:
    for manifest in made:
        took, container = round(manifest.frozen_ms, 1), manifest.source.container_id
        _log.info("checkpoint is complete", id=manifest.id, container=container, frozen_ms=took)


async def remove(runtime: NativeRuntime, shelf: Shelf, checkpoint: str) -> None:
    """Remove a checkpoint, complete or not. The files go last: as long as they are there, it is tried again."""
    await asyncio.to_thread(lambda: shelf.path(checkpoint, shelves.MANIFEST).unlink(missing_ok=True))
    for name in (active_key(checkpoint), root_name(checkpoint)):
        await _remove_snapshot(runtime, name)
    await asyncio.to_thread(shelf.discard, checkpoint)


async def _remove_snapshot(runtime: NativeRuntime, name: str) -> None:
    """Remove it. Where somebody looks through a view of it just now, a moment later.

    containerd's garbage collector takes children without telling the parent, which can then never be removed, but by
    the collector itself.
    """
    for _ in range(_VIEW_TRIES):
        try:
            await runtime.snapshots.remove(name)
        except RuntimeInvalid:
            await asyncio.sleep(_VIEW_PAUSE)
        else:
            return
    if any(each.parent == name for each in await runtime.snapshots.list()):
        await runtime.snapshots.remove(name)
        return
    if await runtime.snapshots.stat(name) is None:
        return
    _log.info("a snapshot is left to containerd's garbage collector", snapshot=name)
    await runtime.snapshots.set_labels(name, {GC_ROOT_LABEL: None})
    lease = f"stoker-collect-{secrets.token_hex(8)}"
    await runtime.leases.create(lease, {})
    await runtime.leases.delete(lease)
    if await runtime.snapshots.stat(name) is not None:
        raise CheckpointError(f"snapshot {name} cannot be removed")


async def remove_group(runtime: NativeRuntime, shelf: Shelf, group: Together) -> None:
    """Remove all checkpoints of a group. Without its file they count for nothing, should this be broken off."""
    await asyncio.to_thread(shelf.break_group, group.id)
    for checkpoint in group.members:
        await remove(runtime, shelf, checkpoint)


def no_space(error: OSError) -> CheckpointNoSpace | None:
    if error.errno not in _FULL:
        return None
    return CheckpointNoSpace(
        f"no space left for the checkpoint: {error.filename or error.strerror}",
        hint="free space, or remove old checkpoints",
    )
