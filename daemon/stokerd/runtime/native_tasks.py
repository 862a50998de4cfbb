"""containerd's own API: container records and tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from google.protobuf.any_pb2 import Any as Packed

from cri_stubs import anys
from cri_stubs.containerd.runc import options_pb2
from cri_stubs.containerd.services.containers.v1 import containers_pb2
from cri_stubs.containerd.services.containers.v1.containers_pb2_grpc import ContainersStub
from cri_stubs.containerd.services.tasks.v1 import tasks_pb2
from cri_stubs.containerd.services.tasks.v1.tasks_pb2_grpc import TasksStub
from stokerd.errors import RuntimeFailure, RuntimeNotFound, RuntimeUnsupported
from stokerd.runtime import convert_tasks as convert
from stokerd.runtime.channel import Wire
from stokerd.runtime.task_types import (
    AnyValue,
    ContainerRecord,
    DumpOptions,
    Exit,
    Mount,
    Restore,
    Stdio,
    Task,
)

_START_TIMEOUT = 60.0
"""Creating and starting wait for the disk, and for runc behind whatever else the node starts just now."""
_KILL = 9
_PROCESS = "types.containerd.io/opencontainers/runtime-spec/1/Process"
_FREEZE_TIMEOUT = 30.0
"""A freezer waits for processes that sleep in the kernel, on a slow disk for instance."""


class NativeRecords:
    """`protocol.ContainerRecords` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = ContainersStub(wire.channel)

    async def get(self, container_id: str) -> ContainerRecord | None:
        request = containers_pb2.GetContainerRequest(id=container_id)
        try:
            answer = await self._wire.unary("containers.Get", self._stub.Get, request)
        except RuntimeNotFound:
            return None
        return convert.record(answer.container)

    async def list(self, *, labels: Mapping[str, str] | None = None) -> tuple[ContainerRecord, ...]:
        terms = [f"labels.{_quoted(key)}=={_quoted(value)}" for key, value in (labels or {}).items()]
        request = containers_pb2.ListContainersRequest(filters=[",".join(terms)] if terms else [])
        stream = self._wire.stream("containers.ListStream", self._stub.ListStream, request)
        return tuple([convert.record(answer.container) async for answer in stream])

    async def create(self, record: ContainerRecord) -> ContainerRecord:
        request = containers_pb2.CreateContainerRequest(container=convert.record_message(record))
        answer = await self._wire.unary("containers.Create", self._stub.Create, request)
        return convert.record(answer.container)

    async def delete(self, container_id: str) -> None:
        request = containers_pb2.DeleteContainerRequest(id=container_id)
        try:
            await self._wire.unary("containers.Delete", self._stub.Delete, request)
        except RuntimeNotFound:
            return


class NativeTasks:
    """`protocol.Tasks` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = TasksStub(wire.channel)

    async def get(self, container_id: str) -> Task | None:
        request = tasks_pb2.GetRequest(container_id=container_id)
        try:
            answer = await self._wire.unary("tasks.Get", self._stub.Get, request)
        except RuntimeNotFound:
            return None
        return convert.task(answer.process, container_id)

    async def pids(self, container_id: str) -> tuple[int, ...]:
        request = tasks_pb2.ListPidsRequest(container_id=container_id)
        answer = await self._wire.unary("tasks.ListPids", self._stub.ListPids, request)
        return tuple(process.pid for process in answer.processes)

    async def pause(self, container_id: str) -> None:
        request = tasks_pb2.PauseTaskRequest(container_id=container_id)
        await self._wire.unary("tasks.Pause", self._stub.Pause, request, timeout=_FREEZE_TIMEOUT)

    async def resume(self, container_id: str) -> None:
        request = tasks_pb2.ResumeTaskRequest(container_id=container_id)
        await self._wire.unary("tasks.Resume", self._stub.Resume, request, timeout=_FREEZE_TIMEOUT)

    async def checkpoint(
        self, container_id: str, image_path: str, work_path: str, options: DumpOptions, *, timeout: float
    ) -> None:
        wanted = options_pb2.CheckpointOptions(
            exit=not options.leave_running,
            open_tcp=options.open_tcp,
            external_unix_sockets=options.external_unix_sockets,
            terminal=options.terminal,
            file_locks=options.file_locks,
            empty_namespaces=options.empty_namespaces,
            image_path=image_path,
            work_path=work_path,
        )
        request = tasks_pb2.CheckpointTaskRequest(container_id=container_id, options=anys.pack(wanted))
        await self._wire.unary("tasks.Checkpoint", self._stub.Checkpoint, request, timeout=timeout)

    async def create(
        self,
        container_id: str,
        rootfs: Sequence[Mount],
        *,
        options: AnyValue | None = None,
        restore: Restore | None = None,
        stdio: Stdio | None = None,
    ) -> int:
        request = tasks_pb2.CreateTaskRequest(
            container_id=container_id, rootfs=[convert.mount_message(mount) for mount in rootfs]
        )
        if stdio is not None:
            request.stdin, request.stdout, request.stderr = stdio.stdin, stdio.stdout, stdio.stderr
            request.terminal = stdio.terminal
        packed = _with_restore(options, restore)
        if packed is not None:
            request.options.CopyFrom(packed)
        answer = await self._wire.unary("tasks.Create", self._stub.Create, request, timeout=_START_TIMEOUT)
        return answer.pid

    async def start(self, container_id: str, *, timeout: float = _START_TIMEOUT) -> int:
        request = tasks_pb2.StartRequest(container_id=container_id)
        answer = await self._wire.unary("tasks.Start", self._stub.Start, request, timeout=timeout)
        return answer.pid

    async def wait(self, container_id: str) -> Exit:
        request = tasks_pb2.WaitRequest(container_id=container_id)
        answer = await self._wire.unary("tasks.Wait", self._stub.Wait, request, unlimited=True)
        return Exit(answer.exit_status, convert.time_of(answer.exited_at))

    async def execute(
        self,
        container_id: str,
        exec_id: str,
        process: Mapping[str, Any],
        *,
        stdio: Stdio | None = None,
        timeout: float,
    ) -> Exit:
        spec = Packed(type_url=_PROCESS, value=msgspec.json.encode(process))
        request = tasks_pb2.ExecProcessRequest(container_id=container_id, exec_id=exec_id, spec=spec)
        if stdio is not None:
            request.stdin, request.stdout, request.stderr = stdio.stdin, stdio.stdout, stdio.stderr
        await self._wire.unary("tasks.Exec", self._stub.Exec, request)
        try:
            started = tasks_pb2.StartRequest(container_id=container_id, exec_id=exec_id)
            await self._wire.unary("tasks.StartExec", self._stub.Start, started, timeout=_START_TIMEOUT)
            waited = tasks_pb2.WaitRequest(container_id=container_id, exec_id=exec_id)
            answer = await self._wire.unary("tasks.WaitExec", self._stub.Wait, waited, timeout=timeout)
            return Exit(answer.exit_status, convert.time_of(answer.exited_at))
        finally:
            forgetting = asyncio.create_task(self._forget(container_id, exec_id), name=f"forget {exec_id}")
            await asyncio.shield(forgetting)

    async def _forget(self, container_id: str, exec_id: str) -> None:
        """Kill a process that still runs, and have containerd forget it."""
        killed = tasks_pb2.KillRequest(container_id=container_id, exec_id=exec_id, signal=_KILL)
        deleted = tasks_pb2.DeleteProcessRequest(container_id=container_id, exec_id=exec_id)
        waited = tasks_pb2.WaitRequest(container_id=container_id, exec_id=exec_id)
        with contextlib.suppress(RuntimeFailure):
            await self._wire.unary("tasks.DeleteProcess", self._stub.DeleteProcess, deleted)
            return
        with contextlib.suppress(RuntimeFailure):
            await self._wire.unary("tasks.KillExec", self._stub.Kill, killed)
            await self._wire.unary("tasks.WaitExec", self._stub.Wait, waited)
            await self._wire.unary("tasks.DeleteProcess", self._stub.DeleteProcess, deleted)

    async def kill(self, container_id: str, signal: int, *, everyone: bool = False) -> None:
        request = tasks_pb2.KillRequest(container_id=container_id, signal=signal, all=everyone)
        try:
            await self._wire.unary("tasks.Kill", self._stub.Kill, request)
        except RuntimeNotFound:
            return

    async def delete(self, container_id: str) -> Exit | None:
        request = tasks_pb2.DeleteTaskRequest(container_id=container_id)
        try:
            answer = await self._wire.unary("tasks.Delete", self._stub.Delete, request, timeout=_START_TIMEOUT)
        except RuntimeNotFound:
            return None
        return Exit(answer.exit_status, convert.time_of(answer.exited_at))


def _with_restore(options: AnyValue | None, restore: Restore | None) -> Packed | None:
    """Return the options of Tasks.Create. Given ones replace those of the record, so a restore copies them whole."""
    if restore is None:
        return convert.packed(options) if options is not None else None
    wanted = options_pb2.Options()
    if options is not None:
        try:
            wanted = anys.unpack(convert.packed(options), options_pb2.Options)
        except anys.WrongType as error:
            raise RuntimeUnsupported(
                f"a container of this runtime cannot be restored: {error}", call="tasks.Create"
            ) from None
    wanted.criu_image_path, wanted.criu_work_path = restore.image_path, restore.work_path
    return anys.pack(wanted)


def _quoted(text: str) -> str:
    """Return a word of containerd's filter language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
