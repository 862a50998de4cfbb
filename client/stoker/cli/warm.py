"""``stoker image warm``, ``plan``, ``watch``: what takes time, and what looks ahead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_jobs
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.inputs import POLICY, PRIORITY, check_stdin_once, duration, read_auth, read_requests
from stoker.cli.text import clean
from stoker.units import format_size

if TYPE_CHECKING:
    from stoker.cli.reporters import Reporter
    from stoker.objects.images import Event, ImagePlan, JobStatus, Plan, SpaceNeed, WarmRequest

FILES = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="Read images from a file, - for standard input: one reference a line, or ImagePullJob and ImageListPullJob "
    "objects as YAML. May be repeated.",
)


@click.command(epilog=exits.HELP)
@click.argument("references", nargs=-1, metavar="[REF]...")
@FILES
@click.option("--name", help="A name for the job, for people.")
@click.option("--policy", type=POLICY, help="Whether an image that is there is pulled again; default IfNotPresent.")
@click.option("--priority", type=PRIORITY, help="Higher goes first, -1000 to 1000; default 0.")
@click.option("--attempts", type=click.IntRange(min=1), help="Tries for each image; default: stokerd's setting.")
@click.option("--timeout", type=duration, help="Deadline of each image, all attempts together: 90s, 10m.")
@click.option("--pin", type=duration, help="Pin each image for so long once it is there: 24h; 0: until it is unpinned.")
@click.option("--username", help="User for the images' registry; goes with --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Read the password for --username from standard input.")
@click.option("--registry", help="Registry that the user is for; default: that of the images.")
@click.option("--detach", "--no-wait", is_flag=True, help="Print the id of the job and leave it to stokerd.")
@click.option("--watch", is_flag=True, help="With --json: print every event as a line of JSON instead of the result.")
@global_options
@pass_console
def warm(
    console: Console,
    references: tuple[str, ...],
    files: tuple[str, ...],
    name: str | None,
    policy: str | None,
    priority: int | None,
    attempts: int | None,
    timeout: float | None,
    pin: float | None,
    username: str | None,
    password_stdin: bool,
    registry: str | None,
    detach: bool,
    watch: bool,
) -> int:
    """Make images present on this node, and wait for them.

    Ctrl-C cancels: stokerd stops the pulls that nothing else wants. A second Ctrl-C leaves at once.
    """
    if watch and not console.json:
        raise click.UsageError("--watch goes with --json; without, progress is shown anyway")
    check_stdin_once(files, password_stdin)
    requests = read_requests(console, references, files)
    images = list(dict.fromkeys(image for request in requests for image in request.images))
    auths = read_auth(images, username, password_stdin, registry)
    given = {
        "name": name,
        "policy": policy,
        "priority": priority,
        "attempts": attempts,
        "timeout_seconds": timeout,
        "pin_seconds": pin,
        "auths": auths or None,
    }
    from msgspec.structs import replace

    chosen = {field: value for field, value in given.items() if value is not None}
    requests = [replace(request, **chosen) for request in requests]
    if detach:
        return _detached(console, requests)
    import asyncio  # late: --help and mistakes need none of it

    return asyncio.run(_warm(console, requests, events=watch))


def _detached(console: Console, requests: Sequence[WarmRequest]) -> int:
    return console.each(requests, lambda client, request: client.warm(request), lambda job: console.say(job.id))


async def _warm(console: Console, requests: Sequence[WarmRequest], *, events: bool) -> int:
    from stoker.cli.following import Left, Signals, until_over_or_pressed
    from stoker.client import Client

    reporter = _reporter(console, events=events)
    signals = Signals()
    jobs: list[JobStatus] = []
    try:
        async with Client(console.socket) as client, signals.handled():
            for request in requests:
                jobs.append(await client.warm(request))
            ended, interrupted = await until_over_or_pressed(client, jobs, reporter, signals, cancel=True)
        reporter.finish()
    except Left as left:
        reporter.close()
        _say_what_goes_on(console, jobs)
        return left.code
    finally:
        reporter.close()
    if console.json and not events:
        for job in ended:
            console.document(job)
    if interrupted:
        return exits.INTERRUPTED
    return exits.of_items(item for job in ended for item in job.items)


def _reporter(console: Console, *, events: bool) -> Reporter:
    from stoker.cli.reporters import LiveReporter, PlainReporter, reporter_for

    return reporter_for(console, events=events, live=LiveReporter, plain=lambda: PlainReporter(console.say))


def _say_what_goes_on(console: Console, jobs: Sequence[JobStatus]) -> None:
    for job in jobs:
        console.note(f"job {job.id} goes on in stokerd; look at it with: stoker image watch {job.id}")


@click.command()
@click.argument("job", required=False, shell_complete=known_jobs)
@global_options
@pass_console
def watch(console: Console, job: str | None) -> int:
    """Show the progress of JOB, or all changes to images.

    Ctrl-C ends the watching, not the job. With --json every event is a line of JSON.
    """
    import asyncio

    return asyncio.run(_watch_job(console, job) if job else _watch_node(console))


async def _watch_job(console: Console, job_id: str) -> int:
    from stoker.cli.following import Left, Signals, until_over_or_pressed
    from stoker.client import Client

    reporter = _reporter(console, events=True)
    signals = Signals()
    jobs: list[JobStatus] = []
    try:
        async with Client(console.socket) as client, signals.handled():
            jobs.append(await client.job(job_id))
            ended, _ = await until_over_or_pressed(client, jobs, reporter, signals, cancel=False)
        reporter.finish()
    except Left as left:
        reporter.close()
        _say_what_goes_on(console, jobs)
        return left.code
    finally:
        reporter.close()
    return exits.of_items(item for job in ended for item in job.items)


async def _watch_node(console: Console) -> int:
    from stoker.client import Client, DaemonUnreachable

    async with Client(console.socket) as client:
        async for event in client.watch():
            if console.json:
                console.line(event)
            else:
                for text in _event_lines(event):
                    console.say(f"{datetime.now().astimezone():%H:%M:%S}  {text}")
    raise DaemonUnreachable("stokerd has ended the stream", "is it restarting? systemctl status stokerd")


def _event_lines(event: Event) -> list[str]:
    from stoker.cli.layout import outcome
    from stoker.objects.images import ImageChange, JobEvent

    if isinstance(event, ImageChange):
        more = f": {clean(event.message)}" if event.message else ""
        return [f"{event.kind:<9} {clean(event.reference)}{more}"]
    if isinstance(event, JobEvent):
        return [f"{'job':<9} {event.job.id} {event.job.state.lower()}, {event.job.counts.desired} images"]
    item = event.item
    over = item.phase in {"Succeeded", "Failed", "Cancelled"}
    what = outcome(item) if over else f"{item.progress.percent:.0f}%"
    return [f"{item.phase.lower():<9} {clean(item.reference)}: {what}"]


@click.command(epilog=exits.HELP)
@click.argument("references", nargs=-1, metavar="[REF]...")
@FILES
@click.option("--username", help="User for the images' registry; goes with --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Read the password for --username from standard input.")
@click.option("--registry", help="Registry that the user is for; default: that of the images.")
@global_options
@pass_console
def plan(
    console: Console,
    references: tuple[str, ...],
    files: tuple[str, ...],
    username: str | None,
    password_stdin: bool,
    registry: str | None,
) -> int:
    """Show what warming images would download and need on disk. Nothing is pulled."""
    from stoker.objects.images import PlanRequest

    check_stdin_once(files, password_stdin)
    requests = read_requests(console, references, files)
    images = list(dict.fromkeys(image for request in requests for image in request.images))
    auths = read_auth(images, username, password_stdin, registry)
    found = console.call(lambda client: client.plan(PlanRequest(images=images, auths=auths)))
    if console.json:
        console.document(found)
    else:
        show_plan(console, found)
    return code_of_plan(found)


def code_of_plan(found: Plan) -> int:
    """Return the exit code: whether it fits, and whether a plan could be made for every image."""
    if not found.space.fits:
        return exits.NO_SPACE
    return exits.of_reasons(image.reason for image in found.images if image.reason)


def show_plan(console: Console, found: Plan) -> None:
    """Print what warming would take."""
    rows = [_plan_row(image) for image in found.images]
    headers = ("IMAGE", "PLATFORM", "LAYERS", "DOWNLOAD", "ON DISK", "STATE")
    console.table(headers, rows, empty="no images", right=frozenset({2, 3, 4}))
    for image in found.images:
        if image.hint:
            console.note(f"hint: {clean(image.reference or image.image)}: {clean(image.hint)}")
    console.say()
    console.say(_space_line(console, found.space))


def _plan_row(image: ImagePlan) -> tuple[str, ...]:
    name = image.reference or image.image
    if image.reason:
        return name, "-", "-", "-", "-", f"{image.reason}: {image.message}"
    if image.present:
        return name, image.platform or "-", f"0/{image.layers_total}", "0 B", "0 B", "present"
    about = "~" if image.unpack_estimated else ""
    return (
        name,
        image.platform or "-",
        f"{image.layers_missing}/{image.layers_total}",
        format_size(image.download_bytes),
        f"{about}{format_size(image.unpack_bytes)}",
        "to pull",
    )


def _space_line(console: Console, space: SpaceNeed) -> str:
    style = console.style()
    mark, verdict = (style.ok, "it fits") if space.fits else (style.bad, "it does not fit")
    where = f" on {clean(space.path)}" if space.path else ""
    text = f"{mark} {verdict}: {format_size(space.needed_bytes)} needed, {format_size(space.free_bytes)} free{where}"
    text += f", {format_size(space.reserve_bytes)} of it to stay free"
    if space.needed_inodes:
        text += f"; {space.needed_inodes} inodes needed, {space.free_inodes} free, {space.reserve_inodes} to stay free"
    return text
