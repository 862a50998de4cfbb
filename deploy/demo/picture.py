"""Draws docs/demo.svg from what a terminal has shown of the demo:

script -q -c 'stty cols 100 && make demo' RECORD
.venv/bin/python -m deploy.demo.picture RECORD docs/demo.svg
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path

from tests.rig import paths

_CODE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
_COLOURS = {"31": "#ef6b73", "32": "#7fd88f", "33": "#e6c07b", "36": "#7fdbca", "2": "#7f93a8"}
_PLAIN, _GROUND = "#d6deeb", "#0b1622"
_WIDE, _HIGH, _MARGIN = 8.43, 18, 16
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

Cell = tuple[str, str]
"""A character, and the codes of its colour and weight."""


@dataclass
class Terminal:
    """As much of a terminal as the demo uses: printing, cursor up, clearing, colours."""

    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: str = ""

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            code = _CODE.match(text, position)
            if code:
                self._obey(code[1], code[2])
                position = code.end()
            else:
                self._print(text[position])
                position += 1

    def _obey(self, argument: str, kind: str) -> None:
        if kind == "F":
            self.row, self.column = max(0, self.row - int(argument or 1)), 0
        elif kind in {"K", "J"}:
            del self.lines[self.row][self.column :]
            if kind == "J":
                del self.lines[self.row + 1 :]
        elif kind == "m":
            self.style = "" if argument in {"", "0"} else ";".join(filter(None, (self.style, argument)))

    def _print(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.lines):
                self.lines.append([])
        else:
            line = self.lines[self.row]
            line += [(" ", "")] * (self.column - len(line))
            line[self.column : self.column + 1] = [(char, self.style)]
            self.column += 1


@dataclass(frozen=True)
class Shown:
    """A stage by the beginning of its title, as it was at its end or, where it draws, ``busy``; which lines of it."""

    title: str
    busy: bool = False
    wanted: Callable[[str], bool] = lambda _: True


def _no_listing(line: str) -> bool:
    return not line.startswith(("$ stoker clone ls", "CLONE ", "clone-"))


def _resumed(line: str) -> bool:
    return _no_listing(line) and not line.startswith(("$ stoker clone rm", "$ stoker checkpoint rm", "removed "))


PICTURE = (
    Shown("Warm them all", busy=True),
    Shown("Give one container a new image, in place"),
    Shown("Keep it as it is now", wanted=lambda line: not line.startswith(("$ stoker checkpoint ls", "CHECK", "cp-"))),
    Shown("10 clones of it go on", wanted=_no_listing),
    Shown("It goes on before its memory is there", wanted=_resumed),
)


def main(record: str, target: str) -> None:
    """Draw the stages of PICTURE."""
    text = Path(record).read_text(encoding="utf-8").replace(str(paths.REPOSITORY), "~/stoker")
    stages = re.split(r"(?=\x1b\[1m── )", text)
    lines: list[list[Cell]] = []
    for shown in PICTURE:
        found = next(each for each in stages if each.startswith(f"\x1b[1m── {shown.title}"))
        seen = _busiest(found) if shown.busy else _at_end(found)
        lines += [line for line in seen if shown.wanted(_text(line))]
        lines.append([])
    Path(target).write_text(_svg(lines[:-1]), encoding="utf-8")


def _at_end(stage: str) -> list[list[Cell]]:
    terminal = Terminal()
    terminal.feed(stage)
    return [line for line in terminal.lines if line]


def _busiest(stage: str) -> list[list[Cell]]:
    """Return what was there when most was drawn at once, the last time."""
    best: list[list[Cell]] = []
    terminal = Terminal()
    for frame in re.split(r"(?=\x1b\[\d+F)", stage):
        terminal.feed(frame)
        seen = [list(line) for line in terminal.lines if line]
        if _bars(seen) >= _bars(best):
            best = seen
    return best


def _bars(lines: Iterable[list[Cell]]) -> int:
    return sum("━" in _text(line) for line in lines)


def _text(line: Iterable[Cell]) -> str:
    return "".join(char for char, _ in line)


def _svg(lines: list[list[Cell]]) -> str:
    width = round(2 * _MARGIN + _WIDE * max(map(len, lines)))
    height = 2 * _MARGIN + _HIGH * len(lines)
    drawn = "\n".join(_row(line, _MARGIN + _HIGH * (number + 0.8)) for number, line in enumerate(lines) if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{_FONT}" font-size="14">\n<title>stoker on a node: images warmed, a container updated in place, '
        f"a program checkpointed and cloned</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{_GROUND}"/>\n{drawn}\n</svg>\n'
    )


def _row(line: list[Cell], y: float) -> str:
    """Draw each run of one style where it belongs, whatever the font makes of the characters before."""
    column, parts = 0, []
    for style, cells in groupby(line, key=lambda cell: cell[1]):
        text = _text(cells)
        if text.strip():
            before = len(text) - len(text.lstrip())
            x, wide = _MARGIN + _WIDE * (column + before), _WIDE * len(text.strip())
            parts.append(f'<tspan x="{x:.1f}" {_look(style)} textLength="{wide:.1f}">{escape(text.strip())}</tspan>')
        column += len(text)
    return f'<text y="{y:.1f}" xml:space="preserve">{"".join(parts)}</text>'


def _look(style: str) -> str:
    codes = style.split(";")
    fill = next((_COLOURS[code] for code in reversed(codes) if code in _COLOURS), _PLAIN)
    return f'fill="{fill}"' + (' font-weight="bold"' if "1" in codes else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
