"""How fast one node is listened to. Pure.

Who sends more than its share is read more slowly, and flow control holds it back: nothing piles up, nothing is lost.
"""

from __future__ import annotations

BURST_SECONDS = 20.0
"""A node that was quiet may send so many seconds' share at once: a full report after a start is no flood."""


class Pace:
    """Two rates, of messages and of bytes, as the moment until which the past has been paid for."""

    __slots__ = ("_paid_until",)

    def __init__(self) -> None:
        self._paid_until = float("-inf")

    def take(self, now: float, size: int, *, messages: float, size_rate: float) -> float:
        """Count one message of *size* bytes; return for how many seconds nothing should be read."""
        cost = max(1.0 / messages, size / size_rate)
        self._paid_until = max(self._paid_until, now - BURST_SECONDS) + cost
        return max(self._paid_until - now, 0.0)
