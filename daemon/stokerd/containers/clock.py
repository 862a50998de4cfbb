"""Time, handed in so that decisions can be tested."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """``time`` in seconds since the epoch."""

    def time(self) -> float: ...


class SystemClock:
    """Seconds since the epoch that never run backwards or jump while the process lives."""

    def __init__(self) -> None:
        self._base: float | None = None

    def time(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._base is None:
            self._base = time.time() - now
        return self._base + now
