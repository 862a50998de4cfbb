"""``stoker get``, ``describe``, ``delete``, ``watch``, ``nodes``, ``jobs``: objects of a coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from stoker.cli import exits
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.server_options import (
    all_option,
    ask,
    kind_argument,
    kind_named,
    namespace_of,
    namespace_option,
    output_option,
    selecting,
    server_of,
)
from stoker.errors import ClientError, DaemonUnreachable

if TYPE_CHECKING:
    from stoker.objects.kinds import Kind
    from stoker.server_client import Document, ServerClient


@click.command("get", epilog=exits.HELP, short_help="List objects of the coordinator.")
@kind_argument
@click.argument("names", nargs=-1)
@output_option("json", "yaml", "name")
@selecting
@pass_console
def get(
    console: Console,
    kind: str,
    names: tuple[str, ...],
    form: str | None,
    namespace: str | None,
    every: bool,
    labels: str,
    fields: str,
) -> int:
    """List objects of a KIND (such as nodes, imagepulljobs or ipj), or show those of these NAMES."""
    meant = kind_named(kind)
    if names and (every or labels or fields):
        raise click.UsageError("names exclude -A, -l and --field-selector")
    where = namespace_of(meant, namespace, every=every)
    failed: list[ClientError] = []

    async def fetch(client: ServerClient) -> list[Document]:
        if not names:
            return [obj async for obj in client.list(meant, namespace=where, labels=labels, fields=fields)]
        found = []
        for name in names:
            try:
                found.append(await client.get(meant, name, where or ""))
            except DaemonUnreachable:
                raise
            except ClientError as error:
                failed.append(error)
        return found

    found = ask(console, fetch)
    show(console, meant, found, form, one=len(names) == 1, namespaces=every and meant.namespaced)
    for error in failed:
        console.fail(error.message, error.hint)
    return exits.combine({exits.of_error(error) for error in failed})


def show(
    console: Console, kind: Kind, found: Sequence[Document], form: str | None, *, one: bool, namespaces: bool
) -> None:
    """Print objects in the form that is asked for."""
    form = form or ("json" if console.json else None)
    if form == "name":
        for obj in found:
            console.say(f"{kind.plural}/{obj['metadata']['name']}")
    elif form in {"json", "yaml"}:
        if one and not found:
            return
        listed = {"apiVersion": kind.version, "kind": f"{kind.name}List", "items": list(found)}
        print_document(console, found[0] if one else listed, form)
    else:
        print_table(console, kind, found, namespaces=namespaces)


def print_document(console: Console, value: Any, form: str) -> None:
    """Print plain values as JSON or YAML."""
    if form == "json":
        console.document(value)
        return
    import yaml

    console.say(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10**6).rstrip("\n"))


def print_table(console: Console, kind: Kind, found: Sequence[Document], *, namespaces: bool) -> None:
    """Print objects as a table."""
    from stoker.cli import server_tables as tables

    rows = [tables.row(tables.typed(obj, kind), kind, console.now, namespaces=namespaces) for obj in found]
    console.table(
        tables.headers(kind, namespaces=namespaces),
        rows,
        empty=f"there are no {kind.plural}" + ("" if namespaces or not kind.namespaced else " in this namespace"),
        right=tables.right(kind, namespaces=namespaces),
    )


@click.command("jobs", epilog=exits.HELP, short_help="List the coordinator's image jobs and how far they are.")
@click.option("--wait", is_flag=True, help="Follow those that run until all of them are over.")
@all_option
@namespace_option
@global_options
@pass_console
def jobs(console: Console, wait: bool, every: bool, namespace: str | None) -> int:
    """List image jobs of both kinds, with their progress."""
    from stoker.cli import server_jobs

    kinds = [kind_named(name) for name in ("imagepulljobs", "imagelistpulljobs")]
    where = namespace_of(kinds[0], namespace, every=every)

    async def fetch(client: ServerClient) -> list[tuple[Kind, Document]]:
        return [(kind, obj) for kind in kinds async for obj in client.list(kind, namespace=where)]

    found = ask(console, fetch)
    if wait:
        return _wait_for_jobs(console, found)
    if console.json:
        console.document([obj for _, obj in found])
    else:
        server_jobs.print_jobs(console, found, namespaces=every)
    return exits.OK


def _wait_for_jobs(console: Console, found: Sequence[tuple[Kind, Document]]) -> int:
    from stoker.cli import server_tables as tables
    from stoker.cli.server_wait import followed_of, is_over, wait_for

    running = [(kind, obj) for kind, obj in found if not is_over(tables.typed(obj, kind))]
    if not running:
        console.note("no image job runs")
        return exits.OK
    return exits.combine(ask(console, lambda client: wait_for(console, client, followed_of(running))))


@click.command("delete", epilog=exits.HELP, short_help="Remove objects from the coordinator.")
@click.argument("kind", required=False)
@click.argument("names", nargs=-1)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="The objects in this file. May be repeated.")
@click.option("--dry-run", is_flag=True, help="Check everything, and remove nothing.")
@namespace_option
@global_options
@pass_console
def delete(
    console: Console,
    kind: str | None,
    names: tuple[str, ...],
    files: tuple[str, ...],
    dry_run: bool,
    namespace: str | None,
) -> int:
    """Remove the objects of a KIND with these NAMES, or those in files. What they own goes with them."""
    targets = _targets(kind, names, files, namespace)
    codes: set[int] = set()

    async def remove(client: ServerClient) -> None:
        for meant, name, where in targets:
            try:
                answer = await client.delete(meant, name, where, dry_run=dry_run)
            except DaemonUnreachable:
                raise
            except ClientError as error:
                console.fail(error.message, error.hint)
                codes.add(exits.of_error(error))
                continue
            label = f"{meant.name} {where}/{name}" if where else f"{meant.name} {name}"
            console.say(f"{label}  {'would be ' * dry_run}{_DELETED.get(answer.outcome, 'deleted')}")

    ask(console, remove)
    return exits.combine(codes)


_DELETED = {"deleting": "deleted when its finalizers are done"}


def _targets(
    kind: str | None, names: tuple[str, ...], files: tuple[str, ...], namespace: str | None
) -> list[tuple[Kind, str, str]]:
    if bool(files) == bool(kind):
        raise click.UsageError("say what to delete: KIND NAME..., or -f FILE")
    if kind is not None:
        if not names:
            raise click.UsageError(f"which {kind}? Give names")
        meant = kind_named(kind)
        return [(meant, name, namespace_of(meant, namespace, every=False) or "") for name in names]
    from stoker.server_files import read_given

    given = [each for file in files for each in read_given(file, namespace or "default")]
    return [(each.kind, each.name, each.namespace) for each in given if each.name]


@click.command("describe", epilog=exits.HELP, short_help="Show all about one object of the coordinator.")
@kind_argument
@click.argument("name")
@namespace_option
@global_options
@pass_console
def describe(console: Console, kind: str, name: str, namespace: str | None) -> int:
    """Show all about one object: what is wished for, how it is, and since when."""
    from stoker.cli.server_describe import description

    meant = kind_named(kind)

    async def fetch(client: ServerClient) -> Document:
        return await client.get(meant, name, namespace_of(meant, namespace, every=False) or "")

    found = ask(console, fetch)
    if console.json:
        console.document(found)
        return exits.OK
    for line in description(found, meant, console.now, console.style()):
        console.say(line)
    return exits.OK


@click.command("watch", epilog=exits.HELP, short_help="Follow objects of the coordinator.")
@kind_argument
@click.argument("name", required=False)
@output_option("json")
@selecting
@pass_console
def watch(
    console: Console,
    kind: str,
    name: str | None,
    form: str | None,
    namespace: str | None,
    every: bool,
    labels: str,
    fields: str,
) -> int:
    """Print objects as they are, and a line whenever one of them changes, until interrupted."""
    import asyncio

    from stoker.server_client import ServerClient

    meant = kind_named(kind)
    if name is not None:
        fields = ",".join(part for part in (fields, f"metadata.name={name}") if part)
    where, server = namespace_of(meant, namespace, every=every), server_of(console)
    printer = _Printer(console, meant, plain=console.json or form == "json", namespaces=every and meant.namespaced)

    async def follow() -> None:
        async with (
            ServerClient(server) as client,
            aclosing(client.watch(meant, namespace=where, labels=labels, fields=fields)) as events,
        ):
            async for event in events:
                printer.event(event)

    asyncio.run(follow())
    return exits.OK


class _Printer:
    """Prints events as rows of a table whose columns only ever get wider."""

    def __init__(self, console: Console, kind: Kind, *, plain: bool, namespaces: bool) -> None:
        from stoker.cli import server_tables

        self._console, self._kind, self._plain = console, kind, plain
        self._namespaces, self._tables = namespaces, server_tables
        headers = ["EVENT", *server_tables.headers(kind, namespaces=namespaces)]
        self._widths = [len(header) for header in headers]
        self._headers: list[str] | None = headers

    def event(self, event: Document) -> None:
        """Print one."""
        if self._plain:
            self._console.line(event)
            return
        if event["type"] == "SYNC":
            self._console.note("the connection was away for too long; here is everything once more")
            return
        if self._headers is not None:
            self._row(self._headers)
            self._headers = None
        obj = self._tables.typed(event["object"], self._kind)
        cells = self._tables.row(obj, self._kind, datetime.now(UTC), namespaces=self._namespaces)
        self._row([event["type"].lower(), *cells])

    def _row(self, cells: Sequence[str]) -> None:
        from stoker.cli.text import clean, pad, width_of

        shown = [clean(cell) for cell in cells]
        self._widths = [max(width, width_of(cell)) for width, cell in zip(self._widths, shown, strict=True)]
        self._console.say("  ".join(map(pad, shown, self._widths)).rstrip())
