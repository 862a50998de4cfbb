"""``stoker operations``: checkpoints, clones and commits that stokerd is at, or has been."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.checkpoint_layout import state_text, title
from stoker.cli.checkpoint_waiting import carry_out
from stoker.cli.completion import known_operations
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.text import clean
from stoker.units import brief_duration, fine_duration, format_age

if TYPE_CHECKING:
    from stoker.objects.checkpoints import Operation


@click.group("operations", invoke_without_command=True, short_help="Checkpoints, clones and commits under way.")
@global_options
@click.pass_context
def operations(context: click.Context) -> int:
    """List what stokerd is doing about checkpoints, clones and commits, or has done; show, watch and cancel it."""
    if context.invoked_subcommand is not None:
        return exits.OK
    return _list(context.ensure_object(Console))


def _list(console: Console) -> int:
    found = console.call(lambda client: client.operations())
    if console.json:
        console.document(found)
        return exits.OK
    headers = ("OPERATION", "KIND", "OF", "STATE", "STARTED", "TOOK", "REASON")
    console.table(headers, [_row(console, one) for one in found], empty="there are no operations")
    return exits.OK


def _row(console: Console, one: Operation) -> tuple[str, ...]:
    return (
        one.id,
        one.kind,
        one.subject or "-",
        state_text(one) if one.phase == "Running" else one.phase,
        format_age(one.created_at, console.now),
        _took(console, one),
        one.reason or "-",
    )


def _took(console: Console, one: Operation) -> str:
    if one.created_at is None:
        return "-"
    return brief_duration(((one.finished_at or console.now) - one.created_at).total_seconds())


@operations.command("show")
@click.argument("operation", shell_complete=known_operations)
@global_options
@pass_console
def show_operation(console: Console, operation: str) -> int:
    """Show an operation by its id, its name or the beginning of its id."""
    one = console.call(lambda client: client.operation(operation))
    if console.json:
        console.document(one)
        return exits.OK
    console.say(
        f"operation {clean(one.id)}: {title(one)}: {one.phase}, started {format_age(one.created_at, console.now)}"
    )
    if one.message:
        console.say(f"  {clean(one.reason)}: {clean(one.message)}" if one.reason else f"  {clean(one.message)}")
    for cause in one.causes:
        console.say(f"  - {clean(cause)}")
    ends = [step.started_at for step in one.steps[1:]] + [one.finished_at or console.now]
    for step, end in zip(one.steps, ends, strict=False):
        console.say(f"  {clean(step.name):<12} {fine_duration(max(0.0, (end - step.started_at).total_seconds()))}")
    for made in [each.id for each in one.checkpoints] + [each.id for each in one.clones]:
        console.say(f"  {clean(made)}")
    if one.image is not None:
        console.say(f"  {clean(one.image.image)} {clean(one.image.digest)}")
    if one.hint:
        console.note(f"hint: {clean(one.hint)}")
    return exits.OK


@operations.command("watch", short_help="Show an operation to its end.")
@click.argument("operation", shell_complete=known_operations)
@global_options
@pass_console
def watch_operation(console: Console, operation: str) -> int:
    """Show an operation until it is over, and exit as the command would have that asked for it.

    Ctrl-C ends the watching, not the operation. With --json every event is a line of JSON.
    """
    return carry_out(console, lambda client: client.operation(operation), watch=console.json, cancel=False)


@operations.command("cancel")
@click.argument("operations", nargs=-1, required=True, metavar="OPERATION...", shell_complete=known_operations)
@global_options
@pass_console
def cancel_operation(console: Console, operations: tuple[str, ...]) -> int:
    """Cancel operations; what they have begun is undone, clones that run already stay."""

    def show(one: Operation) -> None:
        over = {"Succeeded": "was over before", "Failed": "has ended" if one.cancelled else "was over before"}
        console.say(f"{clean(one.id)} {over.get(one.phase, 'is being cancelled')}")

    return console.each(operations, lambda client, name: client.cancel_operation(name), show)
