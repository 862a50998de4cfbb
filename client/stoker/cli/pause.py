"""``stoker pause`` and ``stoker resume``: containers frozen in memory, and let run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_objects
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.pods import full_name
from stoker.cli.text import clean

if TYPE_CHECKING:
    from stoker.client import Client
    from stoker.objects.checkpoints import PauseRequest, PauseResult


@click.command("pause", epilog=exits.HELP, short_help="Freeze pods, containers or clones.")
@click.argument("names", nargs=-1, required=True, metavar="POD[/CONTAINER]...", shell_complete=known_objects)
@global_options
@pass_console
def pause(console: Console, names: tuple[str, ...]) -> int:
    """Freeze pods, containers or clones: they keep their memory and take no CPU time.

    They stay frozen until `stoker resume`, also when stokerd is started anew. Of a pod all containers are frozen, or
    none.
    """
    return _each(console, names, lambda client, request: client.pause(request))


@click.command("resume", epilog=exits.HELP)
@click.argument("names", nargs=-1, required=True, metavar="POD[/CONTAINER]...", shell_complete=known_objects)
@global_options
@pass_console
def resume(console: Console, names: tuple[str, ...]) -> int:
    """Let frozen pods, containers or clones run again."""
    return _each(console, names, lambda client, request: client.resume(request))


def _each(
    console: Console, names: tuple[str, ...], call: Callable[[Client, PauseRequest], Awaitable[PauseResult]]
) -> int:
    from stoker.objects.checkpoints import PauseRequest

    def show(result: PauseResult) -> None:
        for one in result.containers:
            name = full_name(one.namespace, one.pod, one.container) or one.id
            console.say(f"{clean(name)}  {one.state.lower()}")

    return console.each([PauseRequest(pod=name) for name in names], call, show)
