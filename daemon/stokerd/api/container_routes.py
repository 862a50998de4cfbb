"""The routes about pods, containers, and containers recreated in place."""

from __future__ import annotations

from aiohttp import web

from stoker.objects.containers import RecreateRequest
from stokerd.api.calls import Calls, Deadlines
from stokerd.api.ports import ContainersPort
from stokerd.api.sse import Streams
from stokerd.api.wire import Query, json_response, read_body

_NOTHING: frozenset[str] = frozenset()


class ContainerHandlers:
    """One method per route. A name may have slashes in it, as they are or as ``%2F``."""

    def __init__(self, containers: ContainersPort, streams: Streams, calls: Calls, deadlines: Deadlines) -> None:
        self._containers = containers
        self._streams = streams
        self._calls = calls
        self._deadlines = deadlines

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        return [
            web.get("/v1/pods", self.list_pods),
            web.get("/v1/pods/{name:.+}", self.get_pod),
            web.get("/v1/containers", self.list_containers),
            web.get("/v1/containers/{name:.+}", self.get_container),
            web.get("/v1/recreates", self.list_recreates),
            web.post("/v1/recreates", self.recreate),
            web.post("/v1/recreates/plan", self.plan),
            web.get("/v1/recreates/{id}", self.get_recreate),
            web.delete("/v1/recreates/{id}", self.cancel_recreate),
            web.get("/v1/recreates/{id}/events", self.follow_recreate, allow_head=False),
        ]

    # ------------------------------------------------------------------------------------------ the inventory

    async def list_pods(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._containers.pods(), self._deadlines.call))

    async def get_pod(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._containers.pod(request.match_info["name"])
        return json_response(await self._calls.read(call, self._deadlines.call))

    async def list_containers(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._containers.containers(), self._deadlines.call))

    async def get_container(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._containers.container(request.match_info["name"])
        return json_response(await self._calls.read(call, self._deadlines.call))

    # ------------------------------------------------------------------------------------------ recreate in place

    async def recreate(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        wish = await read_body(request, RecreateRequest, timeout=self._deadlines.body)
        status = await self._calls.change(self._containers.recreate(wish), self._deadlines.call)
        return json_response(status, status=201, headers={"Location": f"/v1/recreates/{status.id}"})

    async def plan(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        wish = await read_body(request, RecreateRequest, timeout=self._deadlines.body)
        return json_response(await self._calls.read(self._containers.plan(wish), self._deadlines.plan))

    async def list_recreates(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(self._containers.recreates())

    async def get_recreate(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(self._containers.recreate_status(request.match_info["id"]))

    async def cancel_recreate(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._containers.cancel_recreate(request.match_info["id"])
        return json_response(await self._calls.change(call, self._deadlines.call))

    async def follow_recreate(self, request: web.Request) -> web.StreamResponse:
        Query(request, _NOTHING)
        # NotFound while there still is a status line to set.
        request_id = self._containers.recreate_status(request.match_info["id"]).id
        return await self._streams.serve(request, lambda: self._containers.follow_recreate(request_id))
