"""``stoker nodes``: the nodes of a coordinator, and who is let in."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.inputs import duration
from stoker.cli.server_options import ask, kind_named, output_option
from stoker.units import brief_duration

if TYPE_CHECKING:
    from stoker.server_client import Document, ServerClient


@click.group("nodes", invoke_without_command=True, epilog=exits.HELP, short_help="The coordinator's nodes.")
@click.option("-l", "--selector", "labels", default="", metavar="TERMS", help="Labels, such as zone=a,gpu.")
@output_option("json", "yaml", "name")
@global_options
@click.pass_context
def nodes(context: click.Context, labels: str, form: str | None) -> int:
    """List the nodes of the coordinator and how they are; let nodes in, and shut them out."""
    if context.invoked_subcommand is not None:
        return exits.OK
    from stoker.cli.server_get import show

    console, kind = context.ensure_object(Console), kind_named("nodes")

    async def fetch(client: ServerClient) -> list[Document]:
        return [obj async for obj in client.list(kind, labels=labels)]

    show(console, kind, ask(console, fetch), form, one=False, namespaces=False)
    return exits.OK


@nodes.command("token", epilog=exits.HELP)
@click.option("--node", default="", metavar="NAME", help="Only for this node, which may have joined before.")
@click.option("--uses", type=int, default=1, show_default=True, help="So many nodes may join with it.")
@click.option("--for", "seconds", type=duration, default="1h", show_default=True, help="So long.")
@click.option("--note", default="", help="For those who list tokens.")
@global_options
@pass_console
def token(console: Console, node: str, uses: int, seconds: float, note: str) -> int:
    """Make a join token, and print it this once.

    Put it into the file that uplink.token_file of stokerd names, and what `stoker nodes authority` prints into the one
    that uplink.ca names.
    """
    text = ask(console, lambda client: client.create_join_token(seconds=seconds, uses=uses, node=node, note=note))
    if console.json:
        console.document({"token": text})
    else:
        console.say(text)
    return exits.OK


@nodes.command("tokens", epilog=exits.HELP)
@global_options
@pass_console
def tokens(console: Console) -> int:
    """List join tokens, without their secrets."""
    found = ask(console, lambda client: client.join_tokens())
    if console.json:
        console.document(found)
        return exits.OK
    rows = [
        (each["id"], each["node"] or "any", str(each["usesLeft"]), _state(each, console.now), each["note"])
        for each in found
    ]
    console.table(
        ("ID", "NODE", "USES LEFT", "STATE", "NOTE"), rows, empty="there are no join tokens", right=frozenset({2})
    )
    return exits.OK


def _state(token: Document, now: datetime) -> str:
    expires = datetime.fromisoformat(token["expiresAt"])
    if token["revoked"]:
        return "revoked"
    if expires <= now:
        return "expired"
    return "used up" if not token["usesLeft"] else f"good for {brief_duration((expires - now).total_seconds())}"


@nodes.command("revoke-token", epilog=exits.HELP)
@click.argument("identity", metavar="ID")
@global_options
@pass_console
def revoke_token(console: Console, identity: str) -> int:
    """Let a join token serve no more. Nodes that have joined with it stay."""
    ask(console, lambda client: client.revoke_join_token(identity))
    console.say(f"revoked {identity}")
    return exits.OK


@nodes.command("exclude", epilog=exits.HELP)
@click.argument("node")
@global_options
@pass_console
def exclude(console: Console, node: str) -> int:
    """Let no certificate of a node hold any more. It comes back only with a join token that is made for its name."""
    ask(console, lambda client: client.exclude(node))
    console.say(f"{node} is shut out; stoker nodes token --node {node} lets it in again")
    return exits.OK


@nodes.command("authority", epilog=exits.HELP)
@global_options
@pass_console
def authority(console: Console) -> int:
    """Print the certificate that nodes know the coordinator by, for their uplink.ca."""
    console.say(ask(console, lambda client: client.authority()).rstrip("\n"))
    return exits.OK
