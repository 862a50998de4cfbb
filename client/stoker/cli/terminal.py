"""Draws a block of lines at the bottom of a terminal, over and over, and lets other lines scroll away above it."""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.cli.text import width_of

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"


class Screen:
    """The terminal behind the descriptor *fd*. ``close`` gives the cursor back; call it whatever happens."""

    def __init__(self, write: Callable[[str], None], fd: int) -> None:
        self._write = write
        self._fd = fd
        self._block: list[str] = []
        self._hidden = False

    def size(self) -> tuple[int, int]:
        """Return columns and lines; 80 by 24 where the terminal does not know."""
        try:
            columns, lines = os.get_terminal_size(self._fd)
        except OSError:
            columns = lines = 0
        return columns or 80, lines or 24

    def draw(self, above: list[str], block: list[str]) -> None:
        """Write the lines *above* for good, and *block* below them in the place of the former block."""
        text = self._rewind()
        if not self._hidden:
            text = _HIDE_CURSOR + text
            self._hidden = True
        text += "".join(f"{line}{_CLEAR_LINE}\n" for line in [*above, *block]) + _CLEAR_BELOW
        self._block = block
        self._write(text)

    def close(self) -> None:
        """Leave the block where it is and show the cursor again, below it."""
        if self._hidden:
            self._hidden = False
            self._block = []
            self._write(f"\r{_CLEAR_BELOW}{_SHOW_CURSOR}")  # over the ^C that the terminal shows, if there is one

    def _rewind(self) -> str:
        """Go back to the start of the block; a terminal that has become narrower has broken its lines."""
        columns, _ = self.size()
        rows = sum(max(1, -(-width_of(line) // columns)) for line in self._block)
        return f"\x1b[{rows}F" if rows else "\r"
