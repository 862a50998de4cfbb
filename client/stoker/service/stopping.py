"""Being told to stop: once to park what runs, twice to hurry; and what happens when parking takes too long."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import structlog

_log = structlog.get_logger("life")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_LATE = 3


class Stop:
    """Set by signals. ``asked``: park what runs and end; ``hurry``: do not wait for anybody."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def listen(self) -> None:
        """Have SIGTERM and SIGINT come here."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.tell)

    def tell(self) -> None:
        if self.asked.is_set() and not self.hurry.is_set():
            _log.info("told to stop again: not waiting any longer")
            self.hurry.set()
        self.asked.set()


def end_at_last(seconds: float) -> threading.Timer:
    """End the process in *seconds*, whatever still hangs then: what is on disk may be left at any moment."""
    timer = threading.Timer(seconds, _end, (seconds,))
    timer.name, timer.daemon = "end at last", True
    timer.start()
    return timer


def _end(seconds: float) -> None:
    _log.error("not stopped in time; ending at once, the next start takes up what is left", seconds=round(seconds, 1))
    sys.stderr.flush()
    os._exit(EXIT_LATE)
