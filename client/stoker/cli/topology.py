"""``stoker topology``: what this node is made of and hangs on, as a tree, a table, a picture; and its changes."""

from __future__ import annotations

import shutil
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_devices
from stoker.cli.console import Console, global_options, pass_console, write_out
from stoker.errors import ClientError, DaemonUnreachable

if TYPE_CHECKING:
    from stoker.client import Client
    from stoker.objects.topology import TopologyReport


_FORMATS = ("json", "svg", "dot", "slurm-tree", "slurm-block", "labels")


@click.group("topology", invoke_without_command=True, short_help="Show what this node is made of and hangs on.")
@click.option("--matrix", is_flag=True, help="The table of distances, as `nvidia-smi topo -m` prints it.")
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Write a picture; - is standard output.")
@click.option("--watch", is_flag=True, help="Go on with the changes as they happen, until Ctrl-C.")
@click.option("--fabric", metavar="NAME", default="", help="With --server: of this fabric alone.")
@click.option("--format", "form", type=click.Choice(_FORMATS), help="With --server: in the form of others.")
@global_options
@click.pass_context
def topology(context: click.Context, matrix: bool, svg: str | None, watch: bool, fabric: str, form: str | None) -> int:
    """Show what this node is made of and what it hangs on: GPUs, network adapters, switches, links and their faults.

    With --server: the fabrics of all nodes, as the coordinator knows them.

    Exits with 0 whatever the state of the node; `stoker doctor` judges it.
    """
    console = context.ensure_object(Console)
    if context.invoked_subcommand is None and console.server:
        return _of_cluster(fabric, form, svg, others=matrix or watch)
    if fabric or form:
        raise click.UsageError("--fabric and --format need --server")
    chosen = [name for name, given in (("--matrix", matrix), ("--svg", svg), ("--watch", watch)) if given]
    if context.invoked_subcommand is not None:
        if chosen:
            raise click.UsageError(f"{chosen[0]} does not go with {context.invoked_subcommand}")
        return exits.OK
    if len(chosen) > 1:
        raise click.UsageError(f"{chosen[0]} and {chosen[1]} do not go together")
    if console.json and (matrix or svg):
        raise click.UsageError(f"--json and {chosen[0]} do not go together")
    if watch:
        return console.call(lambda client: _watch(console, client))
    report = console.call(lambda client: client.topology())
    if svg:
        return _draw(console, report, svg)
    if console.json:
        console.document(report)
    else:
        _show(console, report, matrix=matrix)
    return exits.OK


def _of_cluster(fabric: str, form: str | None, svg: str | None, *, others: bool) -> int:
    from stoker.cli import server_topology  # late, like the client

    console = click.get_current_context().ensure_object(Console)
    if others:
        raise click.UsageError("--matrix and --watch show a node; they do not go with --server")
    if form and svg:
        raise click.UsageError("--format and --svg do not go together")
    return server_topology.show(console, fabric, form or "", svg)


def _show(console: Console, report: TopologyReport, *, matrix: bool = False) -> None:
    from stoker import topology_view as view  # late: --help needs none of it

    if matrix and not report.matrix.devices:
        console.note("there are no GPUs and no RDMA adapters on this node")
        return
    # A pipe gets whole lines, and whole tables are of no use cut off.
    width = shutil.get_terminal_size().columns if console.live else None
    for line in view.matrix(report) if matrix else view.tree(report, console.style(), width):
        console.say(line)


def _draw(console: Console, report: TopologyReport, name: str) -> int:
    from stoker.topology_svg import svg

    picture = svg(report)
    if name == "-":
        write_out(picture)
        return exits.OK
    try:
        Path(name).write_text(picture, encoding="utf-8")
    except OSError as error:
        console.fail(f"cannot write {name}: {error.strerror or error}")
        return exits.FAILED
    console.note(f"{name}: {len(report.gpus)} GPUs, {len(report.nics)} network adapters")
    return exits.OK


async def _watch(console: Console, client: Client) -> int:
    """Show the tree, then a line for each change, until Ctrl-C; a tree again when the connection had broken."""
    from stoker import topology_view as view

    lost = False

    def on_retry(error: DaemonUnreachable, _delay: float) -> None:
        nonlocal lost
        if not lost:
            console.note(f"{error.message}; connecting again")
        lost = True

    async with aclosing(client.follow_topology(on_retry=on_retry)) as events:
        async for event in events:
            lost = False
            if console.json:
                console.line(event)
                continue
            if event.report is not None:
                _show(console, event.report)
                console.note(f"changes since {event.report.since.astimezone():%H:%M:%S}; Ctrl-C ends this")
            for change in event.changes:
                console.say(view.change_line(change, console.style()))
    return exits.OK


@topology.command(short_help="Say why two devices are as far apart as they are.")
@click.argument("one", metavar="DEVICE", shell_complete=known_devices)
@click.argument("other", metavar="DEVICE", shell_complete=known_devices)
@global_options
@pass_console
def explain(console: Console, one: str, other: str) -> int:
    """Say why two devices are as far apart as they are. A DEVICE is a GPU (GPU0) or an adapter (mlx5_0, eth0)."""
    from stoker import topology_view as view

    report = console.call(lambda client: client.topology())
    try:
        lines = view.explain(report, one, other)
    except view.UnknownDevice as error:
        raise ClientError("NotFound", str(error), "stoker topology shows them all") from None
    if console.json:
        console.document({"devices": [one, other], "distance": view.distance(report, one, other), "lines": lines})
        return exits.OK
    for line in lines:
        console.say(line)
    return exits.OK


@topology.command(short_help="With --server: say why a node is where it is.")
@click.argument("node", metavar="NODE")
@click.argument("switch", metavar="SWITCH")
@global_options
@pass_console
def why(console: Console, node: str, switch: str) -> int:
    """Say how a node is tied to a switch, step by step, and who says so. Needs --server."""
    from stoker.cli import server_topology  # late, like the client

    if not console.server:
        raise click.UsageError("why needs --server; `stoker topology explain` says it of devices of this node")
    return server_topology.why(console, node, switch)
