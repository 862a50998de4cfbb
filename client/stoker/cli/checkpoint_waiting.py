"""Asks for an operation and sees it to its end."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from stoker.cli import exits
from stoker.cli.console import Console
from stoker.cli.text import clean
from stoker.errors import DaemonUnreachable

if TYPE_CHECKING:
    from typing import Any

    from stoker.cli.checkpoint_reporters import OperationReporter
    from stoker.cli.following import Signals
    from stoker.client import Client
    from stoker.objects.checkpoints import Operation

F = TypeVar("F", bound="Callable[..., Any]")
Ask = "Callable[[Client], Awaitable[Operation]]"


def waiting_options(command: F) -> F:
    """Add the options about waiting for an operation."""
    for option in (
        click.option("--watch", is_flag=True, help="With --json: print every event as a line of JSON."),
        click.option(
            "--wait/--no-wait",
            " /--detach",
            default=True,
            help="Wait for the end, or print the operation's id only.",
        ),
    ):
        command = option(command)
    return command


def carry_out(
    console: Console,
    ask: Callable[[Client], Awaitable[Operation]],
    *,
    wait: bool = True,
    watch: bool = False,
    cancel: bool = True,
) -> int:
    """Have *ask* ask for an operation, show its progress to its end and return the exit code.

    Ctrl-C cancels it, or with *cancel* False only ends the watching; a second one leaves at once.
    """
    if watch and not console.json:
        raise click.UsageError("--watch goes with --json; without, progress is shown anyway")
    if not wait:
        operation = console.call(ask)
        if console.json:
            console.document(operation)
        else:
            console.say(clean(operation.id))
        return exits.OK
    import asyncio  # late: --help and mistakes need none of it

    return asyncio.run(_carry_out(console, ask, watch=watch, cancel=cancel))


async def _carry_out(
    console: Console, ask: Callable[[Client], Awaitable[Operation]], *, watch: bool, cancel: bool
) -> int:
    from stoker.cli.following import Left, Signals
    from stoker.client import Client

    reporter = _reporter(console, watch=watch)
    signals = Signals()
    operation: Operation | None = None
    try:
        async with Client(console.socket) as client, signals.handled():
            operation = await ask(client)
            operation, pressed = await _until_over(client, operation, reporter, signals, cancel=cancel)
        reporter.finish()
    except Left as left:
        reporter.close()
        if operation is not None:
            _goes_on(console, operation)
        return left.code
    except DaemonUnreachable:
        reporter.close()
        if operation is not None:
            _goes_on(console, operation)
        raise
    finally:
        reporter.close()
    if console.json and not watch:
        console.document(operation)
    _tell_failure(console, operation)
    code = exits.of_operation(operation)
    return exits.INTERRUPTED if pressed and code else code


async def _until_over(
    client: Client, operation: Operation, reporter: OperationReporter, signals: Signals, *, cancel: bool
) -> tuple[Operation, bool]:
    """Follow an operation; return it as it ended, and whether Ctrl-C was pressed. Left: it goes on without us."""
    import asyncio

    from stoker.cli.following import Left, end_all, follow_operation, together

    async def follow() -> Operation:
        (ended,) = await together(reporter, [follow_operation(client, operation, reporter)])
        return ended

    following = asyncio.create_task(follow())
    pressed = asyncio.create_task(signals.pressed.wait())
    try:
        await asyncio.wait({following, pressed}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not following.done()
        if interrupted:
            if not cancel:
                raise Left(exits.INTERRUPTED)
            reporter.note("cancelling: stokerd undoes what was begun (Ctrl-C again to leave at once)")
            await client.cancel_operation(operation.id)
        return await following, interrupted
    finally:
        await end_all(following, pressed)


def _tell_failure(console: Console, operation: Operation) -> None:
    """Say on standard error why an operation failed."""
    if operation.phase != "Failed":
        return
    console.fail(operation.message or operation.reason)
    for cause in operation.causes:
        console.note(f"  - {clean(cause)}")
    if operation.hint:
        console.note(f"{console.style(sys.stderr).paint('hint:', 'yellow')} {clean(operation.hint)}")


def _reporter(console: Console, *, watch: bool) -> OperationReporter:
    from stoker.cli.checkpoint_reporters import LiveOperation, PlainOperation
    from stoker.cli.reporters import reporter_for

    return reporter_for(
        console, events=watch, live=LiveOperation, plain=lambda: PlainOperation(console.say, console.style())
    )


def _goes_on(console: Console, operation: Operation) -> None:
    """Say that an operation goes on without us, whether stokerd is up at the moment or not."""
    name = clean(operation.id)
    console.note(f"operation {name} goes on in stokerd; look at it with: stoker operations watch {name}")
    console.note(f"cancel it with: stoker operations cancel {name}")
