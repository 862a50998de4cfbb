"""From CRI's messages about pods and containers to values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from cri_stubs.cri.v1 import runtime_pb2
from stokerd.runtime.pod_types import (
    Blueprint,
    Container,
    ContainerEvent,
    ContainerEventKind,
    ContainerMount,
    ContainerState,
    ContainerStatus,
    Pod,
    PodBlueprint,
    PodState,
    PodStatus,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POD_STATES: Mapping[int, PodState] = {runtime_pb2.SANDBOX_READY: "ready"}
_STATES: Mapping[int, ContainerState] = {
    runtime_pb2.CONTAINER_CREATED: "created",
    runtime_pb2.CONTAINER_RUNNING: "running",
    runtime_pb2.CONTAINER_EXITED: "exited",
}
_EVENTS: Mapping[int, ContainerEventKind] = {
    runtime_pb2.CONTAINER_CREATED_EVENT: "created",
    runtime_pb2.CONTAINER_STARTED_EVENT: "started",
    runtime_pb2.CONTAINER_STOPPED_EVENT: "stopped",
    runtime_pb2.CONTAINER_DELETED_EVENT: "deleted",
}


def time_of(nanoseconds: int) -> datetime | None:
    """Return the time in UTC; None for one that CRI leaves out."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None


def document(info: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON document of a verbose status, empty when there is none."""
    try:
        found = msgspec.json.decode(info.get("info", "{}"))
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def pod(wire: runtime_pb2.PodSandbox | runtime_pb2.PodSandboxStatus) -> Pod:
    return Pod(
        id=wire.id,
        name=wire.metadata.name,
        namespace=wire.metadata.namespace,
        uid=wire.metadata.uid,
        attempt=wire.metadata.attempt,
        state=_POD_STATES.get(wire.state, "notready"),
        created_at=time_of(wire.created_at),
        labels=dict(wire.labels),
        annotations=dict(wire.annotations),
        runtime_handler=wire.runtime_handler,
    )


def pod_status(wire: runtime_pb2.PodSandboxStatus, info: Mapping[str, Any]) -> PodStatus:
    """Return a sandbox's status; *info* is the document of the verbose one."""
    addresses = (wire.network.ip, *(each.ip for each in wire.network.additional_ips))
    blueprint = PodBlueprint(info.get("config") or {}, wire.runtime_handler)
    return PodStatus(pod(wire), tuple(ip for ip in addresses if ip), int(info.get("pid") or 0), _netns(info), blueprint)


def _netns(info: Mapping[str, Any]) -> str:
    """Return the path of the network namespace, "" where the sandbox is on the node's network or has lost its own."""
    if info.get("netNamespaceClosed"):
        return ""
    namespaces = ((info.get("runtimeSpec") or {}).get("linux") or {}).get("namespaces") or []
    return next((str(each.get("path") or "") for each in namespaces if each.get("type") == "network"), "")


def container(wire: runtime_pb2.Container) -> Container:
    return Container(
        id=wire.id,
        pod_id=wire.pod_sandbox_id,
        name=wire.metadata.name,
        attempt=wire.metadata.attempt,
        image=wire.image.image,
        image_ref=wire.image_ref,
        state=_STATES.get(wire.state, "unknown"),
        created_at=time_of(wire.created_at),
        labels=dict(wire.labels),
        annotations=dict(wire.annotations),
    )


def container_status(wire: runtime_pb2.ContainerStatus, info: Mapping[str, Any], image_ref: str) -> ContainerStatus:
    """Return a container's status. The image is the one that was asked for: in the status of its own CRI puts whatever
    name the image has first."""
    config: dict[str, Any] = info.get("config") or {}
    asked = str((config.get("image") or {}).get("image") or wire.image.image)
    return ContainerStatus(
        container=Container(
            id=wire.id,
            pod_id=str(info.get("sandboxID") or ""),
            name=wire.metadata.name,
            attempt=wire.metadata.attempt,
            image=asked,
            image_ref=image_ref,
            state=_STATES.get(wire.state, "unknown"),
            created_at=time_of(wire.created_at),
            labels=dict(wire.labels),
            annotations=dict(wire.annotations),
        ),
        blueprint=Blueprint(config),
        pid=int(info.get("pid") or 0) if wire.state == runtime_pb2.CONTAINER_RUNNING else 0,
        started_at=time_of(wire.started_at),
        finished_at=time_of(wire.finished_at),
        exit_code=wire.exit_code,
        reason=wire.reason,
        message=wire.message,
        log_path=wire.log_path,
        mounts=tuple(ContainerMount(each.container_path, each.host_path, each.readonly) for each in wire.mounts),
        spec=info.get("runtimeSpec") or {},
    )


def container_event(wire: runtime_pb2.ContainerEventResponse) -> ContainerEvent | None:
    """Return CRI's event; None for one of a kind that only a newer CRI knows."""
    kind = _EVENTS.get(wire.container_event_type)
    return ContainerEvent(kind, wire.container_id, wire.pod_sandbox_status.id) if kind is not None else None
