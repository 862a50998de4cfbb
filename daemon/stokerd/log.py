"""Logging: structured lines, readable on a terminal, JSON everywhere else, and no secret in either."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from stokerd.errors import redact
from stokerd.settings import DaemonSettings

_Event = MutableMapping[str, Any]


def configure(settings: DaemonSettings) -> None:
    """Set up structlog for the process. Lines go to standard error."""
    json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    level = {"debug": 10, "info": 20, "warning": 30, "error": 40}[settings.log_level]
    stamp = structlog.processors.TimeStamper(fmt="iso" if json else "%H:%M:%S", utc=json)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        stamp,
        structlog.processors.format_exc_info,
        _without_secrets,
    ]
    renderer: Any = structlog.processors.JSONRenderer()
    if not json:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=40)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def _without_secrets(_logger: Any, _method: str, event: _Event) -> _Event:
    """The last net: errors are redacted where they are made, but a line may quote something foreign."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redact(value)
    return event
