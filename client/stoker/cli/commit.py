"""``stoker commit``: an image made of a container's root filesystem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.checkpoint_archive import auth_options
from stoker.cli.checkpoint_waiting import carry_out, waiting_options
from stoker.cli.completion import known_objects
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.inputs import read_auth

if TYPE_CHECKING:
    from stoker.objects.checkpoints import Compression

EPILOG = f"""\b
Examples:
  stoker commit default/web-0/app registry.example/app:v2
  stoker commit web-0/app registry.example/app:v2 --squash --compression zstd --push
  stoker commit web-0 app:debug --change 'ENV DEBUG=1' --change 'CMD ["serve", "-v"]'

{exits.HELP}"""


@click.command("commit", epilog=EPILOG, short_help="Make an image of a container.")
@click.argument("container", metavar="POD[/CONTAINER]", shell_complete=known_objects)
@click.argument("image", metavar="REF")
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="LINE",
    help="Change the configuration as a line of a Dockerfile does: ENV, CMD, ENTRYPOINT, WORKDIR, USER, LABEL, EXPOSE.",
)
@click.option("--author", default="", help="Who made it.")
@click.option("--message", default="", help="What for; it stands in the image's history.")
@click.option("--squash", is_flag=True, help="One layer, instead of one on those of the base.")
@click.option(
    "--compression",
    type=click.Choice(["gzip", "zstd"]),
    default="gzip",
    show_default=True,
    help="Of the layer; zstd is quicker and smaller, and containerd before 1.5 cannot read it.",
)
@click.option("--push", is_flag=True, help="Push it to the registry that REF says, once it is made.")
@auth_options
@waiting_options
@global_options
@pass_console
def commit(
    console: Console,
    container: str,
    image: str,
    changes: tuple[str, ...],
    author: str,
    message: str,
    squash: bool,
    compression: Compression,
    push: bool,
    username: str | None,
    password_stdin: bool,
    registry: str | None,
    wait: bool,
    watch: bool,
) -> int:
    """Make the image REF of a container's root filesystem, usable by CRI at once.

    The container is frozen only while what it has written is copied. Volumes are no part of the image. Ctrl-C cancels.
    """
    from stoker.objects.checkpoints import CommitRequest

    if username is not None and not push:
        raise click.UsageError("--username goes with --push")
    request = CommitRequest(
        container=container,
        image=image,
        changes=list(changes),
        author=author,
        message=message,
        squash=squash,
        compression=compression,
        push=push,
        auths=read_auth([image], username, password_stdin, registry),
    )
    return carry_out(console, lambda client: client.commit(request), wait=wait, watch=watch)
