"""From the service's state to the objects of the API. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from stoker.objects import images as api
from stokerd.images.jobs import Item, Job
from stokerd.images.progress import PullProgress
from stokerd.images.space import FileSystem, Margins, Need, fits
from stokerd.journal.rows import AttemptRow


def time_of(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None


def progress(state: PullProgress) -> api.Progress:
    return api.Progress(
        bytes_total=state.bytes_total,
        bytes_done=state.bytes_done,
        bytes_present=state.bytes_present,
        layers_total=len(state.layers),
        layers_unpacked=state.layers_unpacked,
        percent=state.percent,
        layers=[
            api.LayerProgress(digest=layer.digest, size=layer.size, offset=layer.offset, state=layer.state)
            for layer in state.layers
        ],
    )


def item(state: Item, hold: str = "") -> api.ItemStatus:
    """*hold*: why an item that waits, and has not failed yet, does not start."""
    row = state.row
    return api.ItemStatus(
        image=row.image,
        reference=row.reference,
        phase=row.phase,
        reason=row.reason or hold,
        message=row.message,
        hint=row.hint,
        attempt=row.attempt,
        digest=row.digest,
        previous_digest=row.previous_digest,
        next_attempt_at=time_of(state.next_attempt_at) if row.phase == "Waiting" else None,
        started_at=time_of(row.started_at),
        finished_at=time_of(row.finished_at),
        pulled_bytes=row.pulled_bytes,
        progress=progress(state.progress),
    )


def counts(job: Job) -> api.JobCounts:
    return api.JobCounts(
        desired=len(job.items),
        waiting=job.counts["Waiting"],
        pulling=job.counts["Pulling"],
        succeeded=job.counts["Succeeded"],
        failed=job.counts["Failed"],
        cancelled=job.counts["Cancelled"],
    )


def job(state: Job, *, items: bool = True, hold: Callable[[Item], str] = lambda _: "") -> api.JobStatus:
    row = state.row
    return api.JobStatus(
        id=row.id,
        name=row.name,
        state=row.state,
        policy=row.policy,
        priority=row.priority,
        created_at=time_of(row.created_at),
        finished_at=time_of(row.finished_at),
        counts=counts(state),
        items=[item(entry, hold(entry)) for entry in state.items] if items else [],
    )


def attempt(row: AttemptRow) -> api.Attempt:
    return api.Attempt(
        reference=row.reference,
        job=row.job,
        attempt=row.attempt,
        started_at=time_of(row.started_at),
        finished_at=time_of(row.finished_at),
        result=row.result,
        reason=row.reason,
        message=row.message,
        digest=row.digest,
        pulled_bytes=row.pulled_bytes,
    )


def space(need: Need, disk: FileSystem, margins: Margins) -> api.SpaceNeed:
    return api.SpaceNeed(
        needed_bytes=need.bytes,
        free_bytes=disk.free_bytes,
        reserve_bytes=margins.reserve_bytes,
        needed_inodes=need.unpack_inodes,
        free_inodes=disk.free_inodes,
        reserve_inodes=margins.reserve_inodes,
        path=disk.path,
        fits=fits(need, disk, margins),
    )
