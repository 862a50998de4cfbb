"""Text for terminals: widths, shortening, tables, marks and colours. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Color = Literal["red", "green", "yellow", "cyan", "dim", "bold"]
_CODES: dict[Color, str] = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


@dataclass(frozen=True, slots=True)
class Style:
    """What the output can show."""

    color: bool = False
    unicode: bool = True

    def paint(self, text: str, color: Color) -> str:
        """Return *text* in a colour, or as it is."""
        return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if self.color and text else text

    @property
    def ok(self) -> str:
        """Mark of what is well."""
        return self.paint("✓" if self.unicode else "+", "green")

    @property
    def bad(self) -> str:
        """Mark of what failed."""
        return self.paint("✗" if self.unicode else "x", "red")

    @property
    def warning(self) -> str:
        """Mark of what wants attention."""
        return self.paint("!", "yellow")

    @property
    def none(self) -> str:
        """Mark of what was left undone."""
        return self.paint("–" if self.unicode else "-", "dim")

    @property
    def dots(self) -> str:
        """What stands for text that was left out; one column."""
        return "…" if self.unicode else "~"

    @property
    def separator(self) -> str:
        """What stands between the parts of a line."""
        return " · " if self.unicode else ", "

    @property
    def arrow(self) -> str:
        """What stands between before and after."""
        return "→" if self.unicode else "->"

    def bar(self, share: float, width: int) -> str:
        """Return a bar of *width* columns that is filled by *share* (0 to 1)."""
        share = min(1.0, max(0.0, share))
        if not self.unicode:
            full = int(share * width)
            return "#" * full + "." * (width - full)
        halves = int(share * width * 2)
        filled = "━" * (halves // 2) + ("╸" if halves % 2 else "")
        return self.paint(filled, "cyan") + self.paint("─" * (width - len(filled)), "dim")


def clean(text: str) -> str:
    """Return foreign text without characters that move the cursor, change the terminal or reorder the line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if char in "\t\r\n" else "�" if _hidden(char) else char for char in text)


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def width_of(text: str) -> int:
    """Return the columns that *text* takes on a terminal, colour codes not counted."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    return sum(_columns(char) for char in _without_codes(text))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _without_codes(text: str) -> str:
    head, *rest = text.split("\x1b[")
    return head + "".join(part.partition("m")[2] for part in rest)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return *text* with blanks up to *width* columns; *right* puts them in front."""
    blanks = " " * max(0, width - width_of(text))
    return blanks + text if right else text + blanks


def shorten_middle(text: str, width: int, style: Style) -> str:
    """Return *text* in at most *width* columns; what is left out comes from the middle, for both ends tell more."""
    if width_of(text) <= width:
        return text
    if width <= 1:
        return style.dots[:width]
    head = (width - 1) * 2 // 5
    return _take(text, head) + style.dots + _take(text[::-1], width - 1 - head)[::-1]


def shorten_end(text: str, width: int, style: Style) -> str:
    """Return *text* in at most *width* columns, its end left out if need be."""
    if width_of(text) <= width:
        return text
    return _take(text, width - 1) + style.dots if width > 0 else ""


def _take(text: str, width: int) -> str:
    taken = 0
    for index, char in enumerate(text):
        taken += _columns(char)
        if taken > width:
            return text[:index]
    return text


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], style: Style, *, right: frozenset[int]) -> list[str]:
    """Return the lines of a table, aligned by display width; columns in *right* have their numbers at the right."""
    cells = [list(headers), *[[clean(cell) for cell in row] for row in rows]]
    widths = [max(width_of(row[column]) for row in cells) for column in range(len(headers))]
    lines = []
    for number, row in enumerate(cells):
        padded = [pad(cell, widths[column], right=column in right) for column, cell in enumerate(row)]
        line = "  ".join(padded).rstrip()
        lines.append(style.paint(line, "bold") if number == 0 else line)
    return lines
