"""What is shown while containers are recreated: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from stoker.cli.recreate_layout import (
    closing_line,
    finished_lines,
    frame,
    name_width,
    outcome,
    pod_name,
    step_text,
    took_seconds,
)
from stoker.cli.reporters import Drawing, PlainLines, Teller
from stoker.cli.terminal import Screen
from stoker.cli.text import Style, clean
from stoker.objects.containers import RecreateEvent, RecreateStatus, TargetStatus

_OVER = {"Succeeded", "Failed"}


class RecreateReporter(Teller, Protocol):
    """Told about one request."""

    def event(self, event: RecreateEvent) -> None: ...


class LiveRecreate(Drawing):
    """Draws the containers that are not over; those that are scroll away above."""

    def __init__(self, screen: Screen, style: Style, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(screen, style, clock)
        self._status: RecreateStatus | None = None
        self._told: set[str] = set()
        self._trouble = ""

    def event(self, event: RecreateEvent) -> None:
        self._trouble = ""
        self._status = event.recreate
        width = name_width(event.recreate)
        for target in event.recreate.containers:
            if target.phase in _OVER and target.name not in self._told:
                self._told.add(target.name)
                self.above += finished_lines(target, self.style, width)
        self.changed()

    def trouble(self, text: str) -> None:
        self._trouble = text
        self.changed()

    def block(self, width: int, height: int) -> list[str]:
        if self._status is None:
            return []
        wall = datetime.now(UTC)
        return frame(
            self._status,
            wall=wall,
            took=took_seconds(self._status, wall),
            trouble=self._trouble,
            width=width,
            height=height,
            style=self.style,
        )

    def closing(self) -> str:
        return closing(self._status)


class PlainRecreate(PlainLines):
    """Writes a line for each step of each container."""

    def __init__(self, write: Callable[[str], None], style: Style) -> None:
        super().__init__(write)
        self._style = style
        self._status: RecreateStatus | None = None
        self._said: dict[str, str] = {}

    def event(self, event: RecreateEvent) -> None:
        status = event.recreate
        self.heard()
        if self._status is None:
            count = len(status.containers)
            noun = "container" if count == 1 else "containers"
            self._write(f"request {clean(status.id)}: {pod_name(status)}, {count} {noun}")
        if status.waiting_for and (self._status is None or self._status.waiting_for != status.waiting_for):
            self._write(f"waits for {clean(status.waiting_for)}, which is at the same pod")
        self._status = status
        for target in status.containers:
            self._tell(target)

    def _tell(self, target: TargetStatus) -> None:
        over = target.phase in _OVER
        text = outcome(target, self._style) if over else step_text(target)
        if target.phase == "Failed":
            text = f"failed: {text}"
        if text == self._said.get(target.name, "waiting"):
            return
        self._said[target.name] = text
        self._write(f"{clean(target.name)}: {text}")
        if target.phase == "Failed" and target.hint:
            self._write(f"  hint: {clean(target.hint)}")

    def finish(self) -> None:
        self._write(closing(self._status))


def closing(status: RecreateStatus | None) -> str:
    """Return the last line about a request."""
    return "" if status is None else closing_line(status, took_seconds(status, datetime.now(UTC)))
