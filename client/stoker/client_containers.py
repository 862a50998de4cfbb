"""The client's methods about pods, containers, and containers recreated in place."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from stoker.objects.containers import (
    ContainerDetail,
    ContainerInfo,
    PodDetail,
    PodInfo,
    RecreateEvent,
    RecreatePlan,
    RecreateRequest,
    RecreateStatus,
)
from stoker.sse import Message
from stoker.transport import OnRetry, Transport, part

_decode = msgspec.json.Decoder(RecreateEvent).decode


class ContainerCalls(Transport):
    """The inventory, and recreate in place.

    Where a method takes a name it may be ``namespace/name`` of a pod, ``pod/name`` or ``namespace/pod/name`` of a
    container, an id, or a unique beginning of an id. ClientError has the reason NotFound when nothing fits, and
    Conflict when several do.
    """

    async def pods(self) -> list[PodInfo]:
        """Return the pods of the node with their containers, by namespace and name."""
        return await self._call("GET", "/v1/pods", list[PodInfo])

    async def pod(self, name: str) -> PodDetail:
        """Return one pod."""
        return await self._call("GET", f"/v1/pods/{part(name)}", PodDetail)

    async def containers(self) -> list[ContainerInfo]:
        """Return the containers of the node, those that have ended included."""
        return await self._call("GET", "/v1/containers", list[ContainerInfo])

    async def container(self, name: str) -> ContainerDetail:
        """Return one container."""
        return await self._call("GET", f"/v1/containers/{part(name)}", ContainerDetail)

    async def recreate(self, request: RecreateRequest) -> RecreateStatus:
        """Ask for containers to be recreated in place; returns at once, with the request as stokerd has it."""
        return await self._call("POST", "/v1/recreates", RecreateStatus, body=request)

    async def plan_recreate(self, request: RecreateRequest) -> RecreatePlan:
        """Return what would be done; nothing is."""
        return await self._call("POST", "/v1/recreates/plan", RecreatePlan, body=request)

    async def recreates(self) -> list[RecreateStatus]:
        """Return the requests that stokerd knows, newest first."""
        return await self._call("GET", "/v1/recreates", list[RecreateStatus])

    async def recreate_status(self, request_id: str) -> RecreateStatus:
        """Return one request, by its id, its name or a unique beginning of the id."""
        return await self._call("GET", f"/v1/recreates/{part(request_id)}", RecreateStatus)

    async def cancel_recreate(self, request_id: str) -> RecreateStatus:
        """Stop a request at the next point at which every container is whole."""
        return await self._call("DELETE", f"/v1/recreates/{part(request_id)}", RecreateStatus)

    async def follow_recreate(
        self, request_id: str, *, patience: float = 120.0, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[RecreateEvent, None]:
        """Yield the request as it is, then every change, the last one being its end.

        The request goes on in stokerd when the connection breaks or stokerd restarts, so this connects again, with
        growing pauses, until nothing was heard for *patience* seconds; then it raises DaemonUnreachable. *on_retry* is
        told the cause and the pause in seconds.
        """
        path = f"/v1/recreates/{part(request_id)}/events"
        async with aclosing(self._follow(path, _read, _is_end, patience=patience, on_retry=on_retry)) as events:
            async for event in events:
                yield event


def _read(message: Message) -> RecreateEvent | None:
    return _decode(message.data) if message.event == "recreate" else None


def _is_end(event: RecreateEvent) -> bool:
    return event.recreate.phase == "Completed"
