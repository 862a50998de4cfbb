"""A terminal of the size a test wants: what a person would see, and programs that run on one."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

_CODE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Emulator:
    """As much of a terminal as the renderer uses: printing, line feeds, wrapping, cursor up, clearing, the cursor."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns = columns
        self.rows = rows
        self.lines: list[str] = [""]
        self.row = 0
        self.column = 0
        self.cursor_visible = True
        self.tallest = 0

    def resize(self, columns: int) -> None:
        """Change the width as terminals do that break long lines anew; short ones stay."""
        self.columns = columns
        broken: list[str] = []
        for number, line in enumerate(self.lines):
            if number == self.row:
                self.row = len(broken)
            broken += [line[start : start + columns] for start in range(0, max(1, len(line)), columns)]
        self.lines = broken

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            code = _CODE.match(text, position)
            if code:
                self._code(code[1], code[2])
                position = code.end()
                continue
            self._print(text[position])
            position += 1
        self.tallest = max(self.tallest, len(self.lines))

    def _code(self, argument: str, kind: str) -> None:
        if kind == "F":
            self.row, self.column = max(0, self.row - int(argument or 1)), 0
        elif kind == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif kind == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif kind in {"h", "l"} and argument == "?25":
            self.cursor_visible = kind == "h"
        else:
            assert kind == "m", f"unexpected code {argument}{kind}"

    def _print(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._down()
            self.column = 0
        else:
            if self.column >= self.columns:
                self._down()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")


# So that Ctrl-C reaches the program as a signal.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Program:
    """A program on a pseudo-terminal."""

    def __init__(self, argv: list[str], columns: int = 80, rows: int = 24, env: dict[str, str] | None = None) -> None:
        self.screen = Emulator(columns, rows)
        self.raw = b""
        # What is read at once may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.fd, terminal = pty.openpty()
        # The size has to be there before the program asks for it.
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *argv],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        )
        os.close(terminal)

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, condition: Callable[[str], bool], seconds: float = 20.0) -> str:
        """Let the program write until *condition* holds for the screen; an AssertionError after *seconds*."""
        deadline = time.monotonic() + seconds
        while not condition(self.screen.text):
            assert time.monotonic() < deadline, self.screen.text
            assert self._read(0.1), f"the program ended:\n{self.screen.text}"
        return self.screen.text

    def wait(self, seconds: float = 20.0) -> int:
        """Let the program end; return its exit code (128 + number after a signal)."""
        deadline = time.monotonic() + seconds
        while self._read(0.1):
            assert time.monotonic() < deadline, self.screen.text
        code = self._process.wait(seconds)
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """Let nothing stay behind, whatever has happened."""
        self._process.kill()
        self._process.wait()
        os.close(self.fd)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if ready:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return False
            self.raw += data
            self.screen.feed(self._decoder.decode(data))
        return True
