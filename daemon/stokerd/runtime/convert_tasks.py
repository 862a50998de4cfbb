"""From messages about containers, tasks and mounts to values, and back. Pure."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as Packed

from cri_stubs.containerd.services.containers.v1 import containers_pb2
from cri_stubs.containerd.types import mount_pb2
from cri_stubs.containerd.types.task import task_pb2
from stokerd.runtime.convert import time_of as time_of  # noqa: PLC0414 - who converts tasks needs it too
from stokerd.runtime.task_types import AnyValue, ContainerRecord, Mount, Task, TaskState

_STATES: dict[int, TaskState] = {
    task_pb2.Status.CREATED: "created",
    task_pb2.Status.RUNNING: "running",
    task_pb2.Status.STOPPED: "stopped",
    task_pb2.Status.PAUSED: "paused",
    task_pb2.Status.PAUSING: "pausing",
}


def any_value(wire: Packed) -> AnyValue:
    return AnyValue(wire.type_url, wire.value)


def packed(value: AnyValue) -> Packed:
    return Packed(type_url=value.type, value=value.value)


def mount(wire: mount_pb2.Mount) -> Mount:
    return Mount(wire.type, wire.source, tuple(wire.options))


def mount_message(value: Mount) -> mount_pb2.Mount:
    return mount_pb2.Mount(type=value.type, source=value.source, options=value.options)


def task(wire: task_pb2.Process, container_id: str) -> Task:
    """*container_id* stands in for the one that some shims leave out."""
    return Task(
        wire.container_id or wire.id or container_id,
        wire.pid,
        _STATES.get(wire.status, "unknown"),
        wire.exit_status,
        time_of(wire.exited_at),
    )


def record(wire: containers_pb2.Container) -> ContainerRecord:
    return ContainerRecord(
        id=wire.id,
        image=wire.image,
        runtime=wire.runtime.name,
        spec=any_value(wire.spec),
        snapshotter=wire.snapshotter,
        snapshot_key=wire.snapshot_key,
        options=any_value(wire.runtime.options) if wire.runtime.HasField("options") else None,
        labels=dict(wire.labels),
        extensions={name: any_value(value) for name, value in wire.extensions.items()},
        created_at=time_of(wire.created_at),
        updated_at=time_of(wire.updated_at),
    )


def record_message(value: ContainerRecord) -> containers_pb2.Container:
    """Return the message; times are containerd's to set."""
    runtime = containers_pb2.Container.Runtime(name=value.runtime)
    if value.options is not None:
        runtime.options.CopyFrom(packed(value.options))
    message = containers_pb2.Container(
        id=value.id,
        labels=value.labels,
        image=value.image,
        runtime=runtime,
        spec=packed(value.spec),
        snapshotter=value.snapshotter,
        snapshot_key=value.snapshot_key,
    )
    for name, extension in value.extensions.items():
        message.extensions[name].CopyFrom(packed(extension))
    return message
