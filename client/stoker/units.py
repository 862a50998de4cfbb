"""Durations and sizes as people write and read them. Pure; malformed text is a ValueError that says how to write it."""

from __future__ import annotations

import re
from datetime import datetime

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_SIZE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtpe", start=1)},
    **{letter: 1024**power for power, letter in enumerate("kmgtpe", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtpe", start=1)},
}


def parse_duration(text: str) -> float:
    """Return seconds: ``90s``, ``10m``, ``1h30m``, ``24h``, ``7d``, ``2w``, ``250ms``, ``0``."""
    compact = text.strip()
    if compact == "0":
        return 0.0
    position = 0
    seconds = 0.0
    for part in _DURATION_PART.finditer(compact):
        if part.start() != position:
            break
        seconds += float(part[1]) * _DURATION_UNITS[part[2]]
        position = part.end()
    if not compact or position != len(compact):
        raise ValueError(f"{text!r} is not a duration; write 90s, 10m, 1h30m, 24h or 7d")
    return seconds


def format_duration(seconds: float) -> str:
    """Return seconds so that ``parse_duration`` gives the same whole number: ``1h30m``, ``2d``; below 1 s in ms."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))}ms"
    rest = round(seconds)
    if rest <= 0:
        return "0s"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def brief_duration(seconds: float) -> str:
    """Return a length of time for tables, its two largest units at most: ``12s``, ``3m5s``, ``2h``, ``4d6h``."""
    rest = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for place, (unit, length) in enumerate(units):
        count, below = divmod(rest, length)
        if not count and length > 1:
            continue
        if length == 1:
            return f"{count}s"
        minor, minor_length = units[place + 1]
        return f"{count}{unit}" + (f"{below // minor_length}{minor}" if below // minor_length else "")
    return "0s"


def fine_duration(seconds: float) -> str:
    """Return a length of time of which parts of a second matter: ``420ms``, ``1.3s``, ``12s``, ``3m5s``."""
    if seconds < 0.9995:
        return f"{max(0, round(seconds * 1000))}ms"
    return f"{seconds:.1f}s" if seconds < 9.95 else brief_duration(seconds)


def parse_size(text: str) -> int:
    """Return bytes: ``512``, ``64KiB``, ``1.5G``, ``2GiB`` (1024 each step), ``2GB`` (1000 each step)."""
    match = _SIZE.fullmatch(text.strip())
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write 512MiB, 10GiB or 1.5TiB")
    number = match[1]
    return int(number) * factor if "." not in number else round(float(number) * factor)


def format_size(size: float) -> str:
    """Return bytes in binary units with about three digits: ``0 B``, ``512 B``, ``1.5 KiB``, ``6.5 GiB``."""
    if size < 0:
        return "-" + format_size(-size)
    power = 0
    # 1023.95 would be rounded up to "1024.0": the next unit says it better.
    while power < len(_BINARY) - 1 and (size >= 1024 if power == 0 else round(size, 1) >= 1024):
        size /= 1024
        power += 1
    if power == 0:
        return f"{round(size)} B"
    return f"{size:.1f} {_BINARY[power]}" if size < 99.95 else f"{size:.0f} {_BINARY[power]}"


def format_size_pair(done: int, total: int) -> str:
    """Return *done* of *total* in the unit of *total*: ``3.1/6.5 GiB``."""
    whole = format_size(total)
    number, unit = whole.split(" ")
    power = _BINARY.index(unit)
    digits = len(number.partition(".")[2])
    return f"{done / 1024**power:.{digits}f}/{whole}"


def format_age(moment: datetime | None, now: datetime) -> str:
    """Return how long ago *moment* was (``3m ago``), or how soon it will be (``in 24h``); ``-`` for None.

    Both must have a time zone.
    """
    if moment is None:
        return "-"
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{brief_duration(seconds)} ago" if seconds > 0 else f"in {brief_duration(-seconds)}"
