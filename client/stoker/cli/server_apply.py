"""``stoker apply`` with a coordinator: objects from files become objects of the cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.cli import exits
from stoker.cli.console import Console
from stoker.cli.server_options import DEFAULT_NAMESPACE, ask
from stoker.cli.text import clean
from stoker.errors import ClientError, DaemonUnreachable

if TYPE_CHECKING:
    from stoker.server_client import Answer, ServerClient
    from stoker.server_files import Given

_PATH = re.compile(r"(?:spec|metadata|status|kind|apiVersion)\b[\w.\[\]/-]*")


def apply_to_server(console: Console, files: Sequence[str], *, dry_run: bool, wait: bool, namespace: str | None) -> int:
    """Apply all objects of all files; one that is refused does not keep the others from being tried."""
    from stoker.server_files import read_given

    given = [each for file in files for each in read_given(file, namespace or DEFAULT_NAMESPACE)]
    codes: set[int] = set()

    async def send(client: ServerClient) -> None:
        applied = []
        for each in given:
            try:
                answer = await _send(client, each, dry_run=dry_run)
            except DaemonUnreachable:
                raise
            except ClientError as error:
                _refused(console, each, error)
                codes.add(exits.of_error(error))
                continue
            applied.append((each.kind, answer.object))
            _show(console, each, answer, dry_run=dry_run, silent=wait and console.json)
        if wait and applied:
            from stoker.cli.server_wait import followed_of, wait_for

            codes.update(await wait_for(console, client, followed_of(applied)))

    ask(console, send)
    return exits.combine(codes)


async def _send(client: ServerClient, given: Given, *, dry_run: bool) -> Answer:
    if not given.name:  # generateName, or none: the coordinator says what it thinks of that
        return await client.create(given.kind, given.version, given.namespace, given.document, dry_run=dry_run)
    return await client.apply(given.kind, given.version, given.namespace, given.name, given.document, dry_run=dry_run)


def _refused(console: Console, given: Given, error: ClientError) -> None:
    """Say what is wrong, each fault with the line of the file that it is about."""
    problems = getattr(error, "problems", ())
    if not problems:
        console.fail(f"{given.place()}: {given.label}: {error.message}", error.hint)
        return
    for problem in problems:
        path = _PATH.match(problem)
        console.fail(f"{given.place(path[0] if path is not None else '')}: {given.label}: {problem}")
    if error.hint:
        console.note(f"hint: {clean(error.hint)}")


def _show(console: Console, given: Given, answer: Answer, *, dry_run: bool, silent: bool) -> None:
    for warning in answer.warnings:
        text = warning.partition(": ")[2] if warning.startswith(given.kind.name) else warning
        path = _PATH.match(text)
        console.warn(f"{given.place(path[0] if path is not None else '')}: {given.label}: {text}")
    if console.json:
        if not silent:
            console.document(answer.object)
        return
    meta = answer.object["metadata"]
    name = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
    outcome = f"would be {answer.outcome}" if dry_run and answer.outcome != "unchanged" else answer.outcome
    console.say(f"{given.kind.name} {clean(name)}  {outcome}")
