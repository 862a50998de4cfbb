"""The routes about the node's topology."""

from __future__ import annotations

import hashlib

import msgspec
from aiohttp import web

from stokerd.api.calls import Calls, Deadlines
from stokerd.api.ports import TopologyPort
from stokerd.api.sse import Streams
from stokerd.api.wire import Query, json_response

_NOTHING: frozenset[str] = frozenset()


class TopologyHandlers:
    """One method per route."""

    def __init__(self, topology: TopologyPort, streams: Streams, calls: Calls, deadlines: Deadlines) -> None:
        self._topology = topology
        self._streams = streams
        self._calls = calls
        self._deadlines = deadlines

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        return [
            web.get("/v1/topology", self.report),
            web.get("/v1/topology/load", self.load),
            web.get("/v1/topology/events", self.follow, allow_head=False),
        ]

    async def report(self, request: web.Request) -> web.Response:
        """With ``ETag``; 304 without a body to who has it already."""
        Query(request, _NOTHING)
        report = await self._calls.read(self._topology.report(), self._deadlines.call)
        body = msgspec.json.encode(report)
        digest = hashlib.sha256(body).hexdigest()[:32]
        headers = {"ETag": f'"{digest}"', "Cache-Control": "no-cache"}
        if any(tag.value in {digest, "*"} for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def load(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._topology.load_of_ports(), self._deadlines.call))

    async def follow(self, request: web.Request) -> web.StreamResponse:
        Query(request, _NOTHING)
        # What keeps it from working is told while there still is a status line to set.
        await self._calls.read(self._topology.report(), self._deadlines.call)
        return await self._streams.serve(request, self._topology.follow)
