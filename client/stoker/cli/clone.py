"""``stoker clone``: containers that go on where a checkpoint was taken."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.checkpoint import mode_of
from stoker.cli.checkpoint_waiting import carry_out, waiting_options
from stoker.cli.completion import known_checkpoints, known_clones
from stoker.cli.console import Console, global_options, help_without_command, pass_console
from stoker.cli.environment import variables
from stoker.cli.recreate_group import Action, ActionGroup
from stoker.cli.text import clean
from stoker.units import format_age, format_size

if TYPE_CHECKING:
    from stoker.objects.checkpoints import CloneFile, CloneInfo

_LARGEST_FILE = 4 << 20

EPILOG = f"""\b
Examples:
  stoker clone cp-20261130-120000-a1b2c3
  stoker clone golden -n 10 --hostname agent
  stoker clone golden --env TASK=7 --file task.json:/work/task.json --hook '/bin/start-task'

Checkpoints that are called like one of the commands are named behind --.

{exits.HELP}"""


@click.command(cls=Action, epilog=EPILOG)
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=known_checkpoints)
@click.option("-n", "--count", type=click.IntRange(1), default=1, show_default=True, help="So many.")
@click.option("--eager", is_flag=True, help="All memory before it runs.")
@click.option("--lazy", is_flag=True, help="Memory while it runs.")
@click.option("--hostname", default="", help="Its host name; of several each has its number behind it.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable for the hook and for programs that look for it; without =VALUE the value comes from stoker's own "
    "environment, where no other user can read it.",
)
@click.option("--env-file", "env_files", multiple=True, metavar="FILE", help="Variables, NAME=VALUE a line.")
@click.option("--file", "files", multiple=True, metavar="SRC:DST", help="Put a file into it before it runs.")
@click.option("--hook", metavar="CMD", help="Run this command inside once it runs.")
@waiting_options
@global_options
@pass_console
def clone(
    console: Console,
    checkpoint: str,
    count: int,
    eager: bool,
    lazy: bool,
    hostname: str,
    env: tuple[str, ...],
    env_files: tuple[str, ...],
    files: tuple[str, ...],
    hook: str | None,
    wait: bool,
    watch: bool,
) -> int:
    """Bring the container of CHECKPOINT back, with a network and an address of its own, as often as wanted.

    CHECKPOINT is an id, the beginning of one, or a name. Each clone goes on where the container stood. Without --eager
    and --lazy its size decides: large ones run before their memory is in. Ctrl-C cancels; clones that run already stay.
    """
    from stoker.objects.checkpoints import CloneRequest
    from stoker.objects.containers import EnvVar

    request = CloneRequest(
        checkpoint=checkpoint,
        count=count,
        hostname=hostname,
        mode=mode_of(eager, lazy),
        env=[EnvVar(name=name, value=value) for name, value in variables(env_files, env, os.environ).items()],
        files=[_file(text) for text in files],
        hook=_words(hook),
    )
    return carry_out(console, lambda client: client.clone(request), wait=wait, watch=watch)


def _file(text: str) -> CloneFile:
    """Read a file of this machine; it ends up in the clone under the second path."""
    from stoker.objects.checkpoints import CloneFile

    source, colon, target = text.rpartition(":")
    if not colon or not source or not target.startswith("/"):
        raise click.UsageError(f"--file {text!r}: that is not SRC:DST with an absolute DST")
    try:
        with Path(source).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise click.UsageError(f"--file {source}: {error.strerror or error}") from None
    if len(content) > _LARGEST_FILE:
        raise click.UsageError(f"--file {source}: it is larger than {_LARGEST_FILE >> 20} MiB")
    return CloneFile(path=target, content=content)


def _words(command: str | None) -> list[str]:
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--hook: {str(error).lower()}") from None
    if not words:
        raise click.UsageError("--hook: there is no command")
    return words


class _CloneGroup(ActionGroup):
    def known(self, context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return known_checkpoints(context, parameter, incomplete)


@click.group("clone", cls=_CloneGroup, invoke_without_command=True, short_help="Run containers from a checkpoint.")
@global_options
@click.pass_context
def clone_group(context: click.Context) -> int:
    """Run containers from a checkpoint."""
    return help_without_command(context)


clone_group.set_action(clone)


@clone_group.command("ls", short_help="List the clones on this node.")
@global_options
@pass_console
def list_clones(console: Console) -> int:
    """List the clones on this node, the newest first, with their addresses and the memory that is still out."""
    found = console.call(lambda client: client.clones())
    if console.json:
        console.document(found)
        return exits.OK
    headers = ("CLONE", "CHECKPOINT", "STATE", "ADDRESSES", "MEMORY", "MADE")
    rows = [_row(console, each) for each in found]
    console.table(headers, rows, empty="there are no clones on this node")
    for each in found:
        if each.message:
            console.note(f"{clean(each.id)}: {clean(each.message)}")
    return exits.OK


def _row(console: Console, one: CloneInfo) -> tuple[str, ...]:
    return (
        one.id,
        one.checkpoint,
        one.phase,
        ", ".join(one.addresses) or ("its pod's" if one.pod_id else "-"),
        _memory(one),
        format_age(one.created_at, console.now),
    )


def _memory(one: CloneInfo) -> str:
    if one.memory == "loading":
        return f"{format_size(one.memory_missing_bytes)} of {format_size(one.memory_bytes)} still out"
    return "lost" if one.memory == "lost" else format_size(one.memory_bytes)


@clone_group.command("rm", short_help="End clones and remove what is theirs.")
@click.argument("clones", nargs=-1, metavar="CLONE...", shell_complete=known_clones)
@click.option("--all", "every", is_flag=True, help="All clones on this node.")
@click.option("--of", "checkpoint", metavar="CHECKPOINT", help="All clones of this checkpoint.")
@global_options
@pass_console
def remove_clones(console: Console, clones: tuple[str, ...], every: bool, checkpoint: str | None) -> int:
    """End clones, give their addresses back, and remove all that is theirs."""
    if bool(clones) + every + bool(checkpoint) != 1:
        raise click.UsageError("name clones, or say --all, or --of CHECKPOINT")
    if every:
        clones = tuple(each.id for each in console.call(lambda client: client.clones()))
    elif checkpoint:
        clones = tuple(console.call(lambda client: client.checkpoint(checkpoint)).clones)

    def show(gone: CloneInfo) -> None:
        console.say(f"removed {clean(gone.id)}")

    return console.each(clones, lambda client, name: client.remove_clone(name), show)
