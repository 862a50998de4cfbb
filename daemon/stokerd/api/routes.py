"""The routes of the local API about images and the daemon. A handler decodes, calls one port method, and encodes."""

from __future__ import annotations

from collections.abc import Awaitable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from stoker.objects.images import KeepRequest, PinRequest, PlanRequest, WarmRequest
from stoker.objects.node import Health
from stokerd.api.calls import Calls, Deadlines
from stokerd.api.errors import DeadlineExceeded
from stokerd.api.ports import ImagesPort, NodePort
from stokerd.api.sse import Streams
from stokerd.api.wire import Query, json_response, lines_response, read_body

HISTORY_LIMIT = 10_000
_NOTHING: frozenset[str] = frozenset()


class Handlers:
    """One method per route."""

    def __init__(
        self,
        images: ImagesPort,
        node: NodePort,
        registry: CollectorRegistry,
        streams: Streams,
        calls: Calls,
        deadlines: Deadlines,
    ) -> None:
        self._images = images
        self._node = node
        self._registry = registry
        self._streams = streams
        self._calls = calls
        self._deadlines = deadlines

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        return [
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/v1/node", self.node_info),
            web.get("/v1/settings", self.settings),
            web.get("/v1/logs", self.logs),
            web.post("/v1/reload", self.reload),
            web.post("/v1/images/warm", self.warm),
            web.post("/v1/images/plan", self.plan),
            web.get("/v1/images", self.list_images),
            web.delete("/v1/images", self.remove_image),
            web.get("/v1/jobs", self.list_jobs),
            web.get("/v1/jobs/{id}", self.get_job),
            web.delete("/v1/jobs/{id}", self.cancel_job),
            web.get("/v1/jobs/{id}/events", self.follow_job, allow_head=False),
            web.get("/v1/watch", self.watch, allow_head=False),
            web.get("/v1/pins", self.list_pins),
            web.put("/v1/pins", self.pin),
            web.delete("/v1/pins", self.unpin),
            web.get("/v1/keeps", self.list_keeps),
            web.put("/v1/keeps", self.keep),
            web.delete("/v1/keeps", self.unkeep),
            web.get("/v1/history", self.history),
        ]

    # ------------------------------------------------------------------------------------------ the daemon

    async def healthz(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return await self._health(self._node.health())

    async def readyz(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return await self._health(self._node.readiness())

    async def _health(self, call: Awaitable[Health]) -> web.Response:
        try:
            health = await self._calls.read(call, self._deadlines.health)
        except DeadlineExceeded as late:
            health = Health(ok=False, message=late.message)
        return json_response(health, status=200 if health.ok else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text or OpenMetrics, as the client accepts."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def node_info(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._node.info(), self._deadlines.call))

    async def settings(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(self._node.settings())

    async def logs(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return lines_response(self._node.recent_logs())

    async def reload(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.change(self._node.reload(), self._deadlines.call))

    # ------------------------------------------------------------------------------------------ jobs

    async def warm(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        wish = await read_body(request, WarmRequest, timeout=self._deadlines.body)
        job = await self._calls.change(self._images.warm(wish), self._deadlines.call)
        return json_response(job, status=201, headers={"Location": f"/v1/jobs/{job.id}"})

    async def list_jobs(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(self._images.jobs())

    async def get_job(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(self._images.job(request.match_info["id"]))

    async def cancel_job(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        job_id = request.match_info["id"]
        return json_response(await self._calls.change(self._images.cancel(job_id), self._deadlines.call))

    async def follow_job(self, request: web.Request) -> web.StreamResponse:
        Query(request, _NOTHING)
        job_id = self._images.job(request.match_info["id"]).id  # NotFound while there still is a status line to set
        return await self._streams.serve(request, lambda: self._images.follow(job_id))

    async def watch(self, request: web.Request) -> web.StreamResponse:
        Query(request, _NOTHING)
        return await self._streams.serve(request, self._images.watch)

    # ------------------------------------------------------------------------------------------ images

    async def plan(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        wish = await read_body(request, PlanRequest, timeout=self._deadlines.body)
        return json_response(await self._calls.read(self._images.plan(wish), self._deadlines.plan))

    async def list_images(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._images.list(), self._deadlines.call))

    async def remove_image(self, request: web.Request) -> web.Response:
        query = Query(request, frozenset({"image", "force"}))
        call = self._images.remove(query.required("image"), force=query.flag("force"))
        return json_response(await self._calls.change(call, self._deadlines.call))

    async def history(self, request: web.Request) -> web.Response:
        query = Query(request, frozenset({"image", "limit"}))
        limit = query.number("limit", 100, 1, HISTORY_LIMIT)
        call = self._images.history(query.optional("image"), limit=limit)
        return json_response(await self._calls.read(call, self._deadlines.call))

    # ------------------------------------------------------------------------------------------ pins and keeps

    async def list_pins(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._images.pins(), self._deadlines.call))

    async def pin(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        wish = await read_body(request, PinRequest, timeout=self._deadlines.body)
        return json_response(await self._calls.change(self._images.pin(wish), self._deadlines.call))

    async def unpin(self, request: web.Request) -> web.Response:
        image = Query(request, frozenset({"image"})).required("image")
        return json_response(await self._calls.change(self._images.unpin(image), self._deadlines.call))

    async def list_keeps(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._images.keeps(), self._deadlines.call))

    async def keep(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        wish = await read_body(request, KeepRequest, timeout=self._deadlines.body)
        return json_response(await self._calls.change(self._images.keep(wish), self._deadlines.call))

    async def unkeep(self, request: web.Request) -> web.Response:
        image = Query(request, frozenset({"image"})).required("image")
        return json_response(await self._calls.change(self._images.unkeep(image), self._deadlines.call))
