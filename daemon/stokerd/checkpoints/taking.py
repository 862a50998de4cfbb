"""One checkpoint of one container: survey, intent, freeze, dump and copy side by side, thaw, commit, manifest.

Whatever fails, the container runs on, and nothing is left: no snapshot, no file. What cannot be cleared up now, because
containerd is away, is written down in the intent, and `converging` does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import msgspec
import structlog

from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.cloning import sandbox_files
from stokerd.checkpoints.copying import Copied, copy_tree
from stokerd.checkpoints.digests import tree_digest
from stokerd.checkpoints.ending import in_thread, settled, to_the_end
from stokerd.checkpoints.errors import (
    CheckpointError,
    CheckpointNoSpace,
    CheckpointRefused,
    CheckpointTimeout,
    CriuCrashed,
)
from stokerd.checkpoints.freezing import Dumpers, Freeze, dump_ended
from stokerd.checkpoints.manifest import VERSION, Manifest, Part, Root, Source
from stokerd.checkpoints.model import (
    Intent,
    Tell,
    Wish,
    active_key,
    root_name,
    shared_memory,
    snapshot_labels,
    untold,
)
from stokerd.checkpoints.overlay import Root as OverlayRoot
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.preflight import Facts, obstacles
from stokerd.checkpoints.refusals import explain
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.surveying import Survey, node_of
from stokerd.errors import NotFound, RuntimeFailure, RuntimeNoSpace, RuntimeTimeout
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.task_types import ContainerRecord, Task

_log = structlog.get_logger("checkpoints")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ORPHAN_TIMEOUT = 60.0
_FILE_LIMIT = 1 << 20


def new_id(now: datetime) -> str:
    return f"cp-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def utc_now() -> datetime:
    return datetime.now(UTC)


class Job(msgspec.Struct, frozen=True):
    """A checkpoint under way."""

    id: str
    wish: Wish
    record: ContainerRecord
    task: Task
    upper: str
    parent: str
    began: datetime
    tell: Tell


class Captured(msgspec.Struct, frozen=True):
    """What was taken within the freeze."""

    root: Copied
    shm: bool
    frozen_ms: float


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
        self._runtime, self._shelf, self._owner = runtime, shelf, owner
        self._survey, self._dumpers, self._clock = survey, dumpers, clock
        self.under_way: set[str] = set()
        """Checkpoints that are being made: nobody else clears those up."""

    async def take(self, container_id: str, wish: Wish, tell: Tell = untold) -> Manifest:
        """Checkpoint the container. CheckpointRefused, before anything is frozen, names what stands in the way."""
        tell("surveying")
        job = await self._prepare(container_id, wish, tell)
        now = Intent(job.id, container_id, job.began, was_paused=job.task.state == "paused")
        certain = True
        self.under_way.add(job.id)
        try:
            await in_thread(threading.Event(), lambda: self._shelf.begin(now))
            try:
                return await self._make(job, now)
            except _Uncertain as error:
                certain = False
                raise error.cause from None
        except OSError as error:
            raise no_space(error) or CheckpointError(f"{error.filename or job.id}: {error.strerror}") from None
        except RuntimeNoSpace as error:
            raise CheckpointNoSpace(error.message) from None
        finally:
            if certain:
                await to_the_end(self._clear(job.id), f"clear {job.id}")
            self.under_way.discard(job.id)

    # ------------------------------------------------------------------------------------------ before

    async def _prepare(self, container_id: str, wish: Wish, tell: Tell) -> Job:
        """Find everything out, and refuse what cannot work."""
        record = await self._runtime.records.get(container_id)
        task = await self._runtime.tasks.get(container_id)
        if record is None or task is None:
            raise NotFound(f"no container {container_id} runs here")
        root = await self._root(record)
        facts = Facts(self._runtime.info.criu_version, task.state, overlay=root is not None)
        if task.state in {"running", "paused"} and root is not None:
            facts = await self._look(facts, record, task, root)
        found = obstacles(facts, wish.tcp)
        if found or root is None:
            causes = tuple(f"{each.message} ({each.hint})" if each.hint else each.message for each in found)
            raise CheckpointRefused(
                f"container {container_id} cannot be checkpointed: {'; '.join(each.message for each in found)}",
                causes=causes,
                hint=next((each.hint for each in found if each.hint), None),
            )
        info = await self._runtime.snapshots.stat(record.snapshot_key)
        now = self._clock()
        return Job(new_id(now), wish, record, task, root.upper, info.parent if info is not None else "", now, tell)

    async def _root(self, record: ContainerRecord) -> OverlayRoot | None:
        if record.snapshotter != self._runtime.info.snapshotter or not record.snapshot_key:
            return None
        root = root_of(await self._runtime.snapshots.mounts(record.snapshot_key))
        return root if root is not None and root.upper else None

    async def _look(self, facts: Facts, record: ContainerRecord, task: Task, root: OverlayRoot) -> Facts:
        pids = await self._runtime.tasks.pids(record.id)
        usage = await self._runtime.snapshots.usage(record.snapshot_key)
        if usage is not None:
            facts = msgspec.structs.replace(facts, upper_bytes=usage.bytes, upper_inodes=usage.inodes)
        ordered = (task.pid, *(pid for pid in pids if pid != task.pid))
        prefix, spec = self._runtime.info.host_root, record.document()
        return await asyncio.to_thread(self._survey, facts, ordered, spec, self._shelf.directory, root.upper, prefix)

    # ------------------------------------------------------------------------------------------ the work

    async def _make(self, job: Job, intent: Intent) -> Manifest:
        labels = snapshot_labels(job.id, self._owner, job.began)
        mounts = await self._runtime.snapshots.prepare(active_key(job.id), job.parent, labels=labels)
        target = root_of(mounts)
        if target is None or not target.upper:
            raise CheckpointError("the snapshot for the root filesystem is not on containerd's overlayfs")
        captured = await self._capture(job, intent, target.upper)
        job.tell("sealing")
        stop = threading.Event()
        digest = await in_thread(stop, lambda: tree_digest(self._here(target.upper), stop.is_set))
        await self._runtime.snapshots.commit(active_key(job.id), root_name(job.id), labels=labels)
        root = Root(
            snapshot=root_name(job.id),
            parent=job.parent,
            snapshotter=job.record.snapshotter,
            digest=digest,
            bytes=captured.root.bytes,
            entries=captured.root.entries,
        )
        manifest = await self._describe(job, captured, root)
        await in_thread(threading.Event(), lambda: self._shelf.seal(manifest))
        _log.info("checkpoint is complete", id=job.id, container=job.record.id, frozen_ms=round(captured.frozen_ms, 1))
        return manifest

    async def _capture(self, job: Job, intent: Intent, target: str) -> Captured:
        """Everything between freeze and thaw."""
        job.tell("freezing")
        began = perf_counter()
        freeze = Freeze(self._runtime, job.record.id, ours=not intent.was_paused)
        try:
            async with freeze.held():
                copied, shm = await self._both(job, target)
        except BaseException as error:
            if not freeze.thawed:
                raise _Uncertain(error) from None
            raise
        if not freeze.thawed:
            raise _Uncertain(CheckpointError(f"container {job.record.id} could not be thawed: containerd is away"))
        return Captured(copied, shm, (perf_counter() - began) * 1000)

    async def _both(self, job: Job, target: str) -> tuple[Copied, bool]:
        """Dump the memory and copy the files, side by side: nothing of the container runs meanwhile.

        A dump is never broken off: its CRIU may work on without runc, with the container in its hands.
        """
        job.tell("dumping")
        stop = threading.Event()
        dump = asyncio.create_task(self._dump(job), name=f"dump {job.id}")
        copy = asyncio.create_task(in_thread(stop, lambda: self._copy(job, target, stop)), name=f"copy {job.id}")
        dump.add_done_callback(lambda done: stop.set() if done.cancelled() or done.exception() else None)
        cancelled = await settled(asyncio.gather(dump, copy, return_exceptions=True), stop.set)
        if cancelled is not None:
            raise cancelled
        for task in (dump, copy):
            error = task.exception()
            if error is not None:
                raise error
        return copy.result()

    async def _dump(self, job: Job) -> None:
        images, work = (self._shelf.node_path(job.id, name) for name in (shelves.IMAGES, shelves.WORK))
        options = job.wish.dump_options()
        try:
            await self._runtime.tasks.checkpoint(job.record.id, images, work, options, timeout=job.wish.timeout)
        except RuntimeTimeout:
            await dump_ended(self._shelf.node_path(job.id), self._dumpers, _ORPHAN_TIMEOUT)
            raise CheckpointTimeout(
                f"the dump was not complete within {job.wish.timeout:g} s",
                hint="give it more time (timeout), or checkpoint while the container uses less memory",
            ) from None
        except RuntimeFailure as error:
            await dump_ended(self._shelf.node_path(job.id), self._dumpers, _ORPHAN_TIMEOUT)
            raise await self._explained(job, error) from None

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

    def _copy(self, job: Job, target: str, stop: threading.Event) -> tuple[Copied, bool]:
        """Copy the root filesystem, and the pod's /dev/shm. In a thread."""
        copied = copy_tree(self._here(job.upper), self._here(target), stop.is_set)
        shm = shared_memory(job.record.document())
        if not shm:
            return copied, False
        place = self._shelf.path(job.id, shelves.SHM)
        place.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            copy_tree(self._here(shm), str(place), stop.is_set)
            return copied, True
        return copied, False

    async def _describe(self, job: Job, captured: Captured, root: Root) -> Manifest:
        about = await self._runtime.containers.status(job.record.id) if _is_cri(job.record) else None
        pods = {pod.id: pod for pod in await self._runtime.pods.list()}
        pod = pods.get(about.container.pod_id) if about is not None else None
        source = Source(
            container_id=job.record.id,
            container_name=about.container.name if about is not None else job.record.id,
            pod_id=pod.id if pod is not None else "",
            pod_name=pod.name if pod is not None else "",
            pod_namespace=pod.namespace if pod is not None else "",
            image=job.record.image,
            image_digest=about.container.image_ref if about is not None else "",
            runtime=job.record.runtime,
        )
        stop = threading.Event()

        def finish() -> tuple[tuple[Part, ...], str]:
            self._shelf.write(job.id, shelves.SPEC, job.record.spec.value)
            self._shelf.write(job.id, shelves.RECORD, msgspec.msgpack.encode(job.record))
            self._shelf.write(job.id, shelves.FILES, msgspec.json.encode(self._sandbox_files(job)))
            shm = self._shelf.path(job.id, shelves.SHM)
            return self._shelf.parts(job.id), tree_digest(str(shm), stop.is_set) if captured.shm else ""

        parts, shm_digest = await in_thread(stop, finish)
        return Manifest(
            version=VERSION,
            id=job.id,
            name=job.wish.name or job.id,
            created_at=job.began,
            source=source,
            node=await asyncio.to_thread(node_of, self._runtime.info),
            root=root,
            parts=parts,
            shm_digest=shm_digest,
            frozen_ms=round(captured.frozen_ms, 3),
            left_running=job.wish.leave_running,
            tcp=job.wish.tcp,
            labels=job.wish.labels,
        )

    def _sandbox_files(self, job: Job) -> dict[str, bytes]:
        """Read the files that go with the pod, such as resolv.conf: a clone outlives it."""
        found: dict[str, bytes] = {}
        for place, source in sandbox_files(job.record.document()).items():
            path = Path(self._here(source))
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size <= _FILE_LIMIT:
                    found[place] = path.read_bytes()
        return found

    # ------------------------------------------------------------------------------------------ after

    async def _clear(self, checkpoint: str) -> None:
        """Remove what an incomplete checkpoint left; a complete one stays."""
        try:
            if await asyncio.to_thread(self._shelf.manifest, checkpoint) is None:
                await remove(self._runtime, self._shelf, checkpoint)
        except (RuntimeFailure, OSError) as error:
            _log.warning("cannot clear up now; the next reconciliation does", id=checkpoint, why=str(error))

    def _here(self, path: str) -> str:
        return f"{self._runtime.info.host_root}{path}"


class _Uncertain(Exception):
    """The container may be frozen still: the intent must stay. ``cause`` is what really happened."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def remove(runtime: NativeRuntime, shelf: Shelf, checkpoint: str) -> None:
    """Remove a checkpoint, complete or not. The files go last: as long as they are there, it is tried again."""
    await asyncio.to_thread(lambda: shelf.path(checkpoint, shelves.MANIFEST).unlink(missing_ok=True))
    for name in (active_key(checkpoint), root_name(checkpoint)):
        await runtime.snapshots.remove(name)
    await asyncio.to_thread(shelf.discard, checkpoint)


def no_space(error: OSError) -> CheckpointNoSpace | None:
    if error.errno not in _FULL:
        return None
    return CheckpointNoSpace(
        f"no space left for the checkpoint: {error.filename or error.strerror}",
        hint="free space, or remove old checkpoints",
    )


def _is_cri(record: ContainerRecord) -> bool:
    return record.labels.get("io.cri-containerd.kind") == "container"
