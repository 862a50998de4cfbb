"""From the options of ``stoker recreate`` to what is asked of stokerd. Values of the environment are in no message."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from stoker.cli.environment import checked_name, own_value, read_env

if TYPE_CHECKING:
    from stoker.objects.containers import Probe, RecreateTarget


@dataclass(frozen=True, slots=True)
class Changes:
    """What the command line says about single containers, as it was typed."""

    images: tuple[str, ...] = ()
    """``[CONTAINER=]REF``."""
    env_files: tuple[str, ...] = ()
    """``[CONTAINER:]FILE``."""
    env: tuple[str, ...] = ()
    """``[CONTAINER:]NAME=VALUE``, or without a value: the one that stoker itself has."""
    unset: tuple[str, ...] = ()
    """``[CONTAINER:]NAME``."""
    probe_tcp: tuple[str, ...] = ()
    """``[CONTAINER:]PORT``."""
    probe_exec: tuple[str, ...] = ()
    """``[CONTAINER:]COMMAND``, split as a shell would, and run without one."""

    def __bool__(self) -> bool:
        return any((self.images, self.env_files, self.env, self.unset, self.probe_tcp, self.probe_exec))


@dataclass(slots=True)
class _Draft:
    """One container, until all options have been seen."""

    image: str = ""
    env: dict[str, str | None] = field(default_factory=dict)
    probe: Probe | None = None


def targets(containers: tuple[str, ...], changes: Changes, environ: Mapping[str, str]) -> list[RecreateTarget]:
    """Return what is to become of each of *containers*; *environ* is the environment that values are taken from.

    click.UsageError: an option cannot be read, or does not say which container it is for. ManifestError: a file of
    variables cannot be read.
    """
    from stoker.objects.containers import EnvVar, RecreateTarget

    for name in containers:
        if containers.count(name) > 1:
            raise click.UsageError(f"the container {name!r} is named twice")
    drafts = {name: _Draft() for name in containers}
    for text in changes.images:
        _image(drafts, text)
    for text in changes.env_files:
        owner, file = _split(drafts, text, "--env-file", strict=False)
        for name, value in read_env(file, environ):
            drafts[owner].env[name] = value
    for text in changes.env:
        _env(drafts, text, environ)
    for text in changes.unset:
        owner, name = _split(drafts, text, "--unset-env")
        drafts[owner].env[checked_name(name, "--unset-env")] = None
    _probes(drafts, changes)
    return [
        RecreateTarget(
            name=name,
            image=draft.image,
            env=[EnvVar(name=key, value=value) for key, value in draft.env.items()],
            probe=draft.probe,
        )
        for name, draft in drafts.items()
    ]


def _image(drafts: dict[str, _Draft], text: str) -> None:
    owner, reference = _split(drafts, text, "--image", "=")
    if not reference.strip() or reference != reference.strip():
        raise click.UsageError(f"--image {text!r}: that is not an image reference")
    if drafts[owner].image:
        raise click.UsageError(f"--image: the container {owner!r} gets two")
    drafts[owner].image = reference


def _env(drafts: dict[str, _Draft], text: str, environ: Mapping[str, str]) -> None:
    head, given, value = text.partition("=")
    owner, name = _split(drafts, head, "--env")
    checked_name(name, "--env")
    drafts[owner].env[name] = value if given else own_value(name, environ, "--env")


def _split(
    drafts: dict[str, _Draft], text: str, option: str, separator: str = ":", *, strict: bool = True
) -> tuple[str, str]:
    """Return the container that an option is for, and the rest of its text.

    *strict*: the rest has no separator, so that what stands before one can only be a container.
    """
    head, found, rest = text.partition(separator)
    if found and head in drafts:
        return head, rest
    if strict and found:
        raise click.UsageError(f"{option}: {head!r} is none of the containers {', '.join(drafts)}")
    if len(drafts) == 1:
        return next(iter(drafts)), text
    example = f"{option} {next(iter(drafts))}{separator}..."
    raise click.UsageError(f"{option}: with several containers it says which one it is for: {example}")


def _probes(drafts: dict[str, _Draft], changes: Changes) -> None:
    from stoker.objects.containers import Probe

    for text in changes.probe_tcp:
        owner, port = _split(drafts, text, "--probe-tcp")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise click.UsageError(f"--probe-tcp: {port!r} is not a port")
        _give_probe(drafts[owner], owner, Probe(tcp_port=int(port)))
    for text in changes.probe_exec:
        owner, command = _split(drafts, text, "--probe-exec", strict=False)
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise click.UsageError(f"--probe-exec: {str(error).lower()}: {command!r}") from None
        if not words:
            raise click.UsageError("--probe-exec: there is no command")
        _give_probe(drafts[owner], owner, Probe(exec=words))


def _give_probe(draft: _Draft, owner: str, probe: Probe) -> None:
    if draft.probe is not None:
        raise click.UsageError(f"the container {owner!r} gets two probes")
    draft.probe = probe
