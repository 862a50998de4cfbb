"""A registry that takes pushes, over real HTTP, and breaks where it is told to."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Literal, Self

from aiohttp import web

from stokerd.registry.hosts import RegistryEndpoint

Kind = Literal["spec", "docker"]


@dataclass
class Session:
    """``known`` is what the client has been told that it has; docker-registry has no more, or none at all."""

    data: bytearray = field(default_factory=bytearray)
    known: int = 0


@dataclass
class PushRegistry:
    """``kind``: as the specification says, or as docker-registry does. ``breaks``: at the n-th PATCH or PUT of an
    upload, the connection is reset after so many bytes, which are kept. ``answers`` stand for a request's own, by its
    method and the end of its path, each used once. ``guard``: a challenge, and the Authorization that meets it."""

    kind: Kind = "spec"
    chunks: bool = True
    blobs: dict[str, bytes] = field(default_factory=dict)
    elsewhere: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    breaks: dict[int, int] = field(default_factory=dict)
    lost_answers: set[int] = field(default_factory=set)
    answers: dict[tuple[str, str], list[web.Response]] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    taken: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    hang: bool = False
    guard: tuple[str, str] | None = None
    host: str = ""
    _sends: int = 0
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/v2/{repository:.+}/{kind:blobs|manifests}/{target:.*}", self._handle)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def endpoint(self) -> RegistryEndpoint:
        return RegistryEndpoint("http", self.host)

    def requests(self, method: str, part: str = "") -> int:
        return sum(1 for how, path in self.seen if how == method and part in path)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path_qs))
        if self.guard is not None and request.headers.get("Authorization") != self.guard[1]:
            return web.Response(status=401, headers={"WWW-Authenticate": self.guard[0]})
        for (method, end), waiting in self.answers.items():
            if method == request.method and request.path.endswith(end) and waiting:
                return waiting.pop(0)
        target, kind = request.match_info["target"], request.match_info["kind"]
        if kind == "manifests":
            return await self._manifest(request, target)
        if not target.startswith("uploads/"):
            there = target in self.blobs
            return web.Response(body=self.blobs[target]) if there else web.Response(status=404)
        name = target.removeprefix("uploads/")
        return await (self._session(request, name) if name else self._begin(request))

    async def _manifest(self, request: web.Request, target: str) -> web.Response:
        if request.method == "PUT":
            body = await request.read()
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            self.manifests[target] = self.manifests[digest] = (request.content_type, body)
            return web.Response(status=201, headers={"Docker-Content-Digest": digest})
        if target not in self.manifests:
            return web.Response(status=404)
        content_type, body = self.manifests[target]
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        headers = {"Docker-Content-Digest": digest, "Content-Type": content_type}
        return web.Response(body=body, headers=headers)

    async def _begin(self, request: web.Request) -> web.Response:
        mount, source = request.query.get("mount", ""), request.query.get("from", "")
        if (source, mount) in self.elsewhere:
            self.blobs[mount] = self.elsewhere[source, mount]
            return web.Response(status=201)
        name = str(len(self.sessions) + 1)
        self.sessions[name] = Session()
        return web.Response(status=202, headers={"Location": self._location(request, name), "Range": "0-0"})

    def _location(self, request: web.Request, name: str) -> str:
        known = f"?known={self.sessions[name].known}" if self.kind == "docker" else ""
        return f"/v2/{request.match_info['repository']}/blobs/uploads/{name}{known}"

    async def _session(self, request: web.Request, name: str) -> web.StreamResponse:
        session = self.sessions.get(name)
        if session is None:
            return web.Response(status=404)
        if self.kind == "docker" and request.query.get("known") != str(len(session.data)):
            del self.sessions[name]
            return web.Response(status=404)
        if request.method == "GET":
            return self._state(request, name, 204)
        if (
            request.method == "PATCH"
            and not self.chunks
            and request.headers.get("Content-Range", "0").split("-")[0] != "0"
        ):
            return web.Response(status=416)
        self._sends += 1
        await self._take(request, session, self.breaks.get(self._sends))
        if request.method == "PATCH":
            session.known = len(session.data)
        elif f"sha256:{hashlib.sha256(session.data).hexdigest()}" != request.query["digest"]:
            return web.json_response({"errors": [{"code": "DIGEST_INVALID"}]}, status=400)
        else:
            self.blobs[request.query["digest"]] = bytes(self.sessions.pop(name).data)
        if self._sends in self.lost_answers:
            _reset(request)
        return self._state(request, name, 202) if request.method == "PATCH" else web.Response(status=201)

    def _state(self, request: web.Request, name: str, status: int) -> web.Response:
        end = len(self.sessions[name].data) - 1
        if self.kind == "docker" and request.method == "GET":
            end = 0
        return web.Response(status=status, headers={"Location": self._location(request, name), "Range": f"0-{end}"})

    async def _take(self, request: web.Request, session: Session, end: int | None) -> None:
        count = 0
        while piece := await request.content.readany():
            if self.hang:
                await asyncio.Event().wait()
            keep = piece if end is None else piece[: end - count]
            session.data += keep
            count += len(keep)
            self.taken += len(keep)
            if end is not None and count >= end:
                _reset(request)


def _reset(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
    raise asyncio.CancelledError
