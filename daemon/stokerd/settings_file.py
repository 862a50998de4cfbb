"""Reading the configuration file: every error at once, each with its place. Pure but for `load`."""

from __future__ import annotations

import math
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from stoker.units import parse_duration, parse_size
from stokerd.errors import ConfigError
from stokerd.settings import Settings, TopologySettings, Unit
from stokerd.settings_rules import problems as rule_problems
from stokerd.settings_rules import uplink_problems

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WHAT = {
    "count": "a whole number",
    "seconds": 'a duration such as "90s", "10m" or "24h"',
    "bytes": 'a size such as "512MiB" or "2GiB"',
    "percent": "a percentage from 0 to 100",
    "share": "a number from 0 to 1",
}
MAX_FILE = 1 << 20
_LONGEST_NUMBER = 60


def load(path: Path | None) -> Settings:
    """Read *path* (None: all defaults); raise ConfigError that lists every problem of the file."""
    if path is None:
        return Settings()
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror or error}"]) from None
    if len(raw) > MAX_FILE:
        raise ConfigError(str(path), [f"the file is larger than {MAX_FILE} bytes"])
    try:
        return parse(raw.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"is not UTF-8: byte {error.start}"]) from None


def parse(text: str, source: str) -> Settings:
    """Build the settings from TOML *text*; *source* names it in errors."""
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, and very deep lists, too
        raise ConfigError(source, [f"is not TOML: {error}"]) from None
    problems: list[str] = []
    settings = _table(Settings, document, "", problems)
    problems += [] if problems else consistency_problems(settings)
    if problems:
        raise ConfigError(source, problems)
    assert isinstance(settings, Settings)
    return settings


def consistency_problems(settings: Settings) -> list[str]:
    """Return what is wrong between fields that are each sound alone."""
    images = settings.images
    problems = []
    if images.disk_floor > images.disk_reserve:
        problems.append(
            f"images.disk_floor ({images.disk_floor}) is above images.disk_reserve ({images.disk_reserve}): pulls that"
            " were let in would be stopped at once"
        )
    if images.inode_floor > images.inode_reserve:
        problems.append("images.inode_floor is above images.inode_reserve")
    if images.backoff_initial > images.backoff_max:
        problems.append("images.backoff_initial is above images.backoff_max")
    for name, path in (
        ("daemon.state_dir", settings.daemon.state_dir),
        ("api.socket", settings.api.socket),
        *(("credentials.docker_configs", path) for path in settings.credentials.docker_configs),
        ("checkpoints.directory", settings.checkpoints.directory),
        ("runtime.registry_config_path", Path(settings.runtime.registry_config_path or "/")),
        *_topology_paths(settings.topology),
        ("uplink.ca", Path(settings.uplink.ca or "/")),
        ("uplink.token_file", Path(settings.uplink.token_file or "/")),
    ):
        if not path.is_absolute():
            problems.append(f"{name}: {str(path)!r} is not an absolute path")
    problems += uplink_problems(settings.uplink.coordinator, settings.uplink.ca, settings.uplink.node)
    endpoint = settings.runtime.endpoint
    if endpoint and not endpoint.removeprefix("unix:").removeprefix("//").startswith("/"):
        problems.append(f"runtime.endpoint: {endpoint!r} is not the path of a unix socket")
    if len(os.fsencode(settings.api.socket)) > 100:
        problems.append("api.socket: a unix socket's path can have at most 107 bytes, and its lock needs a few")
    return problems + rule_problems(settings.topology.rules, settings.topology.labels)


def _topology_paths(topology: TopologySettings) -> Iterator[tuple[str, Path]]:
    yield "topology.root", topology.root
    for name in ("nvidia_file", "nvidia_matrix_file", "lldp_socket", "lldp_file", "fabric_file", "placement_file"):
        yield f"topology.{name}", Path(getattr(topology, name) or "/")


def _table(kind: type[Any], document: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [entry.name for entry in fields(kind)]
    for key in document:
        if key not in names:
            shown = key if _BARE_KEY.fullmatch(key) else _show(key)
            problems.append(f"{where}{shown}: there is no such setting{_did_you_mean(key, names)}")
    values: dict[str, Any] = {}
    for name in names:
        if name not in document:
            continue
        raw, hint, place = document[name], hints[name], f"{where}{name}"
        if is_dataclass(hint):
            if isinstance(raw, dict):
                values[name] = _table(typing.cast("type[Any]", hint), raw, f"{place}.", problems)
            else:
                problems.append(f"{place}: must be a table, [{place}]")
            continue
        try:
            values[name] = _value(raw, hint)
        except ValueError as error:
            problems.append(f"{place}: {error}")
    return kind(**values)


def _did_you_mean(key: str, names: list[str]) -> str:
    import difflib  # only for files that are wrong

    close = difflib.get_close_matches(key, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f" (there are: {', '.join(names)})"


def _value(raw: Any, hint: Any) -> Any:
    """Return *raw* as the type that *hint* asks for; ValueError says what was expected."""
    if get_origin(hint) is typing.Annotated:
        unit = next((mark for mark in hint.__metadata__ if isinstance(mark, Unit)), None)
        return _value(raw, get_args(hint)[0]) if unit is None else _number(raw, unit)
    if get_origin(hint) is typing.Literal:
        if raw not in get_args(hint):
            raise ValueError(f"{_show(raw)} is not one of {', '.join(map(repr, get_args(hint)))}")
        return raw
    if get_origin(hint) is tuple:
        if not isinstance(raw, list):
            raise ValueError(f"{_show(raw)} is not a list")
        return tuple(_value(entry, get_args(hint)[0]) for entry in raw)
    if not isinstance(raw, str):
        raise ValueError(f"{_show(raw)} is not a string")
    if hint is Path:
        if not raw or "\0" in raw:
            raise ValueError(f"{_show(raw)} is not a path")
        return Path(raw)
    return raw


def _number(raw: Any, unit: Unit) -> int | float:
    value = _parse_number(raw, unit)
    if value is None or not (isinstance(value, int) or math.isfinite(value)):
        raise ValueError(f"{_show(raw)} is not {_WHAT[unit.kind]}")
    if not unit.least <= value <= unit.most:
        bound, limit = ("at least", unit.least) if value < unit.least else ("at most", unit.most)
        raise ValueError(f"{_show(raw)} must be {bound} {limit}")
    return int(value) if unit.kind in {"count", "bytes"} else float(value)


def _parse_number(raw: Any, unit: Unit) -> int | float | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, float) and unit.kind in {"count", "bytes"}:
        return int(raw) if raw.is_integer() else None
    if isinstance(raw, int | float):
        return raw
    if not isinstance(raw, str) or len(raw) > _LONGEST_NUMBER or unit.kind not in {"seconds", "bytes"}:
        return None
    try:
        return parse_duration(raw) if unit.kind == "seconds" else parse_size(raw)
    except ValueError:
        return None


def _show(raw: Any) -> str:
    """Return a value for a message: on one line, and not too long."""
    try:
        text = repr(raw)
    except ValueError:  # an integer of thousands of digits
        return "a number that long"
    return text if len(text) <= 100 else f"{text[:100]}..."
