"""What a pull job means and how it is doing: its order, its nodes, its deadline, its end, its status. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from stoker.objects.cluster_images import (
    FailedImage,
    ImageListPullJob,
    ImagePullJob,
    JobProgress,
    ListPullJobStatus,
    PullJobStatus,
    PullTemplate,
    SecretReference,
    TagPullPolicy,
)
from stoker.objects.cluster_nodes import Node
from stoker.objects.meta import Condition, LabelSelector, ObjectReference
from stoker_coordinator.controllers.rollout import Place, Rollout, limit
from stoker_coordinator.controllers.tags import Order
from stoker_coordinator.objects.selectors import of_labels

PullJob = ImagePullJob | ImageListPullJob
Status = PullJobStatus | ListPullJobStatus
Verdict = Literal["", "Complete", "Failed"]

SILENCE = timedelta(seconds=60)
"""A node that has not answered for so long holds no turn of a job any more."""
REPEAT = timedelta(hours=24)
"""So often a job that lasts has its nodes look again."""
TROUBLES = 20
FAILED_NODES = 1000


class Clockwork(Struct, frozen=True):
    """What a job's deadline goes by: the seconds in which it worked, until ``until`` of a clock that nobody sets."""

    worked: float = 0.0
    until: float | None = None


def images(job: PullJob) -> tuple[str, ...]:
    """Return the images that the job wants, each once."""
    return (job.spec.image,) if isinstance(job, ImagePullJob) else tuple(dict.fromkeys(job.spec.images))


def order(job: PullJob) -> Order:
    """Return what the job wants on each node."""
    meta, spec = job.metadata, job.spec
    return Order(
        owner=ObjectReference(kind=job.kind, name=meta.name, namespace=meta.namespace, uid=meta.uid),
        images=images(job),
        secrets=tuple(SecretReference(name, meta.namespace) for name in spec.pull_secrets),
        pull_policy=TagPullPolicy(
            timeout_seconds=spec.pull_policy.timeout_seconds, backoff_limit=spec.pull_policy.backoff_limit
        ),
        image_pull_policy=spec.image_pull_policy,
        priority=spec.priority,
    )


def is_meant(spec: PullTemplate, node: Node, pod_nodes: frozenset[str] | None) -> bool:
    """Say whether the job means this node. *pod_nodes*: those with pods of its podSelector, None when it has none."""
    if node.deleting:
        return False
    if pod_nodes is not None:
        return node.metadata.name in pod_nodes
    selector = spec.selector
    if selector is None:
        return True
    if selector.names:
        return node.metadata.name in selector.names
    labels = LabelSelector(match_labels=selector.match_labels, match_expressions=selector.match_expressions)
    return of_labels(labels).matches(node.metadata.labels)


def place(node: Node, leaf: str, began: datetime, now: datetime, *, returning: bool = False) -> Place:
    """Return the node as the job sees it. *began*: of the job, for nodes that were silent before. *returning*: it may
    be on its way back to a coordinator that has just started; none is silent then."""
    ready = node.status.connected
    since = max(node.status.last_seen or began, began)
    silent = not ready and not returning and now - since >= SILENCE
    return Place(node.metadata.name, leaf, silent=silent, open=ready and not node.spec.paused)


def silent_at(node: Node, began: datetime) -> datetime | None:
    """Return when a node that does not answer becomes silent; None while it answers."""
    if node.status.connected:
        return None
    return max(node.status.last_seen or began, began) + SILENCE


# ---------------------------------------------------------------------------------------------- time


def wind(clock: Clockwork, at: float, *, busy: bool) -> Clockwork:
    """Go on to *at*: the time since the last look counts when a node was pulling in it."""
    passed = at - clock.until if clock.until is not None else 0.0
    return Clockwork(clock.worked + max(passed, 0.0) if busy else clock.worked, at)


def overdue_in(job: PullJob, clock: Clockwork) -> float | None:
    """Return after how many more seconds of work the deadline passes; None without one."""
    deadline = job.spec.completion_policy.active_deadline_seconds
    return None if deadline is None else deadline - clock.worked


def next_round(job: PullJob, began: datetime, now: datetime) -> tuple[int, datetime]:
    """Return which round a lasting job is in, and when the next begins. Jobs that began together do not return so."""
    span = REPEAT + timedelta(seconds=zlib.crc32(job.metadata.uid.encode()) % 1200 - 600)
    number = max(0, (now - began) // span)
    return number, began + (number + 1) * span


def expires_at(job: PullJob) -> datetime | None:
    """Return when a job that is over is to be removed."""
    ttl, over = job.spec.completion_policy.ttl_seconds_after_finished, job.status.completion_time
    return None if ttl is None or over is None else over + timedelta(seconds=ttl)


# ---------------------------------------------------------------------------------------------- the end


def lasts(job: PullJob) -> bool:
    return job.spec.completion_policy.type == "Never"


def verdict(job: PullJob, rollout: Rollout, clock: Clockwork) -> Verdict:
    """Say whether the job is over. Nodes that failed do not hold it up; the status has them."""
    if lasts(job):
        return ""
    left = overdue_in(job, clock)
    if left is not None and left <= 0 and not rollout.through:
        return "Failed"
    return "Complete" if rollout.through else ""


def most_active(job: PullJob, rollout: Rollout) -> int:
    """Return on how many nodes it may work at one time."""
    return 0 if job.deleting else limit(job.spec.parallelism, len(rollout.nodes))


# ---------------------------------------------------------------------------------------------- the status


def status(job: PullJob, rollout: Rollout, clock: Clockwork, end: Verdict, began: datetime, now: datetime) -> Status:
    """Return the job's status as it is now."""
    common = {
        "start_time": began,
        "completion_time": now if end else None,
        "message": _message(job, rollout, end),
        "conditions": conditions(job, rollout, end, now),
        "observed_generation": job.metadata.generation,
        "progress": JobProgress(
            bytes_total=rollout.bytes_total,
            bytes_done=rollout.bytes_done,
            nodes_waiting=rollout.count("waiting"),
            nodes_silent=rollout.count("silent"),
        ),
        "troubles": rollout.troubles(TROUBLES),
        "worked_seconds": round(clock.worked, 1),
    }
    if isinstance(job, ImagePullJob):
        made: Status = PullJobStatus(
            desired=len(rollout.nodes),
            active=rollout.count("active"),
            succeeded=rollout.count("succeeded"),
            failed=rollout.count("failed") + rollout.count("silent"),
            failed_nodes=rollout.failed_nodes(FAILED_NODES),
        )
    else:
        made = _list_status(job, rollout, end)
    return replace(made, **common)


def _list_status(job: ImageListPullJob, rollout: Rollout, end: Verdict) -> ListPullJobStatus:
    """Count images: one is completed when no node is to be waited for, succeeded when it is on all of them."""
    nodes, silent = len(rollout.nodes), rollout.count("silent")
    completed = succeeded = active = 0
    failures: list[FailedImage] = []
    for image in images(job):
        there, failed = rollout.image(image)
        over = bool(end) or there + failed >= nodes - silent
        completed += over
        succeeded += over and there == nodes
        active += not over and rollout.count("active") > 0
        missing = nodes - there
        if over and missing:
            failures.append(FailedImage(image, f"not on {missing} of {nodes} nodes", job.metadata.name))
    return ListPullJobStatus(
        desired=len(images(job)),
        active=active,
        completed=completed,
        succeeded=succeeded,
        failed_image_statuses=tuple(failures),
    )


def _message(job: PullJob, rollout: Rollout, end: Verdict) -> str:
    nodes, there = len(rollout.nodes), rollout.count("succeeded")
    if end == "Failed":
        seconds = job.spec.completion_policy.active_deadline_seconds
        return f"not complete within {seconds} s of work: {there} of {nodes} nodes have it"
    parts = [f"{rollout.count(state)} {state}" for state in ("failed", "silent") if rollout.count(state)]
    if not nodes:
        return "no node is meant"
    if most_active(job, rollout) == 0 and not end:
        parts.append("paused (parallelism 0)")
    return ", ".join([f"{there} of {nodes} nodes have it", *parts])


def conditions(job: PullJob, rollout: Rollout, end: Verdict, now: datetime) -> tuple[Condition, ...]:
    """Return Complete, Failed and Degraded; one that stays as it was keeps its time."""
    bad = rollout.count("failed") + rollout.count("silent")
    degraded = "NodesFailed" if rollout.count("failed") else "NodesSilent"
    fresh = (
        Condition(type="Complete", status="True" if end == "Complete" else "False"),
        Condition(
            type="Failed",
            status="True" if end == "Failed" else "False",
            reason="DeadlineExceeded" * bool(end == "Failed"),
        ),
        Condition(type="Degraded", status="True" if bad else "False", reason=degraded if bad else ""),
    )
    return merged(job.status.conditions, fresh, job.metadata.generation, now)


def merged(
    old: Iterable[Condition], fresh: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return *fresh* with the times at which they came to be so."""
    known = {each.type: each for each in old}
    made = []
    for each in fresh:
        before = known.get(each.type)
        same = before is not None and before.status == each.status and before.last_transition_time is not None
        since = before.last_transition_time if before is not None and same else now
        made.append(replace(each, last_transition_time=since, observed_generation=generation))
    return tuple(made)
