"""Text and numbers from elsewhere: switches, drivers, captures. Pure.

Whatever cannot be read is counted, and a few samples are kept to be shown: a port that is left out silently is worse
than one that is shown as not understood.
"""

from __future__ import annotations

import re

import msgspec

LONGEST_NAME = 128
_SAMPLES, _SAMPLE_LENGTH = 5, 100
_HEX = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,16})")
_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Unread(msgspec.Struct, frozen=True):
    """How many pieces of an input were not understood, and what the first of them were."""

    count: int = 0
    samples: tuple[str, ...] = ()

    def __add__(self, other: Unread) -> Unread:
        return Unread(self.count + other.count, (self.samples + other.samples)[:_SAMPLES])


class Unreadable:
    """Collects what a parser did not understand."""

    def __init__(self) -> None:
        self._count = 0
        self._samples: list[str] = []

    def add(self, text: str) -> None:
        """Count a piece of the input that was not understood."""
        self._count += 1
        if len(self._samples) < _SAMPLES:
            self._samples.append(plain(text, _SAMPLE_LENGTH))

    @property
    def total(self) -> Unread:
        """What was collected so far."""
        return Unread(self._count, tuple(self._samples))


def plain(text: str, limit: int = LONGEST_NAME) -> str:
    """Return foreign text as one line of printable characters, at most *limit* long."""
    text = text[: limit * 8]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def decode(data: bytes | str) -> str:
    """Return the text of a capture, whatever its encoding, without colours; line ends become ``\\n``."""
    if isinstance(data, bytes):
        encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
        data = data.decode(encoding, errors="replace")
    if "\x1b" in data:
        data = _ANSI.sub("", data)
    if "\r" in data:
        data = data.replace("\r\n", "\n").replace("\r", "\n")
    return data


def integer(text: str | None) -> int | None:
    """Return the decimal number that *text* is, None if it is none (or too long to be one)."""
    text = (text or "").strip()
    return int(text) if _INTEGER.fullmatch(text) else None


def leading_number(text: str | None) -> float | None:
    """Return the number that *text* begins with (``400 Gb/sec (4X NDR)``, ``16x``, ``32.0 GT/s PCIe``)."""
    match = _DECIMAL.match((text or "").strip())
    return float(match[0]) if match else None


def guid(text: str | None) -> str:
    """Return a GUID as 16 lower-case digits; empty if it is none, or all zero.

    ``0x2c5eab0300b87b40``, ``c42a10300a9b026`` (a leading zero lost) and ``2c5e:ab03:00b8:7b40`` are read.
    """
    match = _HEX.fullmatch((text or "").strip().replace(":", ""))
    digits = match[1].lower().zfill(16) if match else ""
    return digits if digits.strip("0") else ""
