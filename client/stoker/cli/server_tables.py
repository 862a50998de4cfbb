"""Objects of a coordinator as rows of tables: for each kind what people look for first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from stoker.cli.text import Style
from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import (
    AdvancedCronJob,
    ImageListPullJob,
    ImagePullJob,
    NodeImage,
    PullSecret,
)
from stoker.objects.cluster_nodes import HyperNode, Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.kinds import Kind
from stoker.objects.meta import Condition, Object
from stoker.units import brief_duration, format_size

Cells = Sequence[str]
_MOST_ADDRESSES = 4


@dataclass(frozen=True)
class Columns:
    """Of one kind."""

    headers: tuple[str, ...]
    cells: Callable[[Any, datetime], Cells]
    right: frozenset[int] = frozenset()


def typed(document: dict[str, Any], kind: Kind) -> Object:
    """Return an object as its type; what a newer coordinator may add is left out."""
    return msgspec.convert(document, kind.type)


def headers(kind: Kind, *, namespaces: bool) -> list[str]:
    """Return the headers of a kind's table; *namespaces*: with theirs."""
    return [*(["NAMESPACE"] if namespaces else []), "NAME", *COLUMNS[kind.name].headers, "AGE"]


def right(kind: Kind, *, namespaces: bool) -> frozenset[int]:
    """Return which columns are numbers."""
    before = 1 + namespaces
    return frozenset(before + column for column in COLUMNS[kind.name].right)


def row(obj: Object, kind: Kind, now: datetime, *, namespaces: bool) -> list[str]:
    """Return the cells of one object."""
    meta = obj.metadata
    cells = COLUMNS[kind.name].cells(obj, now)
    first = [meta.namespace] if namespaces else []
    return [*first, meta.name, *cells, age(meta.creation_timestamp, now)]


def age(since: datetime | None, now: datetime) -> str:
    """Return how long ago something was."""
    return brief_duration((now - since).total_seconds()) if since is not None else "-"


def condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """Return the condition of a type."""
    return next((each for each in conditions if each.type == kind), None)


def holds(conditions: Sequence[Condition], kind: str) -> bool:
    """Whether a condition is known to be so."""
    found = condition(conditions, kind)
    return found is not None and found.status == "True"


def ready_word(node: Node) -> str:
    """Return whether a node is ready, in a word or two."""
    found = condition(node.status.conditions, "Ready")
    if found is None:
        return "unknown"
    word = {"True": "ready", "False": "not ready", "Unknown": "unknown"}[found.status]
    return f"{word}, paused" if node.spec.paused else word


def job_word(job: ImagePullJob | ImageListPullJob) -> str:
    """Return how a pull job is doing, in a word."""
    conditions = job.status.conditions
    if job.deleting:
        return "going"
    if holds(conditions, "Failed"):
        return "failed"
    if holds(conditions, "Complete") or job.status.completion_time is not None:
        return "complete, degraded" if holds(conditions, "Degraded") else "complete"
    if job.spec.parallelism in {0, "0%"}:
        return "paused"
    return "degraded" if holds(conditions, "Degraded") else "running" if job.status.active else "waiting"


def share(job: ImagePullJob | ImageListPullJob) -> float | None:
    """Return how much of a job's bytes is there, 0 to 1; None while nobody knows."""
    progress = job.status.progress
    return min(1.0, progress.bytes_done / progress.bytes_total) if progress.bytes_total else None


def _progress(job: ImagePullJob | ImageListPullJob) -> str:
    part = share(job)
    if part is None:
        return "-"
    return f"{part * 100:.0f}% of {format_size(job.status.progress.bytes_total)}"


def _node(node: Node, now: datetime) -> Cells:
    status = node.status
    runtime = f"{status.runtime_name} {status.runtime_version}".strip() or "-"
    free = format_size(status.disk_free_bytes) if status.disk_free_bytes else "-"
    seen = "now" if status.connected else age(status.last_seen, now)
    return (ready_word(node), status.stokerd_version or "-", runtime, str(status.images), str(status.pods), free, seen)


def _pull_job(job: ImagePullJob, _now: datetime) -> Cells:
    status = job.status
    counts = (str(status.desired), str(status.active), str(status.succeeded), str(status.failed))
    return (job.spec.image, *counts, _progress(job), job_word(job))


def _list_job(job: ImageListPullJob, _now: datetime) -> Cells:
    status = job.status
    counts = (str(status.desired), str(status.active), str(status.succeeded), str(len(status.failed_image_statuses)))
    return (*counts, _progress(job), job_word(job))


def _cron(cron: AdvancedCronJob, now: datetime) -> Cells:
    status = cron.status
    when = status.next_schedule_time
    upcoming = "-" if cron.spec.paused or when is None else brief_duration(max(0.0, (when - now).total_seconds()))
    zone = cron.spec.time_zone or "UTC"
    last = age(status.last_schedule_time, now)
    return (cron.spec.schedule, zone, "yes" if cron.spec.paused else "no", str(len(status.active)), last, upcoming)


def _node_image(image: NodeImage, _now: datetime) -> Cells:
    status = image.status
    return tuple(str(n) for n in (status.desired, status.pulling, status.waiting, status.succeeded, status.failed))


def _recreate(request: ContainerRecreateRequest, _now: datetime) -> Cells:
    status = request.status
    phase = status.result or status.phase
    containers = "all" if request.spec.all else ", ".join(each.name for each in request.spec.containers)
    return (request.spec.pod_name, containers, status.node_name or "-", phase, status.message)


def _checkpoint(made: Checkpoint, _now: datetime) -> Cells:
    status = made.status
    size = format_size(status.size_bytes) if status.size_bytes else "-"
    return (
        made.spec.pod_name,
        status.node_name or "-",
        status.phase,
        size,
        status.checkpoint_id or "-",
        status.message,
    )


def _clone(clone: Clone, _now: datetime) -> Cells:
    status = clone.status
    count = f"{status.ready}/{clone.spec.count}"
    addresses = [address for each in status.clones for address in each.addresses]
    shown = ", ".join(addresses[:_MOST_ADDRESSES]) + (", ..." if len(addresses) > _MOST_ADDRESSES else "")
    source = clone.spec.checkpoint or clone.spec.reference
    return (source, status.node_name or "-", count, status.phase, shown or "-", status.message)


def _commit(made: Commit, _now: datetime) -> Cells:
    status = made.status
    pod = "/".join(each for each in (made.spec.pod_name, made.spec.container_name) if each)
    return (pod, made.spec.image, status.node_name or "-", status.phase, status.message)


def _hyper_node(hyper: HyperNode, _now: datetime) -> Cells:
    status = hyper.status
    healthy = condition(status.conditions, "Healthy")
    state = "-" if healthy is None else "healthy" if healthy.status == "True" else healthy.message or "unhealthy"
    if status.congested:
        state = f"{state}, congested"
    capacity = f"{status.capacity_gbps:g}" if status.capacity_gbps else "-"
    name = hyper.spec.tier_name or "-"
    return (str(hyper.spec.tier), name, status.fabric or "-", str(status.node_count), capacity, state)


def _secret(secret: PullSecret, _now: datetime) -> Cells:
    return (", ".join(auth.registry for auth in secret.spec.auths),)


COLUMNS: Mapping[str, Columns] = {
    "Node": Columns(
        ("STATE", "STOKERD", "RUNTIME", "IMAGES", "PODS", "DISK FREE", "SEEN"), _node, frozenset({3, 4, 5})
    ),
    "ImagePullJob": Columns(
        ("IMAGE", "NODES", "ACTIVE", "DONE", "FAILED", "PROGRESS", "STATE"), _pull_job, frozenset({1, 2, 3, 4})
    ),
    "ImageListPullJob": Columns(
        ("IMAGES", "ACTIVE", "DONE", "FAILED", "PROGRESS", "STATE"), _list_job, frozenset({0, 1, 2, 3})
    ),
    "AdvancedCronJob": Columns(("SCHEDULE", "ZONE", "PAUSED", "ACTIVE", "LAST", "NEXT IN"), _cron, frozenset({3})),
    "NodeImage": Columns(("IMAGES", "PULLING", "WAITING", "DONE", "FAILED"), _node_image, frozenset({0, 1, 2, 3, 4})),
    "ContainerRecreateRequest": Columns(("POD", "CONTAINERS", "NODE", "STATE", "MESSAGE"), _recreate),
    "Checkpoint": Columns(("POD", "NODE", "STATE", "SIZE", "CHECKPOINT", "MESSAGE"), _checkpoint, frozenset({3})),
    "Clone": Columns(("CHECKPOINT", "NODE", "CLONES", "STATE", "ADDRESSES", "MESSAGE"), _clone, frozenset({2})),
    "Commit": Columns(("CONTAINER", "IMAGE", "NODE", "STATE", "MESSAGE"), _commit),
    "HyperNode": Columns(("TIER", "TIER NAME", "FABRIC", "NODES", "GBPS", "STATE"), _hyper_node, frozenset({0, 3, 4})),
    "PullSecret": Columns(("REGISTRIES",), _secret),
}


def paint_state(word: str, style: Style) -> str:
    """Return a state in the colour that says how good it is."""
    if word.startswith(("ready", "complete", "Succeeded", "healthy")) and "," not in word:
        return style.paint(word, "green")
    if word.startswith(("failed", "not ready", "Failed", "unhealthy")):
        return style.paint(word, "red")
    return style.paint(word, "yellow") if "degraded" in word or word == "unknown" else word
