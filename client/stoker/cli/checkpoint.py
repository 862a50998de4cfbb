"""``stoker checkpoint`` and ``stoker restore``: containers kept as they are at one instant, and brought back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.checkpoint_waiting import carry_out, waiting_options
from stoker.cli.completion import known_checkpoints, known_containers, known_pods
from stoker.cli.console import Console, global_options, help_without_command, pass_console
from stoker.cli.inputs import duration
from stoker.cli.pods import full_name, short_id
from stoker.cli.text import clean
from stoker.units import fine_duration, format_age, format_size

if TYPE_CHECKING:
    from stoker.objects.checkpoints import CheckpointDetail, CheckpointInfo, Mode, Tcp


@click.group("checkpoint", invoke_without_command=True, short_help="Keep containers as they are: memory and files.")
@global_options
@click.pass_context
def checkpoint(context: click.Context) -> int:
    """Keep running containers as they are at one instant, memory and root filesystem."""
    return help_without_command(context)


@checkpoint.command("create", epilog=exits.HELP, short_help="Checkpoint containers of a pod.")
@click.argument("pod", metavar="POD", shell_complete=known_pods)
@click.argument("containers", nargs=-1, metavar="[CONTAINER]...", shell_complete=known_containers)
@click.option("--name", default="", help="A name under which it can be found again.")
@click.option("--stop", is_flag=True, help="End the containers, instead of letting them run on.")
@click.option(
    "--tcp",
    type=click.Choice(["refuse", "close", "established"]),
    help="Established connections: refuse to checkpoint, close them in what is restored, or keep them; default: "
    "stokerd's setting.",
)
@click.option("--no-file-locks", is_flag=True, help="Refuse where files are locked.")
@click.option("--external-unix-sockets", is_flag=True, help="Take unix sockets whose other end is outside.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label. May be repeated.")
@click.option("--timeout", type=duration, help="So long the containers may stand at most: 60s; default: stokerd's.")
@waiting_options
@global_options
@pass_console
def create(
    console: Console,
    pod: str,
    containers: tuple[str, ...],
    name: str,
    stop: bool,
    tcp: Tcp | None,
    no_file_locks: bool,
    external_unix_sockets: bool,
    labels: tuple[str, ...],
    timeout: float | None,
    wait: bool,
    watch: bool,
) -> int:
    """Checkpoint containers of POD: those that are named, or all that run. Several are frozen together.

    POD is NAMESPACE/NAME, a name, an id or the beginning of one; it may be a single container, POD/CONTAINER, too. The
    containers go on afterwards, whatever happens. Ctrl-C cancels.
    """
    from stoker.objects.checkpoints import CheckpointRequest

    request = CheckpointRequest(
        pod=pod,
        containers=list(containers),
        name=name,
        stop=stop,
        tcp=tcp,
        file_locks=not no_file_locks,
        external_unix_sockets=external_unix_sockets,
        timeout_seconds=timeout,
        labels=dict(_label(text) for text in labels),
    )
    return carry_out(console, lambda client: client.create_checkpoint(request), wait=wait, watch=watch)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--label {text!r}: that is not NAME=VALUE")
    return name, value


@checkpoint.command("ls")
@global_options
@pass_console
def list_checkpoints(console: Console) -> int:
    """List the checkpoints on this node, the newest first."""
    found = console.call(lambda client: client.checkpoints())
    if console.json:
        console.document(found)
        return exits.OK
    headers = ("CHECKPOINT", "NAME", "OF", "MADE", "SIZE", "MEMORY", "FROZEN", "CLONES")
    rows = [_row(console, each) for each in found]
    console.table(headers, rows, empty="there are no checkpoints on this node", right=frozenset({4, 5, 6, 7}))
    return exits.OK


def _row(console: Console, one: CheckpointInfo) -> tuple[str, ...]:
    return (
        one.id,
        one.name or "-",
        full_name(one.namespace, one.pod, one.container) or short_id(one.container_id),
        format_age(one.created_at, console.now),
        format_size(one.bytes),
        format_size(one.memory_bytes),
        "stopped" if one.stopped else fine_duration(one.frozen_seconds),
        str(one.clones),
    )


@checkpoint.command("inspect")
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", shell_complete=known_checkpoints)
@global_options
@pass_console
def inspect_checkpoint(console: Console, checkpoints: tuple[str, ...]) -> int:
    """Show checkpoints closely, by id, the beginning of one, or name."""

    def show(found: CheckpointDetail) -> None:
        _show(console, found)

    return console.each(checkpoints, lambda client, name: client.checkpoint(name), show)


def _show(console: Console, found: CheckpointDetail) -> None:
    info = found.info
    lines = [
        ("of", full_name(info.namespace, info.pod, info.container) or info.container_id),
        ("name", info.name),
        ("made with", info.group and f"the others of {info.group}"),
        ("image", f"{info.image} {info.image_digest}".strip()),
        ("made", format_age(info.created_at, console.now)),
        ("frozen for", fine_duration(info.frozen_seconds)),
        ("container", "was ended" if info.stopped else "went on"),
        ("TCP", info.tcp),
        ("memory", format_size(info.memory_bytes)),
        ("root", f"{format_size(found.root_bytes)} in {found.root_entries} entries; snapshot {found.snapshot}"),
        ("in all", format_size(info.bytes)),
        (
            "made on",
            f"{found.node.architecture}, kernel {found.node.kernel}, CRIU {found.node.criu}, "
            f"runc {found.node.runc}, containerd {found.node.containerd}",
        ),
        ("directory", found.directory),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(info.labels.items()))),
        ("clones", ", ".join(found.clones)),
    ]
    console.say(clean(info.id))
    for name, text in lines:
        if text:
            console.say(f"  {name:<10} {clean(text)}")


@checkpoint.command("verify", epilog=exits.HELP)
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=known_checkpoints)
@waiting_options
@global_options
@pass_console
def verify_checkpoint(console: Console, checkpoint: str, wait: bool, watch: bool) -> int:
    """Read all of a checkpoint again, and name each difference to what was written."""
    return carry_out(console, lambda client: client.verify_checkpoint(checkpoint), wait=wait, watch=watch)


@checkpoint.command("rm")
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", shell_complete=known_checkpoints)
@global_options
@pass_console
def remove_checkpoint(console: Console, checkpoints: tuple[str, ...]) -> int:
    """Remove checkpoints. One that clones stand on stays: remove them first.

    Those that were taken in one freeze go together, by the id that `inspect` shows.
    """

    def show(gone: list[CheckpointInfo]) -> None:
        for one in gone:
            console.say(f"removed {clean(one.id)}, {format_size(one.bytes)}")

    return console.each(checkpoints, lambda client, name: client.remove_checkpoint(name), show)


def mode_of(eager: bool, lazy: bool) -> Mode:
    """Return how memory is to come back; click.UsageError."""
    if eager and lazy:
        raise click.UsageError("--eager and --lazy exclude each other")
    return "eager" if eager else "lazy" if lazy else "auto"


@click.command("restore", epilog=exits.HELP, short_help="Bring a container back where a checkpoint was taken.")
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=known_checkpoints)
@click.option("--eager", is_flag=True, help="All memory before it runs.")
@click.option("--lazy", is_flag=True, help="Memory while it runs.")
@waiting_options
@global_options
@pass_console
def restore(console: Console, checkpoint: str, eager: bool, lazy: bool, wait: bool, watch: bool) -> int:
    """Bring the container of a checkpoint back in its pod, with the address that the pod has. It must have ended: a
    checkpoint with --stop ends it.

    Without --eager and --lazy its size decides. Ctrl-C cancels.
    """
    from stoker.objects.checkpoints import RestoreRequest

    request = RestoreRequest(mode=mode_of(eager, lazy))
    return carry_out(console, lambda client: client.restore(checkpoint, request), wait=wait, watch=watch)
