"""Image jobs of a coordinator, with bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from stoker.cli import server_tables as tables
from stoker.cli.console import Console
from stoker.cli.text import Style, clean, pad, width_of
from stoker.objects.cluster_images import ImageListPullJob, ImagePullJob
from stoker.units import format_size_pair

if TYPE_CHECKING:
    from stoker.objects.kinds import Kind
    from stoker.server_client import Document

_BAR = 20


def print_jobs(console: Console, found: Sequence[tuple[Kind, Document]], *, namespaces: bool) -> None:
    """Print jobs, the latest first."""
    jobs = [cast("ImagePullJob | ImageListPullJob", tables.typed(document, kind)) for kind, document in found]
    jobs.sort(key=lambda job: job.metadata.creation_timestamp or console.now, reverse=True)
    if not jobs:
        console.note("there are no image jobs" + ("" if namespaces else " in this namespace"))
        return
    style = console.style()
    names = [f"{job.metadata.namespace}/{job.metadata.name}" if namespaces else job.metadata.name for job in jobs]
    width = max(width_of(clean(name)) for name in names)
    for name, job in zip(names, jobs, strict=True):
        console.say(f"{pad(style.paint(clean(name), 'bold'), width)}  {job_line(job, style)}")
        for line in trouble_lines(job, style):
            console.say(f"{' ' * width}  {line}")


def job_line(job: ImagePullJob | ImageListPullJob, style: Style) -> str:
    """Return how far one job is: a bar, what is counted, how it is."""
    part = tables.share(job)
    done = job.status.completion_time is not None and not tables.holds(job.status.conditions, "Failed")
    bar = style.bar(1.0 if done else part or 0.0, _BAR)
    what = "nodes" if isinstance(job, ImagePullJob) else "images"
    parts = [f"{job.status.succeeded}/{job.status.desired} {what}"]
    progress = job.status.progress
    if progress.bytes_total and not done:
        parts.append(format_size_pair(progress.bytes_done, progress.bytes_total))
    if job.status.active:
        parts.append(f"{job.status.active} active")
    if progress.nodes_silent:
        parts.append(style.paint(f"{progress.nodes_silent} silent", "yellow"))
    parts.append(tables.paint_state(tables.job_word(job), style))
    if job.status.message:
        parts.append(clean(job.status.message))
    return f"{bar}  {style.separator.join(parts)}"


def trouble_lines(job: ImagePullJob | ImageListPullJob, style: Style, most: int = 3) -> list[str]:
    """Return a line for each of the first nodes that are in trouble."""
    lines = []
    for trouble in job.status.troubles[:most]:
        image = f" {clean(trouble.image)}" if trouble.image else ""
        lines.append(
            f"{style.bad} {clean(trouble.node)}{image}: {clean(trouble.reason)} {clean(trouble.message)}".rstrip()
        )
    more = len(job.status.troubles) - most
    return [*lines, f"and {more} more: stoker describe"] if more > 0 else lines
