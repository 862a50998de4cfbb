"""``stoker recreate``: containers restarted in place, in their pod sandbox."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_containers, known_pods
from stoker.cli.console import Console, global_options, help_without_command, pass_console
from stoker.cli.inputs import duration, read_auth
from stoker.cli.pods import full_name, newest, short_id
from stoker.cli.recreate_group import Action, ActionGroup
from stoker.cli.recreate_options import Changes, targets
from stoker.cli.text import clean
from stoker.errors import ClientError, DaemonUnreachable

if TYPE_CHECKING:
    from stoker.cli.recreate_reporters import RecreateReporter
    from stoker.client import Client
    from stoker.objects.containers import RecreatePlan, RecreateRequest, RecreateStatus

EPILOG = f"""\b
Examples:
  stoker recreate default/web-0 nginx
  stoker recreate default/web-0 nginx --image nginx:1.28 --min-started 5s
  stoker recreate default/web-0 nginx sidecar --image nginx=nginx:1.28 --env sidecar:MODE=fast
  stoker recreate default/web-0 --all --ordered

Pods that are called like one of the commands are named with their namespace, or behind --.

{exits.HELP}"""


@click.command(cls=Action, epilog=EPILOG)
@click.argument("pod", metavar="POD", shell_complete=known_pods)
@click.argument("containers", nargs=-1, metavar="[CONTAINER]...", shell_complete=known_containers)
@click.option("--all", "every", is_flag=True, help="All containers of the pod that run, in the order of their start.")
@click.option("--ordered", is_flag=True, help="One after another: the next one when the one before has succeeded.")
@click.option("--image", "images", multiple=True, metavar="[C=]REF", help="A new image; warmed before anything stops.")
@click.option(
    "--env",
    multiple=True,
    metavar="[C:]NAME[=VALUE]",
    help="A new or changed variable; without =VALUE the value comes from stoker's own environment, where no other "
    "user can read it.",
)
@click.option("--env-file", "env_files", multiple=True, metavar="[C:]FILE", help="Variables, NAME=VALUE a line.")
@click.option("--unset-env", "unset", multiple=True, metavar="[C:]NAME", help="Take a variable away.")
@click.option("--grace", type=duration, help="From the stop signal to the kill: 10s; default: the pod's own, or 30s.")
@click.option("--unready-grace", type=duration, help="Wait so long before anything is stopped.")
@click.option("--min-started", type=duration, help="The new container must stay up for so long: 5s.")
@click.option("--probe-tcp", multiple=True, metavar="[C:]PORT", help="Ready when this port accepts a connection.")
@click.option("--probe-exec", multiple=True, metavar="[C:]CMD", help="Ready when this command succeeds inside.")
@click.option("--force", is_flag=True, help="Even containers that something else has restarted meanwhile.")
@click.option(
    "--failure-policy",
    type=click.Choice(["Fail", "Ignore"], case_sensitive=False),
    metavar="Fail|Ignore",
    help="After a container that fails, leave the rest alone (Fail, the default) or go on (Ignore).",
)
@click.option("--deadline", type=duration, help="What is not done after so long has failed: 10m; default: stokerd's.")
@click.option("--name", help="A name for the request. The same name and content again is the same request.")
@click.option("--username", help="User for the registry of the new images; goes with --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Read the password for --username from standard input.")
@click.option("--registry", help="Registry that the user is for; default: that of the images.")
@click.option("--wait/--no-wait", " /--detach", default=True, help="Wait for the end, or print the request's id only.")
@click.option("--watch", is_flag=True, help="With --json: print every event as a line of JSON instead of the result.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@global_options
@pass_console
def recreate(
    console: Console,
    pod: str,
    containers: tuple[str, ...],
    every: bool,
    ordered: bool,
    images: tuple[str, ...],
    env: tuple[str, ...],
    env_files: tuple[str, ...],
    unset: tuple[str, ...],
    grace: float | None,
    unready_grace: float | None,
    min_started: float | None,
    probe_tcp: tuple[str, ...],
    probe_exec: tuple[str, ...],
    force: bool,
    failure_policy: str | None,
    deadline: float | None,
    name: str | None,
    username: str | None,
    password_stdin: bool,
    registry: str | None,
    wait: bool,
    watch: bool,
    dry_run: bool,
) -> int:
    """Recreate containers of POD in place: same sandbox, address, volumes and devices; the others are not touched.

    POD is NAMESPACE/NAME, a name, an id or the beginning of one. Of a pod with one container it need not be named, and
    the id of a container stands for the container and its pod. With several containers, options that are for one of
    them begin with its name.

    Ctrl-C ends the waiting, not the request.
    """
    from stoker.objects.containers import RecreateRequest, RecreateStrategy

    if watch and not console.json:
        raise click.UsageError("--watch goes with --json; without, progress is shown anyway")
    changes = Changes(images, env_files, env, unset, probe_tcp, probe_exec)
    if every and containers:
        raise click.UsageError("name containers or say --all, not both")
    if every and changes:
        raise click.UsageError("--image, --env and --probe are for containers that are named, not for --all")
    if not every and not containers:
        pod, containers = _only_container(console, pod)
    wanted = targets(containers, changes, os.environ)
    request = RecreateRequest(
        pod=pod,
        name=name or "",
        containers=wanted,
        all=every,
        strategy=RecreateStrategy(
            failure_policy="Ignore" if failure_policy == "Ignore" else "Fail",
            ordered_recreate=ordered,
            force_recreate=force,
            termination_grace_period_seconds=grace,
            unready_grace_period_seconds=unready_grace or 0.0,
            min_started_seconds=min_started or 0.0,
        ),
        active_deadline_seconds=deadline,
        auths=read_auth([target.image for target in wanted if target.image], username, password_stdin, registry),
    )
    if dry_run:
        return _dry_run(console, request)
    if not wait:
        status = console.call(lambda client: client.recreate(request))
        if console.json:
            console.document(status)
        else:
            console.say(clean(status.id))
        return exits.OK
    return wait_for(console, request, events=watch)


def _only_container(console: Console, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the pod and the container that *name* alone stands for; click.UsageError when it has several."""

    async def look(client: Client) -> tuple[str, tuple[str, ...]]:
        try:
            info = (await client.pod(name)).info
        except ClientError as error:
            if error.reason != "NotFound":
                raise
            try:
                container = (await client.container(name)).info
            except ClientError as other:
                raise (error if other.reason == "NotFound" else other) from None
            return container.pod_id, (container.name,)
        return info.id, tuple(one.name for one in newest(info.containers))

    pod, names = console.call(look)
    if len(names) != 1:
        which = f"it has {', '.join(clean(one) for one in names)}" if names else "it has none"
        raise click.UsageError(f"name containers of {name}, or say --all: {which}")
    return pod, names


def _dry_run(console: Console, request: RecreateRequest) -> int:
    found = console.call(lambda client: client.plan_recreate(request))
    if console.json:
        console.document(found)
    else:
        show_plan(console, found)
        console.note("nothing was done")
    return exits.OK


def show_plan(console: Console, found: RecreatePlan) -> None:
    """Print what would be done."""
    name = clean(full_name(found.namespace, found.pod))
    console.say(f"{name} ({short_id(found.pod_id)}), {OWNERS[found.owner]}")
    rows = [
        (str(number), step.container or "-", step.action, step.detail)
        for number, step in enumerate(found.steps, start=1)
    ]
    console.table(("", "CONTAINER", "STEP", "DETAIL"), rows, empty="there is nothing to do", right=frozenset({0}))
    for warning in found.warnings:
        console.warn(warning)


OWNERS = {
    "kubelet": "a kubelet's pod: the kubelet starts the new containers",
    "stoker": "Stoker's own pod",
    "other": "a pod made over CRI",
}


# ---------------------------------------------------------------------------------------------- waiting


def wait_for(console: Console, request: RecreateRequest | str, *, events: bool) -> int:
    """Make a request, or take the id of one that was made, show its progress to its end and return the exit code."""
    import asyncio  # late: --help and mistakes need none of it

    return asyncio.run(_wait_for(console, request, events=events))


async def _wait_for(console: Console, request: RecreateRequest | str, *, events: bool) -> int:
    from stoker.cli.following import Left, Signals, follow_recreate, together, unless_pressed
    from stoker.client import Client

    reporter = make_reporter(console, events=events)
    signals = Signals()
    status: RecreateStatus | None = None
    try:
        async with Client(console.socket) as client, signals.handled():
            status = await (client.recreate_status(request) if isinstance(request, str) else client.recreate(request))
            (status,) = await unless_pressed(together(reporter, [follow_recreate(client, status, reporter)]), signals)
        reporter.finish()
    except Left as left:
        reporter.close()
        if status is not None:
            goes_on(console, status)
        return left.code
    except DaemonUnreachable:
        reporter.close()
        if status is not None:
            goes_on(console, status)
        raise
    finally:
        reporter.close()
    if console.json and not events:
        console.document(status)
    return exits.of_recreate(status)


def make_reporter(console: Console, *, events: bool) -> RecreateReporter:
    """Return what shows progress where the output goes."""
    from stoker.cli.recreate_reporters import LiveRecreate, PlainRecreate
    from stoker.cli.reporters import reporter_for

    return reporter_for(
        console, events=events, live=LiveRecreate, plain=lambda: PlainRecreate(console.say, console.style())
    )


def goes_on(console: Console, status: RecreateStatus) -> None:
    """Say that a request goes on without us, whether stokerd is up at the moment or not."""
    name = clean(status.id)
    console.note(f"request {name} goes on in stokerd; look at it with: stoker recreate watch {name}")
    console.note(f"cancel it with: stoker recreate cancel {name}")


@click.group("recreate", cls=ActionGroup, invoke_without_command=True, short_help="Restart containers in place.")
@global_options
@click.pass_context
def recreate_group(context: click.Context) -> int:
    """Restart containers in place."""
    return help_without_command(context)


recreate_group.set_action(recreate)
