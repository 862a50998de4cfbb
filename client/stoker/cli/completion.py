"""``stoker completion``: scripts for shells, and what they complete beside options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.console import Console, pass_console
from stoker.errors import ClientError

if TYPE_CHECKING:
    from stoker.client import Client

_SECONDS = 1.0

_INSTALL = {
    "bash": "stoker completion bash > /etc/bash_completion.d/stoker",
    "zsh": "stoker completion zsh > /usr/local/share/zsh/site-functions/_stoker",
    "fish": "stoker completion fish > ~/.config/fish/completions/stoker.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_INSTALL)))
@pass_console
def completion(console: Console, shell: str) -> int:
    """Print the completion script of a shell.

    \b
    bash:  stoker completion bash > /etc/bash_completion.d/stoker
    zsh:   stoker completion zsh > /usr/local/share/zsh/site-functions/_stoker
    fish:  stoker completion fish > ~/.config/fish/completions/stoker.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    script = kind(root.command, {}, "stoker", "_STOKER_COMPLETE")
    console.say(script.source_template % script.source_vars())
    return exits.OK


# ---------------------------------------------------------------------------------------------- names


def known_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the ids of jobs."""

    async def ask(client: Client) -> list[str]:
        return [job.id for job in await client.jobs()]

    return _known(context, incomplete, ask)


def known_images(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the names of the images on the node."""

    async def ask(client: Client) -> list[str]:
        return [name for image in await client.images() for name in image.references]

    return _known(context, incomplete, ask)


def known_pods(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: pods as ``namespace/name``; by their names alone where no slash was typed and nothing fits."""

    async def ask(client: Client) -> list[str]:
        pods = [f"{pod.namespace}/{pod.name}" if pod.namespace else pod.name for pod in await client.pods()]
        if any(name.startswith(incomplete) for name in pods):
            return pods
        return [name.rpartition("/")[2] for name in pods]

    return _known(context, incomplete, ask)


def known_containers(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the names of the containers of the pod that stands before, those given left out."""
    pod, given = context.params.get("pod"), context.params.get("containers") or ()

    async def ask(client: Client) -> list[str]:
        return [one.name for one in (await client.pod(pod)).info.containers if one.name not in given] if pod else []

    return _known(context, incomplete, ask)


def known_objects(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: pods, and containers as ``namespace/pod/name``."""

    async def ask(client: Client) -> list[str]:
        return ["/".join(filter(None, (one.namespace, one.pod, one.name))) for one in await client.containers()]

    return known_pods(context, parameter, incomplete) + _known(context, incomplete, ask)


def known_devices(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the GPUs and adapters of the node."""

    async def ask(client: Client) -> list[str]:
        report = await client.topology()
        return [gpu.name for gpu in report.gpus] + [nic.name for nic in report.nics]

    return _known(context, incomplete, ask)


def known_recreates(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the ids of requests to recreate."""

    async def ask(client: Client) -> list[str]:
        return [status.id for status in await client.recreates()]

    return _known(context, incomplete, ask)


def known_checkpoints(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the ids and names of checkpoints."""

    async def ask(client: Client) -> list[str]:
        return [name for one in await client.checkpoints() for name in (one.id, one.name) if name]

    return _known(context, incomplete, ask)


def known_clones(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the ids of clones."""

    async def ask(client: Client) -> list[str]:
        return [one.id for one in await client.clones()]

    return _known(context, incomplete, ask)


def known_operations(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the ids of operations."""

    async def ask(client: Client) -> list[str]:
        return [one.id for one in await client.operations()]

    return _known(context, incomplete, ask)


def _known(context: click.Context, incomplete: str, ask: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    import asyncio  # late: only completion that asks stokerd needs it

    console = context.find_object(Console) or Console()

    async def names(client: Client) -> list[str]:
        async with asyncio.timeout(_SECONDS):
            return await ask(client)

    try:
        found = console.call(names)
    except (ClientError, TimeoutError):  # a shell has no place for errors
        return []
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]
