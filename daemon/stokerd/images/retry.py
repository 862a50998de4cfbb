"""When to try again. Pure: randomness is handed in."""

from __future__ import annotations

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Exponential backoff with jitter: seconds; ``jitter`` is the share of a delay that is random, 0 to 1."""

    initial: float
    maximum: float
    factor: float = 2.0
    jitter: float = 0.5

    def delay(self, attempt: int, draw: float) -> float:
        """Return the seconds to wait after failed attempt number *attempt* (1 is the first); *draw* is in [0, 1).

        The delay lies between (1 - jitter) of the full delay and the full delay, so that nodes that failed together do
        not come back together.
        """
        full = min(self.initial * self.factor ** min(max(attempt - 1, 0), 63), self.maximum)
        return full * (1 - self.jitter * draw)


def registry_rest(strikes: int, retry_after: float | None, backoff: Backoff, draw: float) -> float:
    """Return how long a registry rests after its *strikes*-th 429 in a row.

    What the registry asks for wins when it is longer, up to ten minutes: a hostile or broken header must not park a
    node for a day.
    """
    own = backoff.delay(strikes, draw)
    return own if retry_after is None else max(own, min(retry_after, 600.0))
