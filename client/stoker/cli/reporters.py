"""What is shown while jobs run: a live picture on a terminal, plain lines elsewhere, events as JSON, or nothing."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from stoker.cli.console import Console, write_out
from stoker.cli.layout import closing_line, finished_lines, frame, outcome, state_text
from stoker.cli.progress import Board, Key, Tracked
from stoker.cli.terminal import Screen
from stoker.cli.text import Style, clean
from stoker.objects.checkpoints import OperationEvent
from stoker.objects.containers import RecreateEvent
from stoker.objects.images import Event, JobEvent
from stoker.units import format_size, format_size_pair

_PLAIN_SECONDS = 10.0
_REDRAW_SECONDS = 1.0


class Teller(Protocol):
    """Told about everything, in order. ``close`` is called in the end, whatever happens."""

    def note(self, text: str) -> None:
        """Show a line that is not about one image or container."""
        ...

    def trouble(self, text: str) -> None:
        """stokerd cannot be heard for now."""
        ...

    def tick(self) -> None:
        """Called ten times a second."""
        ...

    def finish(self) -> None:
        """Everything is over: show the sum."""
        ...

    def close(self) -> None: ...


class Reporter(Teller, Protocol):
    """Told about jobs."""

    def event(self, event: Event) -> None: ...


class Drawing(ABC):
    """Draws on a terminal: at most once a tick, and once a second while nothing happens."""

    def __init__(self, screen: Screen, style: Style, clock: Callable[[], float] = time.monotonic) -> None:
        self.style = style
        self.clock = clock
        self.above: list[str] = []
        """Lines that are to scroll away above the block."""
        self._screen = screen
        self._dirty = True
        self._size = (0, 0)
        self._drawn_at = 0.0

    @abstractmethod
    def block(self, width: int, height: int) -> list[str]:
        """Return the lines that are drawn in place."""

    @abstractmethod
    def closing(self) -> str:
        """Return the last line of all."""

    def changed(self) -> None:
        """Have the block drawn anew at the next tick."""
        self._dirty = True

    def note(self, text: str) -> None:
        self.above.append(text)
        self._dirty = True
        self.tick()

    def tick(self) -> None:
        now = self.clock()
        size = self._screen.size()
        if not self._dirty and size == self._size and now - self._drawn_at < _REDRAW_SECONDS:
            return
        block = self.block(*size)
        above, self.above = self.above, []
        self._screen.draw(above, block)
        self._dirty, self._size, self._drawn_at = False, size, now

    def finish(self) -> None:
        self._screen.draw([*self.above, self.closing()], [])
        self.above = []

    def close(self) -> None:
        if self.above:
            self.tick()
        self._screen.close()


class LiveReporter(Drawing):
    """Draws the images that are being pulled; those that are done scroll away above."""

    def __init__(self, screen: Screen, style: Style, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(screen, style, clock)
        self._board = Board(clock())

    def event(self, event: Event) -> None:
        for tracked in self._board.apply(event, self.clock()):
            if tracked.over:
                self.above += finished_lines(tracked.item, self.style)
        self.changed()

    def trouble(self, text: str) -> None:
        self._board.trouble = text
        self.changed()

    def block(self, width: int, height: int) -> list[str]:
        now, wall = self.clock(), datetime.now(UTC)
        return frame(self._board, now=now, wall=wall, width=width, height=height, style=self.style)

    def closing(self) -> str:
        return closing_line(self._board, now=self.clock())


class PlainLines:
    """What all that write plain lines have in common: remarks, and the connection that is lost and found."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._trouble = ""

    def note(self, text: str) -> None:
        self._write(text)

    def trouble(self, text: str) -> None:
        if not self._trouble:
            self._trouble = text
            self._write(f"no connection to stokerd, trying again: {clean(text)}")

    def heard(self) -> None:
        """Something has come from stokerd."""
        if self._trouble:
            self._trouble = ""
            self._write("stokerd is back")

    def tick(self) -> None:
        """Nothing: silence is what a log wants."""

    def close(self) -> None:
        """Nothing is open."""


class PlainReporter(PlainLines):
    """Writes a line for each change of phase, and for each image that is being pulled one every ten seconds."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(write)
        self._clock = clock
        self._board = Board(clock())
        self._said: dict[Key, str] = {}
        self._said_at: dict[Key, float] = {}

    def event(self, event: Event) -> None:
        now = self._clock()
        self.heard()
        if isinstance(event, JobEvent) and event.job.id not in self._board.jobs:
            count = event.job.counts.desired
            self._write(f"job {event.job.id}: {count} {'image' if count == 1 else 'images'}")
        for tracked in self._board.apply(event, now):
            job = event.job.id if isinstance(event, JobEvent) else getattr(event, "job", "")
            self._tell((job, tracked.item.reference), tracked, now)

    def _tell(self, key: Key, tracked: Tracked, now: float) -> None:
        name = clean(tracked.item.reference or tracked.item.image)
        phase = _plain_phase(tracked)
        if phase != self._said.get(key, "waiting"):
            self._said[key], self._said_at[key] = phase, now
            self._write(f"{name}: {phase}")
            if tracked.item.phase == "Failed" and tracked.item.hint:
                self._write(f"  hint: {clean(tracked.item.hint)}")
        elif tracked.item.phase == "Pulling" and now - self._said_at.get(key, now) >= _PLAIN_SECONDS:
            self._said_at[key] = now
            self._write(f"{name}: {_plain_progress(tracked, now)}")

    def finish(self) -> None:
        self._write(closing_line(self._board, now=self._clock()))


def _plain_phase(tracked: Tracked) -> str:
    item = tracked.item
    if tracked.over:
        return {"Succeeded": "", "Failed": "failed: ", "Cancelled": ""}[item.phase] + outcome(item)
    if item.phase == "Waiting":
        return "waiting" if item.attempt == 0 else f"attempt {item.attempt} failed, will retry: {clean(item.reason)}"
    if tracked.unpacking:
        return "unpacking"
    return "pulling" if item.attempt <= 1 else f"pulling, attempt {item.attempt}"


def _plain_progress(tracked: Tracked, now: float) -> str:
    progress = tracked.item.progress
    if tracked.unpacking or not progress.bytes_total:
        return state_text(tracked, now=now, wall=datetime.now(UTC), short=True)
    sizes = format_size_pair(progress.bytes_done, progress.bytes_total)
    return f"{progress.percent:.0f}%, {sizes}, {format_size(tracked.speed.at(now))}/s"


class JsonReporter:
    """Writes every event as a line of JSON."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def event(self, event: Event | RecreateEvent | OperationEvent) -> None:
        self._console.line(event)

    def note(self, text: str) -> None:
        self._console.note(text)

    def trouble(self, text: str) -> None:
        self._console.note(f"no connection to stokerd, trying again: {text}")

    def tick(self) -> None:
        """Events say it all."""

    def finish(self) -> None:
        """The last event says it all."""

    def close(self) -> None:
        """Nothing is open."""


class QuietReporter(JsonReporter):
    """Says nothing about events: the result follows as one document."""

    def event(self, event: Event | RecreateEvent | OperationEvent) -> None:
        """Nothing."""


R = TypeVar("R")


def reporter_for(
    console: Console, *, events: bool, live: Callable[[Screen, Style], R], plain: Callable[[], R]
) -> R | JsonReporter:
    """Return what shows progress where the output goes. *events*: with --json every event, else the result alone."""
    if console.json:
        return JsonReporter(console) if events else QuietReporter(console)
    return live(Screen(write_out, sys.stdout.fileno()), console.style()) if console.live else plain()
