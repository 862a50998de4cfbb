"""Watches as HTTP: one JSON document a line, or server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from stoker.service.in_flight import OpenStreams
from stoker_coordinator.api import views
from stoker_coordinator.api.failures import failure_of
from stoker_coordinator.api.targets import ListQuery, Target
from stoker_coordinator.errors import CoordinatorError, LimitExceeded, StoreClosed
from stoker_coordinator.store.protocol import Event, Store

_PAGE = 500
_LINES, _SSE = "application/json", "text/event-stream"


class Watches:
    """The streams that are open. Who reads slowly holds up only his own."""

    def __init__(self, store: Store, *, limit: int, bookmarks: float, count: Callable[[int], object]) -> None:
        self._store = store
        self._limit = limit
        self._bookmarks = bookmarks
        self._open = OpenStreams(count)

    async def serve(
        self, request: web.Request, target: Target, query: ListQuery, recheck: Callable[[], object]
    ) -> web.StreamResponse:
        """Answer with what happens, until the client goes away, its time is over, or the server stops.

        Expired, before anything is answered, when the history does not go back so far. *recheck* raises when who asks
        would not be let in any more: the watch ends then, within the interval of the bookmarks.
        """
        if self._open.closing:
            raise StoreClosed("the coordinator is stopping", hint="watch again once it is back")
        if len(self._open) >= self._limit:
            raise LimitExceeded(f"{self._limit} watches are open already", hint="close some of them")
        sse = _SSE in request.headers.get("Accept", "")
        response = web.StreamResponse(
            headers={"Content-Type": _SSE if sse else _LINES, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        limit = asyncio.get_running_loop().time() + query.timeout if query.timeout else None
        async with self._open.one(until=limit):
            await self._pump(request, response, target, query, recheck, _frame_sse if sse else _frame_line)
        return response

    def close(self) -> None:
        """End all of them, and refuse new ones."""
        self._open.close()

    async def _pump(
        self,
        request: web.Request,
        response: web.StreamResponse,
        target: Target,
        query: ListQuery,
        recheck: Callable[[], object],
        frame: Callable[[str, int, bytes], bytes],
    ) -> None:
        number, clock = 0, asyncio.get_running_loop().time
        checked = clock()
        async with aclosing(self._events(target, query)) as events:
            try:
                async for event in events:
                    if clock() - checked >= self._bookmarks / 2:
                        recheck()
                        checked = clock()
                    if event is not None and event.type == "BOOKMARK" and not query.bookmarks:
                        continue
                    number += 1
                    data = views.event(event, target.kind, target.version) if event is not None else b""
                    if not response.prepared:
                        await response.prepare(request)
                    if event is not None:
                        await response.write(frame(event.type, number, data))
            except CoordinatorError as error:
                if not response.prepared:
                    raise
                # The status line is out, so the stream itself has to tell.
                failure = failure_of(error, f"watch {request.path}")
                data = msgspec.json.encode({"type": "ERROR", "object": failure.body()})
                await response.write(frame("ERROR", number + 1, data))

    async def _events(self, target: Target, query: ListQuery) -> AsyncGenerator[Event[Any] | None, None]:
        """Yield what there is, if no revision was given, and then what happens. None: all is well so far."""
        since = query.since
        kind, namespace = target.kind.type, target.namespace
        if since is None:
            page = await self._store.list(kind, namespace=namespace, labels=query.labels, fields=query.fields)
            since = page.revision
            for obj in page.items:
                yield Event("ADDED", obj.revision, obj)
        watching = self._store.watch(
            [kind],
            since=since,
            namespace=namespace,
            labels=query.labels,
            fields=query.fields,
            bookmarks=self._bookmarks,
        )
        async with aclosing(watching) as events:
            first = asyncio.ensure_future(anext(events))
            try:
                # Whatever is wrong with the revision shows at once; otherwise the client is told that it is heard.
                done, _ = await asyncio.wait({first}, timeout=0)
                if not done:
                    yield None
                event = await first
            finally:
                first.cancel()
            while True:
                yield event
                event = await anext(events)


def _frame_line(_type: str, _number: int, data: bytes) -> bytes:
    return data + b"\n"


def _frame_sse(kind: str, number: int, data: bytes) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), number, data)
