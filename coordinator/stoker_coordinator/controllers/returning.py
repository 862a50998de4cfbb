"""After a start: nodes are on their way back, and nothing is given up for want of their word before they had the time.

What the store says of nodes is old then, and what they have told of their pods is not known any more.
"""

from __future__ import annotations

import asyncio

from stoker_coordinator.nodes.ports import RETURN_SECONDS


class Returning:
    """Make it in the event loop, when the coordinator starts. It goes by a clock that nobody sets."""

    def __init__(self, seconds: float = RETURN_SECONDS) -> None:
        self._until = asyncio.get_running_loop().time() + seconds

    @property
    def over(self) -> bool:
        """Whether all nodes that will come back have had the time to."""
        return asyncio.get_running_loop().time() >= self._until
