"""When to try again. Pure: what is random comes in as a share from 0 to 1."""

from __future__ import annotations

_SPREAD = 0.5


def pause(failures: int, initial: float, longest: float, share: float) -> float:
    """Return for how long to wait after so many failures in a row: twice as long each time, half of it random, so that
    nodes that lost their coordinator together do not come back together."""
    base = min(longest, initial * 2.0 ** min(max(failures - 1, 0), 32))
    return base * (1 - _SPREAD + _SPREAD * share)


def told_pause(seconds: float, share: float) -> float:
    """Return for how long to wait when the coordinator said how long: at least that, and a quarter more at most."""
    return min(max(seconds, 1.0), 3600.0) * (1 + 0.25 * share)
