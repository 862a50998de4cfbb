"""What is shown while an operation is under way: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from stoker.cli.checkpoint_layout import clone_line, frame, outcome_lines, state_text, title
from stoker.cli.reporters import Drawing, PlainLines, Teller
from stoker.cli.terminal import Screen
from stoker.cli.text import Style, clean
from stoker.objects.checkpoints import Operation, OperationEvent


class OperationReporter(Teller, Protocol):
    """Told about one operation."""

    def event(self, event: OperationEvent) -> None: ...


class LiveOperation(Drawing):
    """Draws what is being done; clones that run scroll away above."""

    def __init__(self, screen: Screen, style: Style, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(screen, style, clock)
        self._operation: Operation | None = None
        self._told: set[str] = set()
        self._trouble = ""

    def event(self, event: OperationEvent) -> None:
        self._trouble = ""
        self._operation = event.operation
        for clone in event.operation.clones:
            if clone.id not in self._told:
                self._told.add(clone.id)
                self.above.append(clone_line(clone, self.style))
        self.changed()

    def trouble(self, text: str) -> None:
        self._trouble = text
        self.changed()

    def block(self, width: int, height: int) -> list[str]:  # noqa: ARG002 - one line fits everywhere
        if self._operation is None:
            return []
        return frame(self._operation, wall=datetime.now(UTC), trouble=self._trouble, width=width, style=self.style)

    def closing(self) -> str:
        return closing(self._operation, self.style)


class PlainOperation(PlainLines):
    """Writes a line for each step, for each tenth of what is moved, and for each clone that runs."""

    def __init__(self, write: Callable[[str], None], style: Style) -> None:
        super().__init__(write)
        self._style = style
        self._operation: Operation | None = None
        self._told: set[str] = set()
        self._said: set[tuple[str, int]] = set()

    def event(self, event: OperationEvent) -> None:
        operation = event.operation
        self.heard()
        if self._operation is None:
            self._write(f"operation {clean(operation.id)}: {title(operation)}")
        self._operation = operation
        for clone in operation.clones:
            if clone.id not in self._told:
                self._told.add(clone.id)
                self._write(clone_line(clone, self._style))
        if operation.desired != 1 or operation.phase != "Running" or not operation.steps:
            return
        tenth = operation.done_bytes * 10 // operation.total_bytes if operation.total_bytes else 0
        mark = (operation.steps[-1].name, tenth)
        if mark not in self._said:
            self._said.add(mark)
            self._write(state_text(operation))

    def finish(self) -> None:
        text = closing(self._operation, self._style)
        if text:
            self._write(text)


def closing(operation: Operation | None, style: Style) -> str:
    """Return what an operation has brought; nothing when it failed, which is told elsewhere."""
    if operation is None or operation.phase != "Succeeded":
        return ""
    return "\n".join(outcome_lines(operation, style, datetime.now(UTC)))
