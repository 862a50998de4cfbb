"""One run of the command line: its global options, where its output goes, and how it reaches stokerd."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from stoker.cli import exits
from stoker.cli.text import Style, clean, table
from stoker.defaults import DEFAULT_SOCKET
from stoker.errors import ClientError, DaemonUnreachable

if TYPE_CHECKING:
    from stoker.client import Client

A = TypeVar("A")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class OutputClosed(Exception):
    """Nobody reads standard output any more."""


def write_out(text: str) -> None:
    """Write *text* to standard output at once, so that it can be read as it happens; OutputClosed."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:  # a pipe without a reader, a terminal that was closed
        raise OutputClosed(str(error)) from error


@dataclass
class Console:
    """The global options, and what follows from them."""

    socket: Path = field(default_factory=lambda: Path(os.environ.get("STOKER_SOCKET") or DEFAULT_SOCKET))
    server: str = field(default_factory=lambda: os.environ.get("STOKER_SERVER", ""))
    """Of a coordinator; empty: stokerd on this node is meant."""
    server_given: bool = False
    """On the command line: who says that must not get this node's answer."""
    json: bool = False
    no_color: bool = False
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def style(self, stream: IO[str] | None = None) -> Style:
        """Return what *stream* (standard output when None) can show."""
        stream = stream or sys.stdout
        dull = self.no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
        return Style(color=stream.isatty() and not dull, unicode=encoding.startswith("utf"))

    @property
    def live(self) -> bool:
        """Whether standard output is a terminal that can be drawn on."""
        return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def call(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """Return what *request* gets from stokerd; ClientError."""
        if self.server_given:
            raise click.UsageError("this command is about this node, and --server means a coordinator: leave it out")
        import asyncio  # late, like the client: --help needs neither

        from stoker.client import Client

        async def exchange() -> T:
            async with Client(self.socket) as client:
                return await request(client)

        return asyncio.run(exchange())

    def each(
        self,
        items: Iterable[A],
        request: Callable[[Client, A], Awaitable[T]],
        show: Callable[[T], None],
    ) -> int:
        """Make a request for each of *items* and show what comes back (with --json: a document each).

        One that is refused does not keep the others from being tried. Return the exit code; DaemonUnreachable.
        """
        codes: set[int] = set()

        async def exchange(client: Client) -> None:
            for item in items:
                try:
                    result = await request(client, item)
                except DaemonUnreachable:
                    raise
                except ClientError as error:
                    self.fail(error.message, error.hint)
                    codes.add(exits.of_error(error))
                else:
                    if self.json:
                        self.document(result)
                    else:
                        show(result)

        self.call(exchange)
        return exits.combine(codes)

    def say(self, text: str = "") -> None:
        """Print a line of the result; OutputClosed."""
        write_out(f"{text}\n")

    def note(self, text: str) -> None:
        """Print a line that is not the result, if anybody can read it."""
        with suppress(OSError):
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.note(f"{self.style(sys.stderr).paint('stoker: warning:', 'yellow')} {clean(text)}")

    def fail(self, message: str, hint: str = "") -> None:
        """Print why the command fails."""
        style = self.style(sys.stderr)
        self.note(f"{style.paint('stoker:', 'red')} {clean(message)}")
        if hint:
            self.note(f"{style.paint('hint:', 'yellow')} {clean(hint)}")

    def document(self, value: Any) -> None:
        """Print an object, or a list of objects, as an indented JSON document."""
        import msgspec

        self.say(msgspec.json.format(msgspec.json.encode(complete(value)), indent=2).decode())

    def line(self, value: Any) -> None:
        """Print an object as one line of JSON, at once."""
        import msgspec

        self.say(msgspec.json.encode(complete(value)).decode())

    def table(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, right: frozenset[int] = frozenset()
    ) -> None:
        """Print a table; when it has no rows, say *empty* on standard error."""
        if not rows:
            self.note(empty)
        else:
            for text in table(headers, rows, self.style(), right=right):
                self.say(text)


def complete(value: Any) -> Any:
    """Return an object type as plain values with every field: over the wire, defaults are left out."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        plain = {config.tag_field: config.tag} if config.tag_field else {}
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return plain | {encoded: complete(getattr(value, name)) for encoded, name in names}
    if isinstance(value, list):
        return [complete(item) for item in value]
    return None if value is msgspec.UNSET else value


pass_console = click.make_pass_decorator(Console, ensure=True)


def help_without_command(context: click.Context) -> int:
    """A group named alone is an incomplete command line: show what could follow."""
    if context.invoked_subcommand is not None:
        return exits.OK
    click.echo(context.get_help(), err=True)
    return exits.USAGE


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(Console), name, value)

    return store


def _store_server(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        console = context.ensure_object(Console)
        console.server, console.server_given = value, True


def global_options(command: F) -> F:
    """Add the global options, so that they may stand before the command's name and after it."""
    for option in (
        click.option(
            "--no-color",
            is_flag=True,
            expose_value=False,
            callback=_store("no_color"),
            help="No colours; the environment variable NO_COLOR does the same.",
        ),
        click.option(
            "--json", is_flag=True, expose_value=False, callback=_store("json"), help="Print JSON instead of text."
        ),
        click.option(
            "--server",
            metavar="URL",
            expose_value=False,
            callback=_store_server,
            help="A coordinator, not this node's stokerd; default $STOKER_SERVER. Its token: $STOKER_TOKEN_FILE.",
        ),
        click.option(
            "--socket",
            type=click.Path(path_type=Path),
            metavar="PATH",
            expose_value=False,
            callback=_store("socket"),
            help=f"stokerd's socket; default $STOKER_SOCKET, or {DEFAULT_SOCKET}.",
        ),
    ):
        command = option(command)
    return command
