"""Parameter types and inputs that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from stoker.cli.console import Console
from stoker.units import parse_duration

if TYPE_CHECKING:
    from stoker.objects.images import InlineAuth, WarmRequest


def duration(text: str) -> float:
    """Parameter type: ``90s``, ``10m``, ``24h``, ``7d``; gives seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


PRIORITY = click.IntRange(-1000, 1000)
POLICY = click.Choice(["IfNotPresent", "Always"])


def read_requests(console: Console, references: Sequence[str], files: Sequence[str]) -> list[WarmRequest]:
    """Return what the references and files of a command line ask for; warnings are printed.

    click.UsageError: neither names an image. ManifestError: a file is malformed.
    """
    from stoker.manifests import read_manifest
    from stoker.objects.images import WarmRequest

    for reference in references:
        if not reference.strip() or reference != reference.strip():
            raise click.UsageError(f"{reference!r} is not an image reference")
    requests = [WarmRequest(images=list(references))] if references else []
    for file in files:
        manifest = read_manifest(file)
        requests += manifest.requests
        for warning in manifest.warnings:
            console.warn(warning)
    if not requests:
        raise click.UsageError("name images, or a file with -f")
    return requests


def registry_of(reference: str) -> str:
    """Return the registry of a reference as a docker config file names it."""
    head, slash, _ = reference.partition("/")
    return head if slash and ("." in head or ":" in head or head == "localhost") else "docker.io"


def read_auth(images: Iterable[str], username: str | None, from_stdin: bool, registry: str | None) -> list[InlineAuth]:
    """Return the credentials of the command line for *images*; the password is one line of standard input.

    click.UsageError: half of them is missing, or they could go to more than one registry.
    """
    from stoker.objects.images import InlineAuth

    if username is None and not from_stdin:
        if registry is not None:
            raise click.UsageError("--registry goes with --username and --password-stdin")
        return []
    if username is None or not from_stdin:
        raise click.UsageError("--username and --password-stdin go together")
    registries = {registry} if registry else {registry_of(image) for image in images}
    if not registries:
        raise click.UsageError("--username is for new images, and none is named")
    if len(registries) > 1:
        names = ", ".join(sorted(registries))
        raise click.UsageError(f"the images are in several registries ({names}): --registry says whose password it is")
    if sys.stdin.isatty():
        raise click.UsageError("--password-stdin reads the password from a pipe or file, not from the terminal")
    password = sys.stdin.buffer.read(65536).decode("utf-8", "surrogateescape").rstrip("\r\n")
    if not password:
        raise click.UsageError("the password on standard input is empty")
    return [InlineAuth(registry=registries.pop(), username=username, password=password)]


def check_stdin_once(files: Sequence[str], from_stdin: bool) -> None:
    """click.UsageError when standard input would have to be read twice."""
    if files.count("-") + from_stdin > 1:
        raise click.UsageError("standard input can be read only once")
