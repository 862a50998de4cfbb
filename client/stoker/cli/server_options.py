"""Which coordinator is meant, and who asks it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.cli.console import Console, global_options

if TYPE_CHECKING:
    from stoker.objects.kinds import Kind
    from stoker.server_client import Server, ServerClient

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_NAMESPACE = "default"


def server_of(console: Console) -> Server:
    """Return the coordinator that the options and the environment mean; click.UsageError when they mean none.

    A token comes from a file or from the environment, never from the command line, where everybody could read it.
    """
    from stoker.server_client import Server

    if not console.server:
        raise click.UsageError(
            "which coordinator? Give --server URL, or set STOKER_SERVER"
            " (https://host:7400, or unix:/run/stoker-coordinator/api.sock where it runs)"
        )
    token = os.environ.get("STOKER_TOKEN", "")
    file = os.environ.get("STOKER_TOKEN_FILE", "")
    if file and not token:
        try:
            token = Path(file).expanduser().read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise click.UsageError(f"the token in {file} (STOKER_TOKEN_FILE) cannot be read: {error}") from None
    try:
        return Server(console.server, token, os.environ.get("STOKER_CACERT", ""))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def ask(console: Console, request: Callable[[ServerClient], Awaitable[T]]) -> T:
    """Return what *request* gets from the coordinator; ClientError."""
    import asyncio  # late, like the client: --help needs neither

    from stoker.server_client import ServerClient

    server = server_of(console)

    async def exchange() -> T:
        async with ServerClient(server) as client:
            return await request(client)

    return asyncio.run(exchange())


def kind_named(word: str) -> Kind:
    """Return the kind that is meant; click.UsageError says which there are."""
    from stoker.objects.kinds import ALL, find

    kind = find(word)
    if kind is None:
        known = ", ".join(f"{each.plural} ({each.short[0]})" for each in ALL)
        raise click.UsageError(f"there is no kind {word!r}; there are {known}")
    return kind


def namespace_of(kind: Kind, namespace: str | None, *, every: bool) -> str | None:
    """Return the namespace to look in; None: in all."""
    if not kind.namespaced:
        return ""
    return None if every else namespace or DEFAULT_NAMESPACE


def _complete_kind(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from stoker.objects.kinds import ALL

    return [kind.plural for kind in ALL if kind.plural.startswith(incomplete.lower())]


kind_argument = click.argument("kind", shell_complete=_complete_kind)
namespace_option = click.option("-n", "--namespace", metavar="NAME", help=f"Default: {DEFAULT_NAMESPACE}.")
all_option = click.option("-A", "--all-namespaces", "every", is_flag=True, help="In all namespaces.")


def selecting(command: F) -> F:
    """Add options that say which objects of a kind."""
    for option in (
        click.option("--field-selector", "fields", default="", metavar="TERMS", help="Such as metadata.name=x."),
        click.option("-l", "--selector", "labels", default="", metavar="TERMS", help="Labels, such as app=x,tier!=y."),
        all_option,
        namespace_option,
    ):
        command = option(command)
    return global_options(command)


def output_option(*forms: str) -> Callable[[F], F]:
    """Add ``-o``."""
    return click.option("-o", "--output", "form", type=click.Choice(forms), help="Instead of text for people.")
