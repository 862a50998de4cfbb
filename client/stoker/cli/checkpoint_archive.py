"""``stoker checkpoint export|import|push|pull`` and ``stoker image push``: what leaves a node and enters another."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from stoker.cli import exits
from stoker.cli.checkpoint_waiting import carry_out, waiting_options
from stoker.cli.completion import known_checkpoints, known_images, known_objects
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.inputs import read_auth
from stoker.cli.text import clean
from stoker.units import format_size

if TYPE_CHECKING:
    from stoker.client import Client
    from stoker.objects.checkpoints import CheckpointInfo

F = TypeVar("F", bound="Callable[..., Any]")
_PIECE = 1 << 20


def auth_options(command: F) -> F:
    """Add the options about credentials, as those of ``stoker image warm``."""
    for option in (
        click.option("--registry", help="What the password is for, when the name does not say it."),
        click.option("--password-stdin", is_flag=True, help="Read the password from standard input."),
        click.option("--username", "-u", help="User name at the registry; default: the node's own credentials."),
    ):
        command = option(command)
    return command


def source_options(command: F) -> F:
    """Add the options about what a checkpoint from elsewhere may do here."""
    for option in (
        click.option("--name", default="", help="A name under which it can be found; default: its own."),
        click.option(
            "--trust",
            is_flag=True,
            help="Its clones are plain containers. You trust whoever made it as you trust root on this node.",
        ),
        click.option(
            "--like",
            default="",
            metavar="POD[/CONTAINER]",
            shell_complete=known_objects,
            help="Its clones get the configuration of this container, which is of the same image.",
        ),
    ):
        command = option(command)
    return command


def _check(like: str, trust: bool) -> None:
    if bool(like) == trust:
        raise click.UsageError(
            "say what its clones may do: --like POD/CONTAINER, or --trust when you trust whoever made it as root"
        )


@click.command("export", epilog=exits.HELP, short_help="Write a checkpoint to a file.")
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=known_checkpoints)
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to; - is standard output.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@global_options
@pass_console
def export(console: Console, checkpoint: str, output: str, force: bool) -> int:
    """Write a checkpoint to one file, which `checkpoint import` takes in, and checkpointctl can look at.

    It holds all that the container had in memory, passwords too; the file is for its owner alone (mode 0600).
    """
    if output == "-":
        if sys.stdout.isatty():
            raise click.UsageError("an archive is nothing for a terminal: name a file with -o")
        _fill(console, checkpoint, sys.stdout.buffer)
        return exits.OK
    path = Path(output)
    if path.exists() and not force:
        raise click.UsageError(f"{output} is there already; --force replaces it")
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            size = _fill(console, checkpoint, file)
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        console.fail(f"{output} cannot be written: {error.strerror}")
        return exits.FAILED
    finally:
        fresh.unlink(missing_ok=True)
    if not console.json:
        console.say(f"{console.style().ok} {clean(output)}: {format_size(size)}")
    return exits.OK


def _fill(console: Console, checkpoint: str, file: IO[bytes]) -> int:
    async def receive(client: Client) -> int:
        size = 0
        async for piece in client.export_checkpoint(checkpoint):
            file.write(piece)
            size += len(piece)
        return size

    return console.call(receive)


@click.command("import", epilog=exits.HELP, short_help="Take in a checkpoint from a file.")
@click.argument("file", metavar="FILE")
@source_options
@global_options
@pass_console
def import_(console: Console, file: str, like: str, trust: bool, name: str) -> int:
    """Take in a checkpoint that `checkpoint export` has written; - is standard input.

    Nothing of the file decides where it goes or what its clones may do: that is --like, or --trust. The image that it
    stands on must be on this node.
    """
    _check(like, trust)
    try:
        source = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None
    with source:
        made = console.call(lambda client: client.import_checkpoint(_pieces(source), like=like, trust=trust, name=name))
    _show(console, made)
    return exits.OK


async def _pieces(source: IO[bytes]) -> AsyncIterator[bytes]:
    import asyncio

    while piece := await asyncio.to_thread(source.read, _PIECE):
        yield piece


def _show(console: Console, made: CheckpointInfo) -> None:
    if console.json:
        console.document(made)
        return
    name = f" {clean(made.name)!r}" if made.name != made.id else ""
    size = f"{format_size(made.bytes)}, {format_size(made.memory_bytes)} of it memory"
    console.say(f"{console.style().ok} {clean(made.id)}{name}: {size}")


@click.command("push", epilog=exits.HELP, short_help="Push a checkpoint to a registry.")
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=known_checkpoints)
@click.argument("reference", metavar="REF")
@auth_options
@waiting_options
@global_options
@pass_console
def push_checkpoint(
    console: Console,
    checkpoint: str,
    reference: str,
    username: str | None,
    password_stdin: bool,
    registry: str | None,
    wait: bool,
    watch: bool,
) -> int:
    """Push a checkpoint to a registry as the artifact REF, for `checkpoint pull` on other nodes.

    It holds all that the container had in memory: whoever may pull REF can read it. Ctrl-C cancels.
    """
    from stoker.objects.archives import CheckpointPushRequest

    auths = read_auth([reference], username, password_stdin, registry)
    request = CheckpointPushRequest(to=reference, auths=auths)
    return carry_out(console, lambda client: client.push_checkpoint(checkpoint, request), wait=wait, watch=watch)


@click.command("pull", epilog=exits.HELP, short_help="Get a checkpoint from a registry.")
@click.argument("reference", metavar="REF")
@source_options
@auth_options
@waiting_options
@global_options
@pass_console
def pull_checkpoint(
    console: Console,
    reference: str,
    like: str,
    trust: bool,
    name: str,
    username: str | None,
    password_stdin: bool,
    registry: str | None,
    wait: bool,
    watch: bool,
) -> int:
    """Get a checkpoint that `checkpoint push` has pushed; the image that it stands on is pulled too, by its digest.

    What its clones may do is said by --like, or --trust. Ctrl-C cancels.
    """
    from stoker.objects.archives import CheckpointPullRequest

    _check(like, trust)
    auths = read_auth([reference], username, password_stdin, registry)
    request = CheckpointPullRequest(reference=reference, like=like, trust=trust, name=name, auths=auths)
    return carry_out(console, lambda client: client.pull_checkpoint(request), wait=wait, watch=watch)


@click.command("push", epilog=exits.HELP, short_help="Push an image to a registry.")
@click.argument("image", metavar="REF", shell_complete=known_images)
@click.option("--to", default="", metavar="REF", help="The name that it gets there; default: its own.")
@auth_options
@waiting_options
@global_options
@pass_console
def push_image(
    console: Console,
    image: str,
    to: str,
    username: str | None,
    password_stdin: bool,
    registry: str | None,
    wait: bool,
    watch: bool,
) -> int:
    """Push an image of this node to the registry that its name says.

    What is there already is left out, what another repository there has is mounted, and an upload that breaks off goes
    on where it was. Layers that containerd has dropped are fetched again from where they came. Ctrl-C cancels.
    """
    from stoker.objects.archives import ImagePushRequest

    auths = read_auth([to or image], username, password_stdin, registry)
    request = ImagePushRequest(image=image, to=to, auths=auths)
    return carry_out(console, lambda client: client.push_image(request), wait=wait, watch=watch)
