"""Container records and tasks in memory, beneath CRI: freezing, dumps, restores.

CRI's containers are among them, with a snapshot each. A dump writes a few files that stand for CRIU's images to the
directory that it is told, which must be a real one; `Conduct.dump_log` makes it fail as CRIU does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from stokerd.errors import RuntimeAlreadyExists, RuntimeFailure, RuntimeInvalid, RuntimeNotFound, RuntimeTimeout
from stokerd.runtime.memory_pods import MemoryContainer, PodStore
from stokerd.runtime.memory_services import Session
from stokerd.runtime.memory_store import Store
from stokerd.runtime.task_types import (
    AnyValue,
    ContainerRecord,
    DumpOptions,
    Exit,
    Mount,
    Restore,
    Stdio,
    Task,
    TaskState,
)

SPEC_TYPE = "types.containerd.io/opencontainers/runtime-spec/1/Spec"
RUNC = "io.containerd.runc.v2"
_FATAL = frozenset({9, 15})
_STATES: Mapping[str, TaskState] = {"created": "created", "running": "running"}


@dataclass(slots=True, eq=False)
class NativeTask:
    """A task that CRI knows nothing of, and what it was made with. ``restore`` is where it comes back from when it is
    started."""

    pid: int
    restore: Restore | None = None
    rootfs: tuple[Mount, ...] = ()
    options: AnyValue | None = None
    stdio: Stdio | None = None
    state: TaskState = "created"
    exit_code: int = 0
    exited_at: datetime | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class TaskStore:
    """What containerd keeps of containers beneath CRI. ``frozen`` names those whose processes stand; ``dumps`` is how
    often each container was dumped, ``restored`` how often each was brought back, ``executed`` what was run in them."""

    def __init__(self, node: PodStore, store: Store) -> None:
        self.node, self.store = node, store
        self.records: dict[str, ContainerRecord] = {}
        self.tasks: dict[str, NativeTask] = {}
        self.frozen: set[str] = set()
        self.dumps: dict[str, int] = {}
        self.restored: dict[str, int] = {}
        self.executed: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.exec_codes: dict[str, int | None] = {}
        self._pids = itertools.count(70_000, 3)
        node.on_create, node.on_remove = self._made, self._removed
        store.held_snapshots = self._held

    # ------------------------------------------------------------------------------------------ records

    def record(self, container_id: str) -> ContainerRecord | None:
        container = self.node.containers.get(container_id)
        return _of_cri(container) if container is not None else self.records.get(container_id)

    def all_records(self) -> list[ContainerRecord]:
        return [*map(_of_cri, self.node.containers.values()), *self.records.values()]

    def create_record(self, record: ContainerRecord) -> ContainerRecord:
        if self.record(record.id) is not None:
            raise RuntimeAlreadyExists(f'container "{record.id}": already exists', status="ALREADY_EXISTS")
        now = self.node.clock()
        made = self.records[record.id] = replace(record, created_at=now, updated_at=now)
        return made

    # ------------------------------------------------------------------------------------------ tasks

    def task(self, container_id: str) -> Task | None:
        """Return the task; a container of CRI has one from its creation on, a sandbox its pause process."""
        container = self.node.containers.get(container_id)
        if container is not None:
            state = self._seen(container_id, _STATES.get(container.state, "stopped"))
            return Task(container_id, container.pid, state, container.exit_code, container.finished_at)
        pod = self.node.pods.get(container_id)
        if pod is not None:
            return Task(container_id, pod.pid, "running" if pod.state == "ready" else "stopped")
        own = self.tasks.get(container_id)
        if own is None:
            return None
        return Task(container_id, own.pid, self._seen(container_id, own.state), own.exit_code, own.exited_at)

    def _seen(self, container_id: str, state: TaskState) -> TaskState:
        return "paused" if state == "running" and container_id in self.frozen else state

    def ending(self, container_id: str) -> asyncio.Event:
        """Return what is set when the task ends."""
        either = self.node.containers.get(container_id) or self.node.pods.get(container_id)
        return either.ended if either is not None else self.tasks[container_id].ended

    def known(self, container_id: str, call: str) -> Task:
        task = self.task(container_id)
        if task is None:
            raise RuntimeNotFound(f"task {container_id} not found: not found", status="NOT_FOUND", call=call)
        return task

    def freeze(self, container_id: str) -> None:
        if self.known(container_id, "tasks.Pause").state != "running":
            raise RuntimeFailure("cannot pause container: it is not running", status="UNKNOWN", call="tasks.Pause")
        self.frozen.add(container_id)

    def thaw(self, container_id: str) -> None:
        if self.known(container_id, "tasks.Resume").state != "paused":
            raise RuntimeFailure("cannot resume container: it is not paused", status="UNKNOWN", call="tasks.Resume")
        self.frozen.discard(container_id)

    def dump(self, container_id: str, images: Path, work: Path, options: DumpOptions) -> None:
        """Write images and log as CRIU does, or fail as it does."""
        task = self.known(container_id, "tasks.Checkpoint")
        if task.state not in {"running", "paused"}:
            raise RuntimeFailure("cannot checkpoint a stopped container", status="UNKNOWN", call="tasks.Checkpoint")
        container = self.node.containers.get(container_id)
        conduct = container.conduct if container is not None else None
        (images / "pages-1.img").write_bytes(bytes(conduct.dump_bytes if conduct is not None else 4096))
        if conduct is not None and conduct.dump_log:
            (work / "dump.log").write_text(conduct.dump_log, encoding="utf-8")
            raise RuntimeFailure(
                f"runc did not terminate successfully: exit status 1: criu failed: type NOTIFY errno 0 path= {work}",
                status="UNKNOWN",
                call="tasks.Checkpoint",
            )
        for name in ("inventory.img", f"core-{task.pid}.img", "stats-dump"):
            (images / name).write_bytes(name.encode())
        (work / "dump.log").write_text("(00.071234) Dumping finished successfully\n", encoding="utf-8")
        self.dumps[container_id] = self.dumps.get(container_id, 0) + 1
        if not options.leave_running:
            self.frozen.discard(container_id)
            self.end(container_id, 137)

    def create(self, container_id: str, task: NativeTask) -> int:
        if container_id not in self.records:
            raise RuntimeNotFound(f'container "{container_id}": not found', status="NOT_FOUND", call="tasks.Create")
        if container_id in self.tasks:
            raise RuntimeAlreadyExists(f"task {container_id}: already exists", status="ALREADY_EXISTS")
        task.pid = 0 if task.restore is not None else next(self._pids)
        self.tasks[container_id] = task
        return task.pid

    def start(self, container_id: str) -> int:
        self.known(container_id, "tasks.Start")
        task = self.tasks.get(container_id)
        if task is None or task.state != "created":
            raise RuntimeInvalid("cannot start a task that is not created", status="UNKNOWN", call="tasks.Start")
        if task.restore is not None:
            self._restore(container_id, task.restore)
        task.pid, task.state = task.pid or next(self._pids), "running"
        return task.pid

    def _restore(self, container_id: str, restore: Restore) -> None:
        if not Path(restore.image_path, "inventory.img").exists():
            Path(restore.work_path, "restore.log").write_text("Error (criu/image.c): Can't open inventory.img\n")
            raise RuntimeFailure(
                "runc did not terminate successfully: exit status 1: criu failed: type NOTIFY errno 0",
                status="UNKNOWN",
                call="tasks.Start",
            )
        self.restored[container_id] = self.restored.get(container_id, 0) + 1

    async def execute(self, container_id: str, exec_id: str, process: Mapping[str, Any], timeout: float) -> Exit:
        """Note what is run, and end as ``exec_codes`` says of the program: with a code, or never."""
        if self.known(container_id, "tasks.Exec").state != "running":
            raise RuntimeFailure("cannot exec in a container that does not run", status="FAILED_PRECONDITION")
        argv = tuple(process.get("args") or ())
        self.executed.append((container_id, argv, tuple(process.get("env") or ())))
        code = self.exec_codes.get(argv[0] if argv else "", 0)
        if code is None:
            await asyncio.sleep(timeout)
            raise RuntimeTimeout(f"{exec_id} did not end within {timeout:g} s", call="tasks.WaitExec")
        return Exit(code, self.node.clock())

    def kill(self, container_id: str, signal: int) -> None:
        container = self.node.containers.get(container_id)
        if container is not None:
            stop = self.node.kill if signal == 9 else self.node.ask_to_stop
            stop(container)
        elif signal in _FATAL:
            self.end(container_id, 128 + signal)

    def end(self, container_id: str, exit_code: int) -> None:
        container = self.node.containers.get(container_id)
        if container is not None:
            self.node.end(container, exit_code)
            return
        task = self.tasks.get(container_id)
        if task is not None and task.state != "stopped":
            task.state, task.exit_code, task.exited_at = "stopped", exit_code, self.node.clock()
            task.ended.set()

    def delete(self, container_id: str) -> Exit | None:
        task = self.tasks.get(container_id)
        if task is None:
            return None
        if task.state == "running":
            raise RuntimeFailure("task must be stopped before deletion: running", status="FAILED_PRECONDITION")
        del self.tasks[container_id]
        self.frozen.discard(container_id)
        return Exit(task.exit_code, task.exited_at)

    def name(self, container_id: str) -> str:
        return self.node.name(container_id) or container_id

    # ------------------------------------------------------------------------------------------ inside

    def _made(self, container: MemoryContainer) -> None:
        config = self.store.blobs.get(container.image_ref)
        top = config.labels.get(f"containerd.io/gc.ref.snapshot.{self.store.snapshotter}", "") if config else ""
        parent = top if top in self.store.snapshots else ""
        self.store.make_snapshot(container.id, parent, "active", {}, None)

    def _removed(self, container: MemoryContainer) -> None:
        self.frozen.discard(container.id)
        self.store.remove_snapshot(container.id)

    def _held(self) -> Iterable[str]:
        return [record.snapshot_key for record in self.all_records() if record.snapshot_key]


def _of_cri(container: MemoryContainer) -> ContainerRecord:
    return ContainerRecord(
        id=container.id,
        image=container.image,
        runtime=RUNC,
        spec=AnyValue(SPEC_TYPE, msgspec.json.encode(container.spec)),
        snapshotter="overlayfs",
        snapshot_key=container.id,
        options=AnyValue("containerd.runc.v1.Options", b""),
        labels={"io.cri-containerd.kind": "container", **(container.config.get("labels") or {})},
        created_at=container.created_at,
        updated_at=container.created_at,
    )


class MemoryRecords:
    """`protocol.ContainerRecords`."""

    def __init__(self, session: Session, store: TaskStore) -> None:
        self._session, self._store = session, store

    async def get(self, container_id: str) -> ContainerRecord | None:
        return await self._session.call("containers.Get", lambda: self._store.record(container_id))

    async def list(self, *, labels: Mapping[str, str] | None = None) -> tuple[ContainerRecord, ...]:
        wanted = (labels or {}).items()
        return await self._session.call(
            "containers.ListStream",
            lambda: tuple(each for each in self._store.all_records() if wanted <= each.labels.items()),
        )

    async def create(self, record: ContainerRecord) -> ContainerRecord:
        return await self._session.call("containers.Create", lambda: self._store.create_record(record), record.id)

    async def delete(self, container_id: str) -> None:
        await self._session.call("containers.Delete", lambda: self._store.records.pop(container_id, None))


class MemoryTasks:
    """`protocol.Tasks`."""

    def __init__(self, session: Session, store: TaskStore) -> None:
        self._session, self._store = session, store

    async def get(self, container_id: str) -> Task | None:
        return await self._session.call("tasks.Get", lambda: self._store.task(container_id), self._name(container_id))

    async def pids(self, container_id: str) -> tuple[int, ...]:
        call = "tasks.ListPids"
        return await self._session.call(call, lambda: (self._store.known(container_id, call).pid,))

    async def pause(self, container_id: str) -> None:
        await self._session.call("tasks.Pause", lambda: self._store.freeze(container_id), self._name(container_id))

    async def resume(self, container_id: str) -> None:
        await self._session.call("tasks.Resume", lambda: self._store.thaw(container_id), self._name(container_id))

    async def checkpoint(
        self,
        container_id: str,
        image_path: str,
        work_path: str,
        options: DumpOptions,
        *,
        timeout: float,  # noqa: ARG002 - nothing takes long here
    ) -> None:
        def work() -> None:
            self._store.dump(container_id, Path(image_path), Path(work_path), options)

        await self._session.call("tasks.Checkpoint", work, self._name(container_id))

    async def create(
        self,
        container_id: str,
        rootfs: Sequence[Mount],
        *,
        options: AnyValue | None = None,
        restore: Restore | None = None,
        stdio: Stdio | None = None,
    ) -> int:
        task = NativeTask(0, restore, tuple(rootfs), options, stdio)
        return await self._session.call(
            "tasks.Create", lambda: self._store.create(container_id, task), self._name(container_id)
        )

    async def start(self, container_id: str, *, timeout: float = 60.0) -> int:  # noqa: ARG002 - nothing takes long here
        return await self._session.call(
            "tasks.Start", lambda: self._store.start(container_id), self._name(container_id)
        )

    async def wait(self, container_id: str) -> Exit:
        async def work() -> Exit:
            self._store.known(container_id, "tasks.Wait")
            await self._store.ending(container_id).wait()
            task = self._store.known(container_id, "tasks.Wait")
            return Exit(task.exit_code, task.exited_at)

        return await self._session.run("tasks.Wait", work, self._name(container_id))

    async def execute(
        self,
        container_id: str,
        exec_id: str,
        process: Mapping[str, Any],
        *,
        stdio: Stdio | None = None,  # noqa: ARG002 - nothing is written here
        timeout: float,
    ) -> Exit:
        async def work() -> Exit:
            return await self._store.execute(container_id, exec_id, process, timeout)

        return await self._session.run("tasks.Exec", work, self._name(container_id))

    async def kill(self, container_id: str, signal: int, *, everyone: bool = False) -> None:  # noqa: ARG002 - there is one process
        await self._session.call("tasks.Kill", lambda: self._store.kill(container_id, signal), self._name(container_id))

    async def delete(self, container_id: str) -> Exit | None:
        return await self._session.call(
            "tasks.Delete", lambda: self._store.delete(container_id), self._name(container_id)
        )

    def _name(self, container_id: str) -> str:
        return self._store.name(container_id)
