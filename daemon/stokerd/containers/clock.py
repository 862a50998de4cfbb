"""Time, handed in so that decisions can be tested."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """``time`` in seconds since the epoch."""

    def time(self) -> float: ...


class SystemClock:
    """The node's. It may be set while stokerd runs, as it often is soon after a boot: then it agrees with the runtime's
    times again, which matters more than that a request under way may end sooner or later for it."""

    def time(self) -> float:
        return time.time()
