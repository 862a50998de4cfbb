"""Settings as dataclasses, read from TOML: every error of a file at once, each with its place. Pure but for `read`.

A program has one dataclass with one field for each table of its file, and in each of these one field for each key.
Durations are strings such as ``"90s"`` or numbers of seconds; sizes are strings such as ``"2GiB"`` or numbers of bytes.
"""

from __future__ import annotations

import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from stoker.units import parse_duration, parse_size

T = TypeVar("T")

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
_CENTURY = 100 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Unit:
    """How a number is written in the file, and which values are sound (both ends included)."""

    kind: Literal["count", "seconds", "bytes", "percent", "share"]
    least: float
    most: float


Seconds = Annotated[float, Unit("seconds", 0, _CENTURY)]
PositiveSeconds = Annotated[float, Unit("seconds", 0.001, _CENTURY)]
Bytes = Annotated[int, Unit("bytes", 0, 1 << 60)]
BodySize = Annotated[int, Unit("bytes", 1 << 10, 1 << 30)]
Count = Annotated[int, Unit("count", 0, 10**9)]
PositiveCount = Annotated[int, Unit("count", 1, 10**9)]
Percent = Annotated[float, Unit("percent", 0, 100)]
Share = Annotated[float, Unit("share", 0, 1)]


class SettingsError(ValueError):
    """A file has errors; ``problems`` holds one line for each of them."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        super().__init__(f"{source}: {len(problems)} error(s):\n" + "\n".join(f"  {line}" for line in problems))
        self.source = source
        self.problems = tuple(problems)


def read(path: Path) -> str:
    """Return what is in a file; SettingsError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise SettingsError(str(path), [f"cannot be read: {error.strerror or error}"]) from None
    if len(raw) > MAX_FILE:
        raise SettingsError(str(path), [f"the file is larger than {MAX_FILE} bytes"])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(str(path), [f"is not UTF-8: byte {error.start}"]) from None


def parse(kind: type[T], text: str, source: str) -> T:
    """Return settings of *kind* from TOML; *source* names it in errors. SettingsError."""
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, and very deep lists, too
        raise SettingsError(source, [f"is not TOML: {error}"]) from None
    problems: list[str] = []
    settings: T = _table(kind, document, "", problems)
    if problems:
        raise SettingsError(source, problems)
    return settings


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
    if get_origin(hint) is types.UnionType:  # None is what stands in no file
        return _value(raw, next(each for each in get_args(hint) if each is not type(None)))
    if get_origin(hint) is typing.Literal:
        if raw not in get_args(hint):
            raise ValueError(f"{_show(raw)} is not one of {', '.join(map(repr, get_args(hint)))}")
        return raw
    if get_origin(hint) is tuple:
        if not isinstance(raw, list):
            raise ValueError(f"{_show(raw)} is not a list")
        return tuple(_value(entry, get_args(hint)[0]) for entry in raw)
    if hint is bool:
        if not isinstance(raw, bool):
            raise ValueError(f"{_show(raw)} is not true or false")
        return raw
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
