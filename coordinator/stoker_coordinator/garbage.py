"""The garbage collector, kept from stopping everything.

With ten thousand nodes a full collection looks at millions of objects, and takes a second in which nothing goes on.
Nearly all that lives here is there for as long as its node or object is, and goes with the last reference. So what
a full collection has left is put aside (`gc.freeze`), and the next one looks only at what came since; now and then it
looks at everything once more, for the few that have become garbage in a circle.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

_EVERYTHING_SECONDS = 3600.0


class Putting:
    """Puts aside what a full collection has left: a callback for `gc.callbacks`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, every: float = _EVERYTHING_SECONDS) -> None:
        self._clock, self._every = clock, every
        self._since = clock()

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """*phase* and *info* as the module gc gives them."""
        if phase != "stop" or info["generation"] != 2:
            return
        now = self._clock()
        if now - self._since >= self._every:
            self._since = now
            gc.unfreeze()  # the next full collection is one of everything
        else:
            gc.freeze()


def put_aside() -> None:
    """From now on full collections look only at what is new. What is loaded by now stays for good."""
    gc.collect()
    gc.freeze()
    gc.callbacks.append(Putting())
