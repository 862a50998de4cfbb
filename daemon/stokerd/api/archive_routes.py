"""The routes about what leaves the node and what enters it: pushes, pulls, archives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from stokerd.api.calls import Calls, Deadlines
from stokerd.api.errors import UnsupportedMedia
from stokerd.api.ports import ArchivesPort
from stokerd.api.wire import Query, json_response, read_body
from stokerd.errors import StokerError

if TYPE_CHECKING:
    from stoker.objects.checkpoints import Operation

_log = structlog.get_logger("stokerd.api")
_NOTHING: frozenset[str] = frozenset()
_IMPORT = frozenset({"like", "trust", "name"})
_ARCHIVE = "application/zstd"
_TAKEN = frozenset({_ARCHIVE, "application/x-tar", "application/octet-stream"})
_PIECE = 1 << 20


class ArchiveHandlers:
    """One method per route."""

    def __init__(self, archives: ArchivesPort, calls: Calls, deadlines: Deadlines) -> None:
        self._archives = archives
        self._calls = calls
        self._deadlines = deadlines

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        return [
            web.post("/v1/images/push", self.push_image),
            web.post("/v1/checkpoints/pull", self.pull_checkpoint),
            web.post("/v1/checkpoints/import", self.import_checkpoint),
            web.post("/v1/checkpoints/{id}/push", self.push_checkpoint),
            web.get("/v1/checkpoints/{id}/archive", self.export_checkpoint, allow_head=False),
        ]

    async def _begin(self, call: Coroutine[Any, Any, Operation]) -> web.Response:
        """Answer with an operation that has only been accepted."""
        operation = await self._calls.change(call, self._deadlines.call)
        return json_response(operation, status=202, headers={"Location": f"/v1/operations/{operation.id}"})

    async def push_image(self, request: web.Request) -> web.Response:
        from stoker.objects.archives import ImagePushRequest

        Query(request, _NOTHING)
        wish = await read_body(request, ImagePushRequest, timeout=self._deadlines.body)
        return await self._begin(self._archives.push_image(wish))

    async def push_checkpoint(self, request: web.Request) -> web.Response:
        from stoker.objects.archives import CheckpointPushRequest

        Query(request, _NOTHING)
        wish = await read_body(request, CheckpointPushRequest, timeout=self._deadlines.body)
        return await self._begin(self._archives.push_checkpoint(request.match_info["id"], wish))

    async def pull_checkpoint(self, request: web.Request) -> web.Response:
        from stoker.objects.archives import CheckpointPullRequest

        Query(request, _NOTHING)
        wish = await read_body(request, CheckpointPullRequest, timeout=self._deadlines.body)
        return await self._begin(self._archives.pull_checkpoint(wish))

    async def import_checkpoint(self, request: web.Request) -> web.Response:
        """Take the archive as it comes; a client that goes away takes it back."""
        query = Query(request, _IMPORT)
        if request.content_type not in _TAKEN:
            raise UnsupportedMedia(
                f"content type {request.content_type!r} is not supported", hint=f"send Content-Type: {_ARCHIVE}"
            )
        made = await self._archives.import_checkpoint(
            _pieces(request), query.optional("like") or "", query.optional("name") or "", trust=query.flag("trust")
        )
        return json_response(made, status=201)

    async def export_checkpoint(self, request: web.Request) -> web.StreamResponse:
        """Give the archive as it is made; one that breaks off has no end, which whoever reads it notices."""
        Query(request, _NOTHING)
        pieces: AsyncGenerator[bytes, None] = self._archives.export_checkpoint(request.match_info["id"])
        async with aclosing(pieces):
            first = await anext(pieces, b"")  # a refusal comes while there still is a status line to set
            response = web.StreamResponse(headers={"Content-Type": _ARCHIVE})
            await response.prepare(request)
            await response.write(first)
            try:
                async for piece in pieces:
                    await response.write(piece)
            except StokerError as error:
                _log.warning("an export broke off", why=error.message)
                if request.transport is not None:
                    request.transport.abort()
                return response
            await response.write_eof()
        return response


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    async for piece in request.content.iter_chunked(_PIECE):
        yield piece
