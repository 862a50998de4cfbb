"""Logging of the daemon and of the coordinator: structured lines, readable on a terminal, JSON everywhere else, and no
secret in either.

The last lines are kept in memory, so that a support bundle has them wherever they went.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, Protocol, TextIO

import structlog

from stoker.redaction import redact

_Event = MutableMapping[str, Any]
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
RECENT_LINES = 1000
RECENT_BYTES = 256 << 10


class LogSettings(Protocol):
    """What is said about the log."""

    @property
    def log_level(self) -> Literal["debug", "info", "warning", "error"]: ...
    @property
    def log_format(self) -> Literal["auto", "json", "console"]: ...


class Recent:
    """The last lines of the log as JSON, as many as the bounds allow."""

    def __init__(self, lines: int = RECENT_LINES, size: int = RECENT_BYTES) -> None:
        self._most = lines
        self._size = size
        self._lines: deque[str] = deque()
        self._held = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._held += len(line.encode())
        while len(self._lines) > self._most or (self._held > self._size and self._lines):
            self._held -= len(self._lines.popleft().encode())

    def lines(self) -> list[str]:
        """Return them, the oldest first."""
        return list(self._lines)


recent = Recent()
"""Of this process. Logging belongs to the process as a whole, and so does what is kept of it."""


def configure(settings: LogSettings, *, stream: TextIO | None = None) -> None:
    """Set up logging for the process; may be called again with other settings. Lines go to standard error."""
    out = stream or sys.stderr
    journal = goes_to_journal(out, os.environ)
    terminal = out.isatty()
    json = settings.log_format == "json" or (settings.log_format == "auto" and (journal or not terminal))
    stamp = structlog.processors.TimeStamper(fmt="iso" if json else "%H:%M:%S", utc=json)
    last: list[Any] = [_Json(journal=journal)]
    if not json:
        last = [_Keep(), structlog.dev.ConsoleRenderer(colors=terminal, pad_event_to=40)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_name,
            stamp,
            structlog.processors.format_exc_info,
            _without_secrets,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.log_level]),
        logger_factory=lambda *names: _Printer(out, *names),
        cache_logger_on_first_use=False,  # a reload changes level and format
    )
    root = logging.getLogger()
    root.handlers[:] = [_Bridge()]
    root.setLevel(logging.WARNING)


def goes_to_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Say whether *stream* is the journal's socket: systemd names its device and inode (systemd.exec(5))."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


class _Printer:
    """Writes lines. A log that cannot be written is no reason to stop working."""

    def __init__(self, out: TextIO, name: str = "") -> None:
        self._out = out
        self.name = name

    def msg(self, line: str) -> None:
        try:
            self._out.write(f"{line}\n")
            self._out.flush()
        except (OSError, ValueError):
            return

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _Json:
    """Renders JSON, for the journal with the severity in front as it expects (sd-daemon(3)), and keeps it."""

    def __init__(self, *, journal: bool) -> None:
        self._render = structlog.processors.JSONRenderer()
        self._journal = journal

    def __call__(self, logger: Any, method: str, event: _Event) -> str:
        level = str(event.get("level", "info"))
        line = str(self._render(logger, method, event))
        recent.add(line)
        return f"<{_PRIORITIES.get(level, 6)}>{line}" if self._journal else line


class _Keep:
    """Keeps the event as JSON and passes it on."""

    def __init__(self) -> None:
        self._render = structlog.processors.JSONRenderer()

    def __call__(self, logger: Any, method: str, event: _Event) -> _Event:
        recent.add(str(self._render(logger, method, dict(event))))
        return event


class _Bridge(logging.Handler):
    """Makes lines of ours of what libraries log."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        level = next((name for name, number in _LEVELS.items() if record.levelno <= number), "critical")
        getattr(log, level)(record.getMessage(), exc_info=record.exc_info)


def _add_name(logger: Any, _method: str, event: _Event) -> _Event:
    if name := getattr(logger, "name", ""):
        event["logger"] = name
    return event


def _without_secrets(_logger: Any, _method: str, event: _Event) -> _Event:
    """The last net: errors are redacted where they are made, but a line may quote something foreign."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redact(value)
        elif isinstance(value, list | tuple):
            event[key] = [redact(entry) if isinstance(entry, str) else entry for entry in value]
    return event
