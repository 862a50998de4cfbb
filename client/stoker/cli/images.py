"""``stoker image ls``, ``rm``, ``jobs``, ``cancel``, ``history``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_images, known_jobs
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.text import clean
from stoker.units import brief_duration, format_age, format_size

if TYPE_CHECKING:
    from stoker.objects.images import Attempt, ImageStatus, ItemStatus, JobStatus, RemoveResult


@click.command("ls")
@global_options
@pass_console
def list_images(console: Console) -> int:
    """List the images on this node."""
    images = console.call(lambda client: client.images())
    if console.json:
        console.document(images)
        return exits.OK
    rows = [row for image in images for row in _image_rows(console, image)]
    headers = ("IMAGE", "ID", "SIZE", "PINNED", "KEPT", "WARMED")
    console.table(headers, sorted(rows), empty="there are no images on this node", right=frozenset({2}))
    return exits.OK


def _image_rows(console: Console, image: ImageStatus) -> list[tuple[str, ...]]:
    pinned = "no"
    if image.pinned:
        pinned = f"ends {format_age(image.pin_expires_at, console.now)}" if image.pin_expires_at else "yes"
    rest = (
        short_digest(image.id),
        format_size(image.size),
        pinned,
        "yes" if image.kept else "no",
        format_age(image.last_warmed_at, console.now),
    )
    return [(name, *rest) for name in image.references or image.digests or ["<none>"]]


def short_digest(digest: str) -> str:
    """Return the first twelve digits of a digest; ``-`` for none."""
    return digest.rpartition(":")[2][:12] or "-"


@click.command("rm")
@click.argument("references", nargs=-1, required=True, metavar="REF...", shell_complete=known_images)
@click.option("--force", is_flag=True, help="Even when it is pinned, kept or used by a container.")
@global_options
@pass_console
def remove(console: Console, references: tuple[str, ...], force: bool) -> int:
    """Remove images from this node."""

    def show(result: RemoveResult) -> None:
        for name in result.removed or [result.reference]:
            console.say(f"removed {clean(name)}")
        if result.freed_bytes:
            console.say(f"{format_size(result.freed_bytes)} are free again")

    return console.each(references, lambda client, image: client.remove(image, force=force), show)


@click.command()
@click.argument("job", required=False, shell_complete=known_jobs)
@global_options
@pass_console
def jobs(console: Console, job: str | None) -> int:
    """List the jobs that stokerd knows, or the images of one JOB."""
    if job:
        found = console.call(lambda client: client.job(job))
        if console.json:
            console.document(found)
        else:
            _show_job(console, found)
        return exits.OK
    every = console.call(lambda client: client.jobs())
    if console.json:
        console.document(every)
        return exits.OK
    rows = [_job_row(console, one) for one in every]
    headers = ("JOB", "NAME", "STATE", "READY", "FAILED", "PRIORITY", "STARTED", "TOOK")
    console.table(headers, rows, empty="there are no jobs", right=frozenset({3, 4, 5}))
    return exits.OK


def _job_row(console: Console, job: JobStatus) -> tuple[str, ...]:
    took = "-"
    if job.created_at:
        took = brief_duration(((job.finished_at or console.now) - job.created_at).total_seconds())
    counts = job.counts
    return (
        job.id,
        job.name or "-",
        job.state,
        f"{counts.succeeded}/{counts.desired}",
        str(counts.failed),
        str(job.priority),
        format_age(job.created_at, console.now),
        took,
    )


def _show_job(console: Console, job: JobStatus) -> None:
    counts = job.counts
    name = f" {clean(job.name)!r}" if job.name else ""
    console.say(
        f"job {job.id}{name}: {job.state}, {counts.succeeded} of {counts.desired} ready, started "
        f"{format_age(job.created_at, console.now)}"
    )
    rows = [_item_row(item) for item in job.items]
    headers = ("IMAGE", "PHASE", "DONE", "PULLED", "ATTEMPT", "REASON")
    console.table(headers, rows, empty="it has no images", right=frozenset({2, 3, 4}))


def _item_row(item: ItemStatus) -> tuple[str, ...]:
    reason = item.reason or "-"
    if item.phase == "Failed" and item.message:
        reason = f"{reason}: {item.message}"
    return (
        item.reference or item.image,
        item.phase,
        "100%" if item.phase == "Succeeded" else f"{item.progress.percent:.0f}%",
        format_size(item.pulled_bytes),
        str(item.attempt),
        reason,
    )


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB...", shell_complete=known_jobs)
@global_options
@pass_console
def cancel(console: Console, job_ids: tuple[str, ...]) -> int:
    """Cancel jobs: stokerd stops the pulls that no other job wants."""

    def show(job: JobStatus) -> None:
        counts = job.counts
        console.say(f"cancelled {job.id}: {counts.cancelled} images dropped, {counts.succeeded} were ready")

    return console.each(job_ids, lambda client, job_id: client.cancel(job_id), show)


@click.command()
@click.argument("reference", required=False, metavar="[REF]", shell_complete=known_images)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Most lines.")
@global_options
@pass_console
def history(console: Console, reference: str | None, limit: int) -> int:
    """List past pulls, the newest first: of all images, or of one."""
    attempts = console.call(lambda client: client.history(reference, limit=limit))
    if console.json:
        console.document(attempts)
        return exits.OK
    rows = [_attempt_row(console, attempt) for attempt in attempts]
    headers = ("WHEN", "IMAGE", "RESULT", "ATTEMPT", "PULLED", "TOOK", "REASON")
    console.table(headers, rows, empty="nothing was pulled yet", right=frozenset({3, 4, 5}))
    return exits.OK


def _attempt_row(console: Console, attempt: Attempt) -> tuple[str, ...]:
    took = "-"
    if attempt.started_at and attempt.finished_at:
        took = brief_duration((attempt.finished_at - attempt.started_at).total_seconds())
    reason = attempt.reason or "-"
    if attempt.result != "Succeeded" and attempt.message:
        reason = f"{reason}: {attempt.message}"
    return (
        format_age(attempt.finished_at or attempt.started_at, console.now),
        attempt.reference,
        attempt.result,
        str(attempt.attempt),
        format_size(attempt.pulled_bytes),
        took,
        reason,
    )
