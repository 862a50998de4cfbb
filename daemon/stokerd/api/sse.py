"""Server-sent events: a port's iterator as an HTTP response that stays open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from aiohttp import web

from stoker.objects.containers import RecreateEvent
from stoker.objects.images import Event as ImageEvent
from stoker.service.in_flight import OpenStreams
from stokerd.api.errors import Stopping, failure_of
from stokerd.errors import LimitExceeded

_HEARTBEAT = b": heartbeat\n\n"
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}

if TYPE_CHECKING:  # loaded when checkpoints and the topology are
    from stoker.objects.checkpoints import OperationEvent
    from stoker.objects.topology import TopologyEvent

Event: TypeAlias = "ImageEvent | RecreateEvent | OperationEvent | TopologyEvent"
"""Each has its name in its tag."""


def encode_event(event: Event, number: int) -> bytes:
    """Return one event as it goes over the wire; JSON has no raw line breaks, so one ``data`` line is enough."""
    return _frame(str(event.__struct_config__.tag), number, msgspec.json.encode(event))


def _frame(name: str, number: int, data: bytes) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), number, data)


class Streams:
    """The event streams that are open on one server.

    A client that reads slowly holds up its own stream only: the next event is taken from the port when the former one
    has left for the socket, so no more than one event and the socket's buffers wait for it.
    """

    def __init__(self, *, heartbeat: float, limit: int, count: Callable[[int], object]) -> None:
        """*heartbeat*: seconds of silence before a comment is sent. *count* is told the number of open streams."""
        self._heartbeat = heartbeat
        self._limit = limit
        self._open = OpenStreams(count)

    async def serve(self, request: web.Request, source: Callable[[], AsyncIterator[Event]]) -> web.StreamResponse:
        """Answer *request* with the events of *source* until they end, the client goes away or the server stops.

        The iterator is closed before this returns. LimitExceeded: too many streams are open. Stopping: too late.
        """
        self._check()
        response = web.StreamResponse(headers=_HEADERS)
        async with self._open.one():
            await response.prepare(request)
            await self._pump(response, source(), where=f"{request.method} {request.path}")
        return response

    def close(self) -> None:
        """End all streams, and refuse new ones."""
        self._open.close()

    def _check(self) -> None:
        if self._open.closing:
            raise Stopping("stokerd is stopping", hint="try again once it is back")
        if len(self._open) >= self._limit:
            raise LimitExceeded(
                f"{self._limit} event streams are open already", hint="close some of them, or poll instead"
            )

    async def _pump(self, response: web.StreamResponse, events: AsyncIterator[Event], *, where: str) -> None:
        number = 0
        upcoming: asyncio.Task[Event | None] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.create_task(_next(events), name="api-event")
                done, _ = await asyncio.wait({upcoming}, timeout=self._heartbeat)
                if not done:
                    await response.write(_HEARTBEAT)
                    continue
                finished, upcoming = upcoming, None
                number += 1
                try:
                    event = finished.result()
                except Exception as error:  # noqa: BLE001 - the status line is out; the stream itself has to tell
                    failure = failure_of(error, where=where)
                    await response.write(_frame("error", number, msgspec.json.encode(failure.body)))
                    return
                if event is None:
                    return
                await response.write(encode_event(event, number))
        finally:
            await _close(upcoming, events)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


async def _close(upcoming: asyncio.Task[Event | None] | None, events: AsyncIterator[Event]) -> None:
    if upcoming is not None:
        upcoming.cancel()
        await asyncio.wait({upcoming})
        if not upcoming.cancelled():
            upcoming.exception()
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
