"""``stoker support-bundle``: what a maintainer needs, in one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.inputs import duration
from stoker.cli.text import clean, pad, width_of
from stoker.units import format_size

if TYPE_CHECKING:
    from stoker.cli.support import Part

_MODE = 0o600


@click.command("support-bundle", epilog=exits.HELP, short_help="Collect what a maintainer needs in one file.")
@click.option(
    "-o", "--output", metavar="FILE", help="Where to; - for standard output; default: stoker-support-HOST-TIME.tar.gz."
)
@click.option("--since", type=duration, default="24h", show_default=True, help="How far back logs go: 1h, 7d.")
@click.option("--force", is_flag=True, help="Overwrite the file if it is there.")
@global_options
@pass_console
def support_bundle(console: Console, output: str | None, since: float, force: bool) -> int:
    """Collect what a maintainer needs in a tar.gz that only you can read.

    It has no credentials, and neither values of environment variables nor of annotations. Parts that cannot be had are
    named in its index, so it can be made when stokerd is down, too.
    """
    import asyncio  # late: --help and mistakes need none of it

    from stoker.cli import support
    from stoker.client import Client

    name = output or f"stoker-support-{support.host_name()}-{console.now:%Y%m%d-%H%M%S}.tar.gz"
    path = None if name == "-" else Path(name)
    if path is None and sys.stdout.isatty():
        raise click.UsageError("the bundle is no text for a terminal: redirect it, or give a file with -o")
    if path is not None and os.path.lexists(path) and not force:
        raise click.UsageError(f"{path} is there already: give another file with -o, or --force")

    async def collect() -> list[Part]:
        async with Client(console.socket) as client:
            return await support.collect(client, since=since, now=console.now)

    parts = asyncio.run(collect())
    index = support.index_of(parts, since=since, now=console.now)
    directory = support.directory_name(path or Path(f"stoker-support-{index['host']}"))
    data = support.archive(parts, directory=directory, index=index, now=console.now)
    try:
        _write(path, data, force=force)
    except OSError as error:
        console.fail(f"cannot write {path or 'standard output'}: {error.strerror or error}")
        return exits.FAILED
    if path is None:
        return exits.OK
    if console.json:
        console.document({"path": str(path), "bytes": len(data)} | index)
    else:
        _show(console, path, len(data), parts)
    return exits.OK


def _write(path: Path | None, data: bytes, *, force: bool) -> None:
    """Write a new file that its owner alone can read; with *force* it takes the place of one that is there."""
    if path is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    target = path.with_name(f".{path.name}.{os.getpid()}") if force else path
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if force:
            target.replace(path)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _show(console: Console, path: Path, size: int, parts: list[Part]) -> None:
    style = console.style()
    wide = max(width_of(part.file) for part in parts)
    for part in parts:
        mark = style.none if part.missing else style.ok
        size_text = "-" if part.missing else format_size(len(part.data))
        what = f"{part.what}: {clean(part.missing)}" if part.missing else part.what
        console.say(f"  {mark} {pad(part.file, wide)}  {pad(size_text, 8, right=True)}  {what}")
    console.say()
    console.say(f"{path}  {format_size(size)}, readable by its owner alone")
    console.note("credentials and values of environment variables are left out; look through it before you send it")
