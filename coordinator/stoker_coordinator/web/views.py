"""From objects to what pages show. Pure; every text is plain, escaping is the templates' work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import ImageListPullJob, ImagePullJob, NodeImage
from stoker.objects.cluster_nodes import HyperNode, Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.meta import Condition
from stoker.units import brief_duration, format_size
from stoker_coordinator.controllers.tags import join

Mood = Literal["good", "busy", "bad", "idle"]
PullJob = ImagePullJob | ImageListPullJob
Request = ContainerRecreateRequest | Checkpoint | Commit | Clone

MOST_ADDRESSES = 8
PAGE = 200
"""Rows on one page of a table."""


class State(Struct, frozen=True):
    """How something is doing: in a word, in a colour, and why."""

    word: str
    mood: Mood
    why: str = ""
    since: datetime | None = None


class Pages(Struct, frozen=True):
    """Which rows of a long table are shown."""

    first: int
    last: int
    total: int
    number: int
    count: int


def page(total: int, wanted: str) -> Pages:
    """Return the page that somebody asks for, or the nearest that there is."""
    count = max(1, -(-total // PAGE))
    number = min(max(1, int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 7 else 1), count)
    first = (number - 1) * PAGE
    return Pages(first, min(first + PAGE, total), total, number, count)


def condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((each for each in conditions if each.type == kind), None)


def ago(since: datetime | None, now: datetime) -> str:
    """Return how long ago something was; a time to come, by a clock that is ahead, is now."""
    return brief_duration((now - since).total_seconds()) if since is not None else ""


# ---------------------------------------------------------------------------------------------- nodes


class NodeRow(Struct, frozen=True):
    """A node in the table."""

    name: str
    state: State
    leaf: str
    version: str
    runtime: str
    images: int
    pods: int
    paused: bool


def node_state(node: Node) -> State:
    """Return how a node is doing: whether it is there comes before what is wrong with it."""
    ready = condition(node.status.conditions, "Ready")
    topology = condition(node.status.conditions, "TopologyHealthy")
    if ready is None or ready.status != "True":
        why = ready.message or ready.reason if ready is not None else "it has never been here"
        return State("Not ready", "bad", why, ready.last_transition_time if ready is not None else None)
    if topology is not None and topology.status == "False":
        return State("Faults", "busy", topology.message, topology.last_transition_time)
    return State("Ready", "good", "", ready.last_transition_time)


def node_row(node: Node, leaf: str) -> NodeRow:
    status = node.status
    runtime = f"{status.runtime_name} {status.runtime_version}".strip()
    state = node_state(node)
    return NodeRow(
        node.metadata.name, state, leaf, status.stokerd_version, runtime, status.images, status.pods, node.spec.paused
    )


_RANK: dict[Mood, int] = {"bad": 0, "busy": 1, "idle": 2, "good": 3}


def node_rows(nodes: Iterable[Node], leaves: dict[str, str], wanted: str = "") -> list[NodeRow]:
    """Return the nodes that a search means (a part of the name, leaf, or state): those with trouble first."""
    rows = [node_row(node, leaves.get(node.metadata.name, "")) for node in nodes]
    word = wanted.strip().lower()
    if word:
        rows = [row for row in rows if word in f"{row.name} {row.leaf} {row.state.word}".lower()]
    return sorted(rows, key=lambda row: (_RANK[row.state.mood], row.name))


def wanted_images(node: NodeImage) -> list[tuple[str, str, int, str]]:
    """Return what jobs want of a node: image, phase, percent, why."""
    found: list[tuple[str, str, int, str]] = []
    for repository, entry in sorted(node.spec.images.items()):
        known = node.status.image_statuses.get(repository)
        statuses = {each.tag: each for each in known.tags} if known is not None else {}
        for tag in entry.tags:
            image = join(repository, tag.tag)
            status = statuses.get(tag.tag)
            if status is None or status.version < tag.version:
                found.append((image, "Waiting", 0, ""))
            else:
                found.append((image, status.phase, status.progress, status.message))
    return found


# ---------------------------------------------------------------------------------------------- jobs


class JobRow(Struct, frozen=True):
    """A pull job in the table, or alone."""

    kind: str
    namespace: str
    name: str
    images: tuple[str, ...]
    state: State
    nodes: int
    done: int
    failed: int
    active: int
    waiting: int
    bytes_done: int
    bytes_total: int
    started: datetime | None
    ended: datetime | None

    @property
    def share(self) -> float:
        """How much is done, 0 to 1: by nodes, and within those that are at work by bytes."""
        return self.done / self.nodes if self.nodes else float(self.ended is not None)


def job_row(job: PullJob) -> JobRow:
    status, progress = job.status, job.status.progress
    if isinstance(job, ImagePullJob):
        images: tuple[str, ...] = (job.spec.image,)
        nodes, done, failed = job.status.desired, job.status.succeeded, job.status.failed
        active = job.status.active
    else:
        images = job.spec.images
        nodes, done, failed = job.status.desired, job.status.succeeded, len(job.status.failed_image_statuses)
        active = job.status.active
    return JobRow(
        job.kind,
        job.metadata.namespace,
        job.metadata.name,
        images,
        job_state(job),
        nodes,
        done,
        failed,
        active,
        progress.nodes_waiting,
        progress.bytes_done,
        progress.bytes_total,
        status.start_time,
        status.completion_time,
    )


def job_state(job: PullJob) -> State:
    """Return how a job is doing."""
    status = job.status
    failed = condition(status.conditions, "Failed")
    degraded = condition(status.conditions, "Degraded")
    if job.deleting:
        return State("Going", "idle", "it is being removed")
    if failed is not None and failed.status == "True":
        return State("Failed", "bad", status.message, status.completion_time)
    if status.completion_time is not None:
        partly = degraded is not None and degraded.status == "True"
        return (
            State("Partly", "bad", status.message, status.completion_time)
            if partly
            else State("Complete", "good", status.message, status.completion_time)
        )
    if status.start_time is None:
        return State("Queued", "idle", "nobody has looked at it yet")
    return State("Pulling" if status.active else "Waiting", "busy" if status.active else "idle", status.message)


def job_rows(jobs: Iterable[PullJob]) -> list[JobRow]:
    """Return jobs: those that are under way first, then the newest."""
    rows = [job_row(job) for job in jobs]

    def age(row: JobRow) -> tuple[bool, float, str]:
        moment = row.ended or row.started
        return row.ended is not None, -moment.timestamp() if moment is not None else float("inf"), row.name

    return sorted(rows, key=age)


# ---------------------------------------------------------------------------------------------- requests


class RequestRow(Struct, frozen=True):
    """Something that was asked for of one node. ``subject``: the pod, or what clones are made of."""

    kind: str
    namespace: str
    name: str
    subject: str
    node: str
    state: State
    detail: str
    created: datetime | None


def request_row(request: Request) -> RequestRow:
    status, meta = request.status, request.metadata
    word: str = status.phase
    detail, subject = "", ""
    if isinstance(request, Clone):
        subject = request.spec.checkpoint or request.spec.reference
        addresses = [address for each in request.status.clones for address in each.addresses]
        more = f" and {len(addresses) - MOST_ADDRESSES} more" if len(addresses) > MOST_ADDRESSES else ""
        detail = f"{request.status.ready} of {request.spec.count}"
        detail += f": {', '.join(addresses[:MOST_ADDRESSES])}{more}" if addresses else ""
    else:
        subject = request.spec.pod_name
    if isinstance(request, ContainerRecreateRequest):
        word = request.status.result or word
        detail = ", ".join(each.name for each in request.spec.containers) or "all containers"
    elif isinstance(request, Checkpoint):
        made = request.status
        if made.checkpoint_id:
            detail = (
                f"{made.checkpoint_id}, {format_size(made.size_bytes)}, stood still for {made.frozen_milliseconds:g} ms"
            )
        if made.reference:
            detail += f", as {made.reference}"
    elif isinstance(request, Commit):
        detail = request.spec.image + (f"@{request.status.digest}" if request.status.digest else "")
    moods: dict[str, Mood] = {"Succeeded": "good", "Failed": "bad", "Cancelled": "idle", "Pending": "idle"}
    state = State(word, moods.get(word, "busy"), status.message, status.completion_time)
    return RequestRow(
        request.kind,
        meta.namespace,
        meta.name,
        subject,
        status.node_name,
        state,
        detail,
        meta.creation_timestamp,
    )


def request_rows(requests: Iterable[Request]) -> list[RequestRow]:
    """Return requests, the newest first."""
    rows = [request_row(each) for each in requests]
    return sorted(rows, key=lambda row: row.created.timestamp() if row.created is not None else 0.0, reverse=True)


# ---------------------------------------------------------------------------------------------- fabrics


class Trouble(Struct, frozen=True):
    """A link or node that is not well, in a domain."""

    domain: str
    what: str
    mood: Mood
    why: str
    since: datetime | None


def troubles(domains: Sequence[HyperNode]) -> list[Trouble]:
    """Return what is wrong in domains next to the nodes, the newest first, each thing once."""
    found: list[Trouble] = []
    for domain in domains:
        if domain.spec.tier != 1:
            continue
        name = domain.metadata.name
        for link in domain.status.unhealthy_links:
            mood: Mood = "bad" if link.reason == "down" else "busy"
            found.append(Trouble(name, f"{link.a} – {link.b}", mood, link.message or link.reason, link.since))
        for node in domain.status.unhealthy_nodes:
            found.append(Trouble(name, node.name, "bad", node.message or node.reason, node.since))
    return sorted(found, key=lambda each: each.since.timestamp() if each.since is not None else 0.0, reverse=True)
