"""Environment variables from the command line and from files. Their values are in no message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from stoker.errors import ManifestError

_LIMIT_BYTES = 1 << 20


def variables(files: Iterable[str], given: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what ``--env-file`` and ``--env`` say, the latter last; *environ* is what values are taken from that are
    not given. click.UsageError, ManifestError."""
    found = {name: value for file in files for name, value in read_env(file, environ)}
    for text in given:
        name, equals, value = text.partition("=")
        checked_name(name, "--env")
        found[name] = value if equals else own_value(name, environ, "--env")
    return found


def own_value(name: str, environ: Mapping[str, str], where: str) -> str:
    """Return the value that stoker itself has; click.UsageError when it has none."""
    if name not in environ:
        raise click.UsageError(f"{where}: {name} has no value here, and stoker's own environment has no {name}")
    return environ[name]


def checked_name(name: str, where: str) -> str:
    """Return *name* when it can be that of a variable; click.UsageError."""
    if not name or not name.isprintable() or any(char in "=: \t" for char in name):
        raise click.UsageError(f"{where}: {name!r} is not the name of an environment variable")
    return name


def read_env(file: str, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables of a file: ``NAME=VALUE`` or ``NAME`` a line, ``#`` starts a comment line."""
    try:
        with Path(file).open("rb") as source:
            raw = source.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise ManifestError(file, error.strerror or str(error)) from None
    if len(raw) > _LIMIT_BYTES:
        raise ManifestError(file, f"the file is larger than {_LIMIT_BYTES // 1024**2} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(file, "this is not UTF-8 text", raw.count(b"\n", 0, error.start) + 1) from None
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        name, given, value = line.partition("=")
        name = name.removeprefix("export ").strip()
        try:
            checked_name(name, "a line is NAME=VALUE")
            found.append((name, value if given else own_value(name, environ, "a line without =")))
        except click.UsageError as error:
            raise ManifestError(file, error.message, number) from None
    return found
