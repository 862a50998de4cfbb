"""``stoker recreate ls``, ``show``, ``watch``, ``cancel``: the requests that stokerd knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_recreates
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.pods import full_name
from stoker.cli.recreate import OWNERS, wait_for
from stoker.cli.text import clean
from stoker.units import brief_duration, fine_duration, format_age

if TYPE_CHECKING:
    from stoker.objects.containers import RecreateStatus, TargetStatus


@click.command("ls")
@global_options
@pass_console
def ls_recreates(console: Console) -> int:
    """List the requests to recreate, the newest first."""
    found = console.call(lambda client: client.recreates())
    if console.json:
        console.document(found)
        return exits.OK
    rows = [_row(console, status) for status in found]
    headers = ("REQUEST", "NAME", "POD", "CONTAINERS", "STATE", "STARTED", "TOOK")
    console.table(headers, rows, empty="nothing was recreated yet", right=frozenset({3}))
    return exits.OK


def _row(console: Console, status: RecreateStatus) -> tuple[str, ...]:
    done = sum(target.phase == "Succeeded" for target in status.containers)
    return (
        status.id,
        status.name if status.name != status.id else "-",
        full_name(status.namespace, status.pod),
        f"{done}/{len(status.containers)}",
        status.result or status.phase,
        format_age(status.created_at, console.now),
        _took(console, status),
    )


def _took(console: Console, status: RecreateStatus) -> str:
    if status.created_at is None:
        return "-"
    return brief_duration(((status.finished_at or console.now) - status.created_at).total_seconds())


@click.command("show")
@click.argument("request", shell_complete=known_recreates)
@global_options
@pass_console
def show_recreate(console: Console, request: str) -> int:
    """Show a request by its id, its name or the beginning of its id."""
    status = console.call(lambda client: client.recreate_status(request))
    if console.json:
        console.document(status)
    else:
        _show(console, status)
    return exits.OK


def _show(console: Console, status: RecreateStatus) -> None:
    name = f" {clean(status.name)!r}" if status.name not in {"", status.id} else ""
    state = status.result or status.phase
    where = clean(full_name(status.namespace, status.pod))
    started = format_age(status.created_at, console.now)
    console.say(f"request {clean(status.id)}{name}: {state}, {where}, started {started}")
    console.say(f"  {OWNERS[status.owner]}")
    if status.waiting_for:
        console.say(f"  waits for {clean(status.waiting_for)}, which is at the same pod")
    if status.message:
        console.say(f"  {clean(status.message)}")
    if status.phase != "Completed" and status.deadline_at:
        console.say(f"  its deadline is {format_age(status.deadline_at, console.now)}")
    headers = ("CONTAINER", "PHASE", "STEP", "ATTEMPT", "DOWN", "REASON")
    rows = [_target_row(console, target) for target in status.containers]
    console.table(headers, rows, empty="it has no containers")
    for target in status.containers:
        if target.hint:
            console.note(f"hint: {clean(target.name)}: {clean(target.hint)}")


def _target_row(console: Console, target: TargetStatus) -> tuple[str, ...]:
    attempts = str(target.old_attempt)
    if target.new_id:
        attempts += f" {console.style().arrow} {target.new_attempt}"
    reason = target.reason or "-"
    if target.phase == "Failed":
        reason += f": {target.message}" if target.message else ""
        reason += "; rolled back" if target.rolled_back and target.reason != "RolledBack" else ""
    down = fine_duration(target.downtime_seconds) if target.downtime_seconds else "-"
    return target.name, target.phase, target.step or "-", attempts, down, reason


@click.command("watch", short_help="Show the progress of a request to its end.")
@click.argument("request", shell_complete=known_recreates)
@global_options
@pass_console
def watch_recreate(console: Console, request: str) -> int:
    """Show the progress of a request until it is over, and exit as `stoker recreate` would have.

    Ctrl-C ends the watching, not the request. With --json every event is a line of JSON.
    """
    return wait_for(console, request, events=True)


@click.command("cancel", short_help="Cancel requests; what was recreated stays.")
@click.argument("requests", nargs=-1, required=True, metavar="REQUEST...", shell_complete=known_recreates)
@global_options
@pass_console
def cancel_recreate(console: Console, requests: tuple[str, ...]) -> int:
    """Cancel requests, each at the next point at which every container is whole. What was recreated stays."""

    def show(status: RecreateStatus) -> None:
        done = sum(target.phase == "Succeeded" for target in status.containers)
        what = "is being cancelled"
        if status.phase == "Completed":
            what = "cancelled" if status.result == "Cancelled" else f"was over before ({status.result.lower()})"
        console.say(f"{clean(status.id)} {what}: {done} of {len(status.containers)} containers were recreated")

    return console.each(requests, lambda client, request: client.cancel_recreate(request), show)
