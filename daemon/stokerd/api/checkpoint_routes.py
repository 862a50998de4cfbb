"""The routes about checkpoints, clones, commits, pauses, and the operations that these are.

Their objects are loaded with the first request, as the room behind them is: most nodes never get one.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from aiohttp import web

from stokerd.api.calls import Calls, Deadlines
from stokerd.api.ports import CheckpointsPort
from stokerd.api.sse import Streams
from stokerd.api.wire import Query, json_response, read_body

if TYPE_CHECKING:
    from stoker.objects.checkpoints import Operation

_NOTHING: frozenset[str] = frozenset()


class CheckpointHandlers:
    """One method per route."""

    def __init__(self, checkpoints: CheckpointsPort, streams: Streams, calls: Calls, deadlines: Deadlines) -> None:
        self._checkpoints = checkpoints
        self._streams = streams
        self._calls = calls
        self._deadlines = deadlines

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        return [
            web.get("/v1/checkpoints", self.list_checkpoints),
            web.post("/v1/checkpoints", self.create_checkpoint),
            web.get("/v1/checkpoints/{id}", self.get_checkpoint),
            web.delete("/v1/checkpoints/{id}", self.remove_checkpoint),
            web.post("/v1/checkpoints/{id}/verify", self.verify_checkpoint),
            web.post("/v1/checkpoints/{id}/restore", self.restore_checkpoint),
            web.get("/v1/clones", self.list_clones),
            web.post("/v1/clones", self.create_clones),
            web.get("/v1/clones/{id}", self.get_clone),
            web.delete("/v1/clones/{id}", self.remove_clone),
            web.post("/v1/commits", self.commit),
            web.post("/v1/pause", self.pause),
            web.post("/v1/resume", self.resume),
            web.get("/v1/operations", self.list_operations),
            web.get("/v1/operations/{id}", self.get_operation),
            web.delete("/v1/operations/{id}", self.cancel_operation),
            web.get("/v1/operations/{id}/events", self.follow_operation, allow_head=False),
        ]

    async def _begin(self, call: Coroutine[Any, Any, Operation]) -> web.Response:
        """Answer with an operation that has only been accepted."""
        operation = await self._calls.change(call, self._deadlines.call)
        return json_response(operation, status=202, headers={"Location": f"/v1/operations/{operation.id}"})

    # ------------------------------------------------------------------------------------------ checkpoints

    async def list_checkpoints(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._checkpoints.checkpoints(), self._deadlines.call))

    async def create_checkpoint(self, request: web.Request) -> web.Response:
        from stoker.objects.checkpoints import CheckpointRequest

        Query(request, _NOTHING)
        wish = await read_body(request, CheckpointRequest, timeout=self._deadlines.body)
        return await self._begin(self._checkpoints.create_checkpoint(wish))

    async def get_checkpoint(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._checkpoints.checkpoint(request.match_info["id"])
        return json_response(await self._calls.read(call, self._deadlines.call))

    async def remove_checkpoint(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._checkpoints.remove_checkpoint(request.match_info["id"])
        return json_response(await self._calls.change(call, self._deadlines.call))

    async def verify_checkpoint(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return await self._begin(self._checkpoints.verify_checkpoint(request.match_info["id"]))

    async def restore_checkpoint(self, request: web.Request) -> web.Response:
        from stoker.objects.checkpoints import RestoreRequest

        Query(request, _NOTHING)
        wish = await read_body(request, RestoreRequest, timeout=self._deadlines.body)
        return await self._begin(self._checkpoints.restore(request.match_info["id"], wish))

    # ------------------------------------------------------------------------------------------ clones

    async def list_clones(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._checkpoints.clones(), self._deadlines.call))

    async def create_clones(self, request: web.Request) -> web.Response:
        from stoker.objects.checkpoints import CloneRequest

        Query(request, _NOTHING)
        wish = await read_body(request, CloneRequest, timeout=self._deadlines.body)
        return await self._begin(self._checkpoints.clone(wish))

    async def get_clone(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._checkpoints.clone_status(request.match_info["id"])
        return json_response(await self._calls.read(call, self._deadlines.call))

    async def remove_clone(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._checkpoints.remove_clone(request.match_info["id"])
        return json_response(await self._calls.change(call, self._deadlines.call))

    # ------------------------------------------------------------------------------------------ commits, pauses

    async def commit(self, request: web.Request) -> web.Response:
        from stoker.objects.checkpoints import CommitRequest

        Query(request, _NOTHING)
        wish = await read_body(request, CommitRequest, timeout=self._deadlines.body)
        return await self._begin(self._checkpoints.commit(wish))

    async def pause(self, request: web.Request) -> web.Response:
        from stoker.objects.checkpoints import PauseRequest

        Query(request, _NOTHING)
        wish = await read_body(request, PauseRequest, timeout=self._deadlines.body)
        return json_response(await self._calls.change(self._checkpoints.pause(wish), self._deadlines.call))

    async def resume(self, request: web.Request) -> web.Response:
        from stoker.objects.checkpoints import PauseRequest

        Query(request, _NOTHING)
        wish = await read_body(request, PauseRequest, timeout=self._deadlines.body)
        return json_response(await self._calls.change(self._checkpoints.resume(wish), self._deadlines.call))

    # ------------------------------------------------------------------------------------------ operations

    async def list_operations(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        return json_response(await self._calls.read(self._checkpoints.operations(), self._deadlines.call))

    async def get_operation(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._checkpoints.operation(request.match_info["id"])
        return json_response(await self._calls.read(call, self._deadlines.call))

    async def cancel_operation(self, request: web.Request) -> web.Response:
        Query(request, _NOTHING)
        call = self._checkpoints.cancel_operation(request.match_info["id"])
        return json_response(await self._calls.change(call, self._deadlines.call))

    async def follow_operation(self, request: web.Request) -> web.StreamResponse:
        Query(request, _NOTHING)
        # NotFound while there still is a status line to set.
        call = self._checkpoints.operation(request.match_info["id"])
        identity = (await self._calls.read(call, self._deadlines.call)).id
        return await self._streams.serve(request, lambda: self._checkpoints.follow_operation(identity))
