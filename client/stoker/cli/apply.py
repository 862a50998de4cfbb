"""``stoker apply``: objects from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.inputs import check_stdin_once
from stoker.cli.text import clean
from stoker.errors import ClientError, DaemonUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.client import Client
    from stoker.manifests import Wish
    from stoker.objects.checkpoints import CheckpointRequest, CommitRequest, Operation
    from stoker.objects.containers import RecreatePlan, RecreateStatus
    from stoker.objects.images import JobStatus, Plan

    Result = JobStatus | RecreateStatus | Operation
    Planned = Plan | RecreatePlan | CheckpointRequest | CommitRequest


@click.command("apply", epilog=exits.HELP, short_help="Make requests of the objects in files.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="A file with objects as YAML or JSON, - for standard input. May be repeated.",
)
@click.option("--wait", is_flag=True, help="Wait until everything is done.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("-n", "--namespace", metavar="NAME", help="With --server: of objects that name none; default: default.")
@global_options
@pass_console
def apply(console: Console, files: tuple[str, ...], wait: bool, dry_run: bool, namespace: str | None) -> int:
    """Make requests of the objects in files: ContainerRecreateRequest, ImagePullJob, ImageListPullJob, Checkpoint,
    Commit.

    All files are read and checked before the first request is made. But for ImagePullJobs, an object that was applied
    before, with the same name and content, is the same request for as long as stokerd knows it.

    With --server they become objects of the coordinator, of any kind that it has; one that is there is changed.
    """
    from stoker.manifests import read_objects

    if wait and dry_run:
        raise click.UsageError("--wait and --dry-run exclude each other")
    check_stdin_once(files, from_stdin=False)
    if console.server:
        from stoker.cli.server_apply import apply_to_server

        return apply_to_server(console, files, dry_run=dry_run, wait=wait, namespace=namespace)
    wishes: list[Wish] = []
    for file in files:
        found = read_objects(file)
        wishes += found.wishes
        for warning in found.warnings:
            console.warn(warning)
    if dry_run:
        return _dry_run(console, wishes)
    import asyncio  # late: --help and mistakes need none of it

    return asyncio.run(_apply(console, wishes, wait=wait))


def _dry_run(console: Console, wishes: Sequence[Wish]) -> int:
    from stoker.cli.recreate import show_plan as show_recreate
    from stoker.cli.warm import code_of_plan
    from stoker.cli.warm import show_plan as show_images
    from stoker.objects.checkpoints import CheckpointRequest, CommitRequest
    from stoker.objects.containers import RecreatePlan, RecreateRequest
    from stoker.objects.images import Plan, PlanRequest

    codes: set[int] = set()

    async def ask(client: Client, wish: Wish) -> Planned:
        if not console.json:
            console.say(f"{clean(wish.label)}:" if wish is wishes[0] else f"\n{clean(wish.label)}:")
        if isinstance(wish.request, RecreateRequest):
            return await client.plan_recreate(wish.request)
        if isinstance(wish.request, CheckpointRequest | CommitRequest):
            return wish.request
        plan = await client.plan(PlanRequest(images=wish.request.images))
        codes.add(code_of_plan(plan))
        return plan

    def show(plan: Planned) -> None:
        if isinstance(plan, RecreatePlan):
            show_recreate(console, plan)
        elif isinstance(plan, Plan):
            show_images(console, plan)
        else:
            console.say(f"  {_in_words(plan)}")

    codes.add(console.each(wishes, ask, show))
    if not console.json:
        console.note("nothing was done")
    return exits.combine(codes - {exits.OK})


def _in_words(request: CheckpointRequest | CommitRequest) -> str:
    from stoker.objects.checkpoints import CommitRequest

    if isinstance(request, CommitRequest):
        return f"commit {clean(request.container)} as {clean(request.image)}"
    containers = ", ".join(clean(each) for each in request.containers) or "all containers that run"
    return f"checkpoint {clean(request.pod)}: {containers}{'; they are ended' if request.stop else ''}"


async def _apply(console: Console, wishes: Sequence[Wish], *, wait: bool) -> int:
    from stoker.cli.following import Left, Signals, unless_pressed
    from stoker.client import Client

    codes: set[int] = set()
    accepted: list[tuple[Wish, Result]] = []
    signals = Signals()
    try:
        async with Client(console.socket) as client, signals.handled():
            for wish in wishes:
                result = await _make(console, client, wish, codes)
                if result is not None:
                    accepted.append((wish, result))
                    _say_accepted(console, wish, result, wait=wait)
            if wait:
                codes |= await unless_pressed(_wait(console, client, accepted), signals)
    except Left as left:
        console.note(
            "what was accepted goes on in stokerd; see: stoker recreate ls, stoker image jobs, stoker operations"
        )
        return left.code
    return exits.combine(codes)


async def _make(console: Console, client: Client, wish: Wish, codes: set[int]) -> Result | None:
    """Return what stokerd makes of an object, None when it refuses: that is told, and the others are tried."""
    from stoker.objects.checkpoints import CheckpointRequest, CommitRequest
    from stoker.objects.containers import RecreateRequest

    try:
        if isinstance(wish.request, RecreateRequest):
            return await client.recreate(wish.request)
        if isinstance(wish.request, CheckpointRequest):
            return await client.create_checkpoint(wish.request)
        if isinstance(wish.request, CommitRequest):
            return await client.commit(wish.request)
        return await client.warm(wish.request)
    except DaemonUnreachable:
        raise
    except ClientError as error:
        console.fail(f"{wish.place}: {wish.label}: {error.message}", error.hint)
        codes.add(exits.of_error(error))
        return None


def _say_accepted(console: Console, wish: Wish, result: Result, *, wait: bool) -> None:
    from stoker.cli.checkpoint_layout import title
    from stoker.cli.recreate_layout import pod_name
    from stoker.objects.checkpoints import Operation
    from stoker.objects.containers import RecreateStatus

    if console.json:
        if not wait:
            console.document(result)
        return
    if isinstance(result, RecreateStatus):
        count = len(result.containers)
        what = f"request {clean(result.id)}: {pod_name(result)}, {count} container{'' if count == 1 else 's'}"
    elif isinstance(result, Operation):
        what = f"operation {clean(result.id)}: {title(result)}"
    else:
        count = result.counts.desired
        what = f"job {clean(result.id)}: {count} image{'' if count == 1 else 's'}"
    console.say(f"{clean(wish.label)}  {what}")


async def _wait(console: Console, client: Client, accepted: Sequence[tuple[Wish, Result]]) -> set[int]:
    """Wait for everything at once, tell of each thing as it ends, and return the exit codes."""
    from stoker.cli.following import follow_job, follow_operation, follow_recreate, together
    from stoker.cli.reporters import QuietReporter
    from stoker.objects.checkpoints import Operation
    from stoker.objects.containers import RecreateStatus

    reporter = QuietReporter(console)

    async def see_end(wish: Wish, result: Result) -> int:
        if isinstance(result, RecreateStatus):
            status = await follow_recreate(client, result, reporter)
            code = exits.of_recreate(status)
            _say_ended(console, wish, status, code)
            return code
        if isinstance(result, Operation):
            operation = await follow_operation(client, result, reporter)
            code = exits.of_operation(operation)
            _say_ended(console, wish, operation, code)
            return code
        job = await follow_job(client, result, reporter)
        code = exits.of_items(job.items)
        _say_ended(console, wish, job, code)
        return code

    return set(await together(reporter, [see_end(wish, result) for wish, result in accepted])) - {exits.OK}


def _say_ended(console: Console, wish: Wish, result: Result, code: int) -> None:
    from stoker.cli.layout import finished_lines as image_lines
    from stoker.cli.recreate_layout import finished_lines, name_width
    from stoker.objects.checkpoints import Operation
    from stoker.objects.containers import RecreateStatus

    if console.json:
        console.document(result)
        return
    style = console.style()
    if isinstance(result, Operation):
        state: str = result.phase
    else:
        state = result.result if isinstance(result, RecreateStatus) else result.state
    console.say(f"{style.bad if code else style.ok} {clean(wish.label)}  {state.lower()}")
    if isinstance(result, Operation):
        for line in _of_operation(console, result):
            console.say(f"  {line}")
        return
    if not code:
        return
    if isinstance(result, RecreateStatus):
        for target in result.containers:
            for line in finished_lines(target, style, name_width(result)) if target.phase == "Failed" else ():
                console.say(f"  {line}")
        return
    for item in result.items:
        for line in image_lines(item, style) if item.phase == "Failed" else ():
            console.say(f"  {line}")


def _of_operation(console: Console, operation: Operation) -> list[str]:
    from stoker.cli.checkpoint_layout import outcome_lines

    if operation.phase == "Succeeded":
        return outcome_lines(operation, console.style(), console.now)
    hint = [f"hint: {clean(operation.hint)}"] if operation.hint else []
    return [
        clean(f"{operation.reason}: {operation.message}"),
        *(f"- {clean(each)}" for each in operation.causes),
        *hint,
    ]
