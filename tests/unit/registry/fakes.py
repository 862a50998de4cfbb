"""A real HTTP server on loopback that plays a registry, a token server or storage."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from aiohttp import web

from stokerd.registry.content import OCI_INDEX
from stokerd.registry.hosts import RegistryEndpoint

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def manifest(**fields: Any) -> bytes:
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [], **fields})


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def authorization(self) -> str | None:
        return self.headers.get("Authorization")


@dataclass
class FakeServer:
    """Answers by path; what it does not know is 404. ``gone`` is set when a client leaves a handler that hangs."""

    tls: ssl.SSLContext | None = None
    routes: dict[str, Handler] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    host: str = ""
    _runner: web.AppRunner | None = None

    async def start(self) -> Self:
        application = web.Application(client_max_size=1 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls).start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}"

    @property
    def endpoint(self) -> RegistryEndpoint:
        return RegistryEndpoint("https" if self.tls else "http", self.host)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = {key: list(request.query.getall(key)) for key in request.query}
        self.seen.append(Seen(request.method, request.path, query, request.headers, await request.read()))
        handler = self.routes.get(request.path)
        if handler is None:
            return refusal(404, "MANIFEST_UNKNOWN", "manifest unknown")
        return await handler(request)

    def put(self, path: str, body: bytes, *, content_type: str = OCI_INDEX, **headers: str) -> str:
        """Serve *body* under *path* and return its digest."""

        async def handler(_: web.Request) -> web.Response:
            return web.Response(body=body, headers={"Content-Type": content_type, **headers})

        self.routes[path] = handler
        return digest(body)

    def refuse(self, path: str, status: int, code: str = "", **headers: str) -> None:
        async def handler(_: web.Request) -> web.Response:
            return refusal(status, code, "no", **headers)

        self.routes[path] = handler

    def redirect(self, path: str, location: str, status: int = 307) -> None:
        async def handler(_: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": location})

        self.routes[path] = handler

    def hang(self, path: str, first: bytes = b"") -> None:
        """Never finish answering; with *first*, begin to."""

        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": OCI_INDEX})
            try:
                if first:
                    await response.prepare(request)
                    await response.write(first)
                self.entered.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.gone.set()
                raise
            return response

        self.routes[path] = handler

    def guard(self, path: str, challenge: str, *accepted: str) -> None:
        """Answer *path* as before, but only for one of the *accepted* Authorization headers."""
        inner = self.routes[path]

        async def handler(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") in accepted:
                return await inner(request)
            return refusal(401, "UNAUTHORIZED", "authentication required", **{"WWW-Authenticate": challenge})

        self.routes[path] = handler

    def tokens(self, path: str, grants: Mapping[str | None, dict[str, Any]]) -> None:
        """Serve tokens for Authorization headers, or for the refresh token of a form; others are refused."""

        async def handler(request: web.Request) -> web.Response:
            form = await request.post() if request.method == "POST" else {}
            who = str(form["refresh_token"]) if "refresh_token" in form else request.headers.get("Authorization")
            if who not in grants:
                return refusal(401, "UNAUTHORIZED", "incorrect username or password")
            return web.json_response(grants[who])

        self.routes[path] = handler


def refusal(status: int, code: str, message: str, **headers: str) -> web.Response:
    body = msgspec.json.encode({"errors": [{"code": code, "message": message}]}) if code else b""
    return web.Response(status=status, body=body, headers=headers)
