"""Reading the configuration file: every error at once, each with its place. Pure but for `load`."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from stokerd.errors import ConfigError
from stokerd.settings import Settings, Unit

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|m|h|d))")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|K|M|G|T|KB|MB|GB|TB|KiB|MiB|GiB|TiB|Ki|Mi|Gi|Ti)?")
_BYTES = {
    "": 1,
    "B": 1,
    **{unit: 1000**power for power, unit in enumerate(("K", "M", "G", "T"), 1)},
    **{unit + "B": 1000**power for power, unit in enumerate(("K", "M", "G", "T"), 1)},
    **{unit + "i": 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)},
    **{unit + "iB": 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)},
}
_WHAT = {
    "count": "a whole number",
    "seconds": 'a duration such as "90s", "10m" or "24h"',
    "bytes": 'a size such as "512MiB" or "2GiB"',
    "percent": "a percentage from 0 to 100",
    "share": "a number from 0 to 1",
}
MAX_FILE = 1 << 20


def load(path: Path | None) -> Settings:
    """Read *path* (None: all defaults); raise ConfigError that lists every problem of the file."""
    if path is None:
        return Settings()
    try:
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(str(path), [f"the file is larger than {MAX_FILE} bytes"])
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"is not UTF-8: byte {error.start}"]) from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Settings:
    """Build the settings from TOML *text*; *source* names it in errors."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
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
    for name, path in (("daemon.state_dir", settings.daemon.state_dir), ("api.socket", settings.api.socket)):
        if not path.is_absolute():
            problems.append(f"{name}: {str(path)!r} is not an absolute path")
    if len(str(settings.api.socket)) > 100:
        problems.append("api.socket: a unix socket's path can have at most 107 characters, and its lock needs a few")
    return problems


def _table(kind: type[Any], document: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [entry.name for entry in fields(kind)]
    for key in document:
        if key not in names:
            problems.append(f"{where}{key}: there is no such setting{_did_you_mean(key, names)}")
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
    close = difflib.get_close_matches(key, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f" (there are: {', '.join(names)})"


def _value(raw: Any, hint: Any) -> Any:
    """Return *raw* as the type that *hint* asks for; ValueError says what was expected."""
    if get_origin(hint) is typing.Annotated:
        unit = get_args(hint)[1]
        assert isinstance(unit, Unit)
        return _number(raw, unit)
    if get_origin(hint) is typing.Literal:
        if raw not in get_args(hint):
            raise ValueError(f"{raw!r} is not one of {', '.join(map(repr, get_args(hint)))}")
        return raw
    if get_origin(hint) is tuple:
        if not isinstance(raw, list):
            raise ValueError(f"{raw!r} is not a list")
        return tuple(_value(entry, get_args(hint)[0]) for entry in raw)
    if hint is bool:
        if not isinstance(raw, bool):
            raise ValueError(f"{raw!r} is not true or false")
        return raw
    if not isinstance(raw, str):
        raise ValueError(f"{raw!r} is not a string")
    if hint is Path:
        if not raw or "\0" in raw:
            raise ValueError(f"{raw!r} is not a path")
        return Path(raw)
    return raw


def _number(raw: Any, unit: Unit) -> int | float:
    value = _parse_number(raw, unit)
    if value is None or not math.isfinite(value):
        raise ValueError(f"{raw!r} is not {_WHAT[unit.kind]}")
    if not unit.least <= value <= unit.most:
        bounds = f"at least {unit.least:g}" if value < unit.least else f"at most {unit.most:g}"
        raise ValueError(f"{raw!r} must be {bounds}")
    return int(value) if unit.kind in {"count", "bytes"} else float(value)


def _parse_number(raw: Any, unit: Unit) -> float | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return None if unit.kind in {"count", "bytes"} and not float(raw).is_integer() else raw
    if not isinstance(raw, str):
        return None
    if unit.kind == "seconds":
        return parse_duration(raw)
    return parse_size(raw) if unit.kind == "bytes" else None


def parse_duration(text: str) -> float | None:
    """``1h30m`` → 5400.0 seconds; None when it is not a duration."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_size(text: str) -> float | None:
    """``2GiB`` → 2147483648 bytes; None when it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    return float(int(float(match.group(1)) * _BYTES[match.group(2) or ""]))
