"""What the rest of the coordinator hears of nodes, and tells them.

Everything is called in the event loop. A listener is quick: what takes long is its own task. One that raises is logged,
and takes neither the node nor other listeners with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from stoker.objects.inventory import CheckpointInventory, ImageInventory, PodInventory
from stoker.objects.link import Result, Wish
from stoker.objects.topology import TopologyLoad, TopologyReport

Content = TopologyReport | TopologyLoad | ImageInventory | PodInventory | CheckpointInventory

RETURN_SECONDS = 90.0
"""So long nodes are given to come back after the coordinator's start: one that tried in vain for long tries once a
minute (stokerd's uplink.reconnect_max), and has to connect and to tell what it has then."""


class Presence(Struct, frozen=True):
    """Whether a node is there, and since when it is so (seconds since the epoch)."""

    connected: bool
    ready: bool
    since: float
    reason: str = ""
    message: str = ""


class Listener(Protocol):
    """Somebody who goes by what nodes say."""

    def on_content(self, node: str, content: Content) -> None:
        """Take a document of a node as it is now, topology, load or inventory; what it was before holds no more."""
        ...

    def on_presence(self, node: str, presence: Presence) -> None:
        """Hear that a node came, went, or ceased to be ready."""
        ...


class ResultSink(Protocol):
    """Who keeps results of wishes."""

    async def on_result(self, node: str, result: Result) -> None:
        """Return when the result is kept for good: the node forgets a final one then. A result may come twice.

        Raises when it cannot be kept now; the node says it again later."""
        ...


class Share(Struct, frozen=True):
    """What one node should do, all of it."""

    wishes: Sequence[Wish] = ()
    paused: bool = False


class WishSource(Protocol):
    """Who knows what nodes should do. Tells `Nodes.desired_changed` when it is something else."""

    async def share(self, node: str) -> Share: ...
