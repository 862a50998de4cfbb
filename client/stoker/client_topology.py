"""The client's methods about the node's topology."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from stoker.objects.topology import TopologyEvent, TopologyLoad, TopologyReport
from stoker.sse import Message
from stoker.transport import OnRetry, Transport

_decode = msgspec.json.Decoder(TopologyEvent).decode


class TopologyCalls(Transport):
    """What the node is made of, and what it hangs on. ClientError with the reason SwitchedOff: not on this node."""

    async def topology(self) -> TopologyReport:
        """Return the report of the node. The first call has stokerd look for it, which may take some seconds."""
        return await self._call("GET", "/v1/topology", TopologyReport)

    async def topology_load(self) -> TopologyLoad:
        """Return what the ports carry, their errors and how congested they are."""
        return await self._call("GET", "/v1/topology/load", TopologyLoad)

    async def follow_topology(
        self, *, patience: float = 120.0, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[TopologyEvent, None]:
        """Yield the report, then its changes until the caller stops.

        When the connection breaks this connects again, with growing pauses, and yields the report anew; when nothing
        was heard for *patience* seconds it raises DaemonUnreachable. *on_retry* is told the cause and the pause.
        """
        path = "/v1/topology/events"
        following = self._follow(path, _read, lambda _: False, patience=patience, on_retry=on_retry)
        async with aclosing(following) as events:
            async for event in events:
                yield event


def _read(message: Message) -> TopologyEvent | None:
    return _decode(message.data) if message.event == "topology" else None
