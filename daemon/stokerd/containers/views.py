"""From what the room knows to the objects of the API. Values of environment variables go no further than here. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from stoker.objects import containers as api
from stokerd.containers.inventory_model import Picture
from stokerd.journal.rows import RecreateRow, TargetRow
from stokerd.runtime.pod_types import Container, ContainerState, ContainerStatus, Pod, PodStatus

_PHASES: dict[ContainerState, api.ContainerPhase] = {
    "created": "Created",
    "running": "Running",
    "exited": "Exited",
    "unknown": "Unknown",
}


def time_of(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None


def container(picture: Picture, each: Container) -> api.ContainerInfo:
    pod = picture.pod_of(each)
    return api.ContainerInfo(
        id=each.id,
        name=each.name,
        pod_id=each.pod_id,
        phase=_PHASES[each.state],
        pod=pod.name if pod is not None else "",
        namespace=pod.namespace if pod is not None else "",
        attempt=each.attempt,
        image=each.image,
        image_ref=each.image_ref,
        created_at=each.created_at,
        owner=picture.owner(pod) if pod is not None else "other",
        labels=each.labels,
        annotations=each.annotations,
    )


def pod(picture: Picture, each: Pod) -> api.PodInfo:
    return api.PodInfo(
        id=each.id,
        name=each.name,
        phase="Ready" if each.state == "ready" else "NotReady",
        namespace=each.namespace,
        uid=each.uid,
        attempt=each.attempt,
        owner=picture.owner(each),
        created_at=each.created_at,
        runtime_handler=each.runtime_handler,
        labels=each.labels,
        annotations=each.annotations,
        containers=[container(picture, inside) for inside in picture.of(each.id)],
    )


def pod_detail(picture: Picture, status: PodStatus) -> api.PodDetail:
    config = status.blueprint.config
    return api.PodDetail(
        info=pod(picture, status.pod),
        ips=list(status.ips),
        pid=status.pid,
        netns=status.netns,
        hostname=str(config.get("hostname") or ""),
        log_directory=str(config.get("log_directory") or ""),
    )


def container_detail(picture: Picture, status: ContainerStatus) -> api.ContainerDetail:
    process = status.spec.get("process") or {}
    devices = (status.spec.get("linux") or {}).get("devices") or []
    detail = api.ContainerDetail(
        info=container(picture, status.container),
        pid=status.pid,
        started_at=status.started_at,
        finished_at=status.finished_at,
        reason=status.reason,
        message=status.message,
        log_path=status.log_path,
        command=[str(word) for word in process.get("args") or []],
        env_names=[str(entry).partition("=")[0] for entry in process.get("env") or []],
        mounts=[
            api.MountInfo(container_path=each.container_path, host_path=each.host_path, readonly=each.readonly)
            for each in status.mounts
        ],
        devices=[str(device.get("path", "")) for device in devices],
    )
    if status.container.state == "exited":
        detail.exit_code = status.exit_code
    return detail


def target(row: TargetRow, *, step: api.Step = "", image: str = "") -> api.TargetStatus:
    downtime = 0.0
    if row.stopped_at is not None and row.running_at is not None:
        downtime = max(0.0, round(row.running_at - row.stopped_at, 6))
    return api.TargetStatus(
        name=row.name,
        phase=row.phase,
        step=step,
        reason=row.reason,
        message=row.message,
        hint=row.hint,
        is_killed=row.killed,
        rolled_back=row.rolled_back,
        image=image,
        old_id=row.old_id,
        old_attempt=row.old_attempt,
        new_id=row.new_id,
        new_attempt=row.new_attempt,
        downtime_seconds=downtime,
        started_at=time_of(row.started_at),
        finished_at=time_of(row.finished_at),
    )


def recreate(row: RecreateRow, targets: Iterable[api.TargetStatus], *, waiting_for: str = "") -> api.RecreateStatus:
    return api.RecreateStatus(
        id=row.id,
        name=row.name,
        phase=row.phase,
        result=row.result,
        message=row.message,
        namespace=row.namespace,
        pod=row.pod,
        pod_id=row.pod_id,
        pod_uid=row.pod_uid,
        owner=row.owner,
        waiting_for=waiting_for,
        containers=list(targets),
        created_at=time_of(row.created_at),
        started_at=time_of(row.started_at),
        finished_at=time_of(row.finished_at),
        deadline_at=time_of(row.deadline_at),
    )
