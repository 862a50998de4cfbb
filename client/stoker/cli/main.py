"""The command line ``stoker``: the tree of commands, and how a run ends."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

import click

from stoker.cli import exits
from stoker.cli.apply import apply
from stoker.cli.bundle import support_bundle
from stoker.cli.checkpoint import checkpoint, restore
from stoker.cli.checkpoint_archive import export, import_, pull_checkpoint, push_checkpoint, push_image
from stoker.cli.clone import clone_group
from stoker.cli.commit import commit
from stoker.cli.completion import completion
from stoker.cli.console import Console, OutputClosed, global_options, help_without_command
from stoker.cli.doctor import doctor
from stoker.cli.images import cancel, history, jobs, list_images, remove
from stoker.cli.inspect import inspect
from stoker.cli.operations import operations
from stoker.cli.pause import pause, resume
from stoker.cli.pins import keep, keeps, pin, pins, unkeep, unpin
from stoker.cli.pods import containers, pods, ps
from stoker.cli.recreate import recreate_group
from stoker.cli.recreate_requests import cancel_recreate, ls_recreates, show_recreate, watch_recreate
from stoker.cli.reload import reload
from stoker.cli.server_get import delete, describe, get
from stoker.cli.server_get import jobs as cluster_jobs
from stoker.cli.server_get import watch as watch_objects
from stoker.cli.server_nodes import nodes
from stoker.cli.topology import topology
from stoker.cli.warm import plan, warm, watch
from stoker.errors import ClientError, ManifestError

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class OrderedGroup(click.Group):
    """Lists its commands in the order they were added: the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    try:
        number = version("stoker")
    except PackageNotFoundError:
        number = "(not installed)"
    click.echo(f"stoker {number}")
    context.exit()


@click.group(cls=OrderedGroup, context_settings=_SETTINGS, epilog=exits.HELP, invoke_without_command=True)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@global_options
@click.pass_context
def cli(context: click.Context) -> int:
    """Keep this node hot: warm its images, restart its containers in place, checkpoint and clone them."""
    return help_without_command(context)


@cli.group(cls=OrderedGroup, invoke_without_command=True)
@global_options
@click.pass_context
def image(context: click.Context) -> int:
    """Warm images, pin them, keep them."""
    return help_without_command(context)


for command in (
    warm, plan, list_images, push_image, pin, unpin, pins, keep, unkeep, keeps, remove, watch, jobs, cancel, history
):  # fmt: skip
    image.add_command(command)
for command in (export, import_, push_checkpoint, pull_checkpoint):
    checkpoint.add_command(command)
for command in (ls_recreates, show_recreate, watch_recreate, cancel_recreate):
    recreate_group.add_command(command)
for command in (
    pods, containers, inspect, recreate_group, checkpoint, clone_group, restore, pause, resume, commit, operations,
    apply, topology, nodes, cluster_jobs, get, describe, watch_objects, delete, doctor, reload, support_bundle,
    completion,
):  # fmt: skip
    cli.add_command(command)
cli.add_command(ps)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing is raised but SystemExit of shell completion."""
    console = Console()
    try:
        code = cli.main(arguments, prog_name="stoker", standalone_mode=False, obj=console)
    except click.UsageError as error:
        where = f"{error.ctx.command_path} --help" if error.ctx is not None else "stoker --help"
        console.fail(error.format_message(), where)
        return exits.USAGE
    except click.ClickException as error:
        console.fail(error.format_message())
        return exits.USAGE
    except (click.Abort, KeyboardInterrupt):
        return exits.INTERRUPTED
    except ManifestError as error:
        console.fail(f"cannot read {error}")
        return exits.USAGE
    except ClientError as error:
        console.fail(error.message, error.hint)
        return exits.of_error(error)
    except OutputClosed:
        # Whoever read the output has had enough; what is buffered must not fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.BROKEN_PIPE
    return code if isinstance(code, int) else exits.OK


def run() -> NoReturn:
    """Entry point of the ``stoker`` program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(main())
