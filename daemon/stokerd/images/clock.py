"""Time and chance, handed in so that decisions can be tested."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol


class Clock(Protocol):
    """``monotonic`` in seconds of the event loop's clock, ``time`` in seconds since the epoch, ``draw`` in [0, 1)."""

    def monotonic(self) -> float: ...
    def time(self) -> float: ...
    def draw(self) -> float: ...


class SystemClock:
    """The real ones."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def time(self) -> float:
        return time.time()

    def draw(self) -> float:
        return random.random()  # noqa: S311 - jitter, not a secret
