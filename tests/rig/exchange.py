"""One request through the fault proxy and the answer to it, as the plan of its faults says."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.rig.faults import Plan, Status
from tests.rig.tokenauth import TOKEN_PATH, TokenAuth

HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
CHUNK = 64 << 10
TICK = 0.02


@dataclass
class RequestRecord:
    """One request as the proxy saw it; `status`, `bytes` and `done` change while it is answered."""

    method: str
    path: str
    query: str
    range: str | None
    has_authorization: bool
    started: float = field(default_factory=time.monotonic)
    # 0 until an answer begins, and for good when none does.
    status: int = 0
    # Bytes of the body that were sent.
    bytes: int = 0
    # Bytes of the request's own body.
    received: int = 0
    done: bool = False


class Desk(Protocol):
    """What an exchange needs of its proxy."""

    upstream: str
    auth: TokenAuth | None

    @property
    def address(self) -> str: ...
    def plan_for(self, request: web.BaseRequest) -> Plan: ...
    def note(self, record: RequestRecord | None = None) -> None: ...


class Exchange:
    """One request and its answer."""

    def __init__(self, proxy: Desk, session: aiohttp.ClientSession, request: web.BaseRequest) -> None:
        self.proxy, self.session, self.request = proxy, session, request
        self.authorization = request.headers.get("Authorization", "")
        self.record = RequestRecord(
            method=request.method,
            path=request.path,
            query=request.query_string,
            range=request.headers.get("Range"),
            has_authorization=bool(self.authorization),
        )
        self.plan = proxy.plan_for(request)
        proxy.note(self.record)

    async def answer(self) -> web.StreamResponse:
        try:
            return await self._answer()
        finally:
            self.record.done = True
            self.proxy.note()

    async def _answer(self) -> web.StreamResponse:
        plan = self.plan
        if plan.delay:
            await asyncio.sleep(plan.delay)
        if plan.hang:
            await asyncio.Event().wait()
        await self._gates_at(0)
        if plan.status is not None:
            return await self._own(Status(plan.status, plan.headers, plan.body))
        auth = self.proxy.auth
        if auth is not None:
            if self.request.path == TOKEN_PATH:
                form = await self.request.read()
                code, headers, body = auth.answer(self.request.method, self.record.query, self.authorization, form)
                return await self._own(Status(code, headers, body))
            if not auth.admits(self.request.path, self.authorization):
                challenge = auth.challenge(self.request.path, f"http://{self.proxy.address}")
                return await self._own(Status(401, {"Www-Authenticate": challenge}))
        return await self._forward()

    async def _own(self, status: Status) -> web.StreamResponse:
        """An answer that the registry has no part in."""
        plan = Plan()
        status.apply(plan)
        headers = {"Content-Type": "application/json", **plan.headers}
        response = web.Response(status=status.code, headers=headers, body=plan.body)
        self.record.status, self.record.bytes = status.code, len(plan.body)
        await response.prepare(self.request)
        await response.write_eof()
        return response

    async def _forward(self) -> web.StreamResponse:
        headers = _passed_on(self.request.headers)
        if self.plan.ignore_range:
            headers.popall("Range", None)
        if self.proxy.auth is not None:
            headers.popall("Authorization", None)
        url = URL(f"{self.proxy.upstream}{self.request.raw_path}", encoded=True)
        if self.plan.cut_before:
            async for _ in self._body():
                """It comes to nobody."""
            await self._reset()
            return web.Response()
        body = self._body() if self.request.can_read_body else None
        try:
            async with self.session.request(
                self.request.method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                skip_auto_headers=NOT_ADDED,
            ) as upstream:
                return await self._relay(upstream)
        except aiohttp.ClientError:
            # The registry is not there, or went away in the middle: so does the connection.
            await self._reset()
            raise

    async def _body(self) -> AsyncIterator[bytes]:
        """The body of the request, up to where it is cut off."""
        async for big in self.request.content.iter_chunked(CHUNK):
            piece, left = big, self.plan.cut_at
            if left is not None:
                piece = big[: max(0, left - self.record.received)]
            self.record.received += len(piece)
            yield piece
            if left is not None and self.record.received >= left:
                if not self.plan.cut_before:
                    raise aiohttp.ClientError("cut off")
                return

    async def _relay(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        plan = self.plan
        headers = _passed_on(upstream.headers)
        if plan.ignore_range:
            headers.popall("Accept-Ranges", None)
        if plan.truncate_at is not None and plan.honest_length and "Content-Length" in headers:
            headers["Content-Length"] = str(min(plan.truncate_at, int(headers["Content-Length"])))
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        self.record.status = upstream.status
        await response.prepare(self.request)
        if self.request.method != "HEAD":
            async for piece in self._pieces(upstream):
                await response.write(piece)
                self.record.bytes += len(piece)
                self.proxy.note()
                await self._gates_at(self.record.bytes)
        if plan.end is not None and self.request.method != "HEAD" and self.record.bytes >= plan.end:
            if plan.reset_after is not None and plan.end == plan.reset_after:
                await self._reset()
                return response
            if not plan.honest_length:
                await self._sent()
                if self.request.transport is not None:
                    self.request.transport.close()
                return response
        await response.write_eof()
        return response

    async def _pieces(self, upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The body in pieces that end where something is to happen, paced."""
        plan, sent, began = self.plan, 0, time.monotonic()
        stops = sorted({at for at, _ in plan.gates if at} | ({plan.end} if plan.end is not None else set()))
        size = CHUNK if plan.rate is None else max(1, min(CHUNK, int(plan.rate * TICK)))
        if plan.end == 0:
            return
        async for big in upstream.content.iter_chunked(CHUNK):
            rest = big
            while rest:
                limit = next((at for at in stops if at > sent), sent + size) - sent
                piece, rest = rest[: min(size, limit)], rest[min(size, limit) :]
                yield _flipped(piece, plan.flip_at, sent)
                sent += len(piece)
                if plan.end is not None and sent >= plan.end:
                    return
                if plan.rate is not None:
                    await asyncio.sleep(max(0.0, began + sent / plan.rate - time.monotonic()))

    async def _gates_at(self, count: int) -> None:
        for at, gate in self.plan.gates:
            if at == count:
                await self._sent()
                await gate.pass_through()

    async def _sent(self, timeout: float = 2.0) -> None:
        """Wait until the kernel has delivered what was written: a reset throws the rest away."""
        transport = self.request.transport
        deadline = time.monotonic() + timeout
        while transport is not None and not transport.is_closing() and time.monotonic() < deadline:
            if transport.get_write_buffer_size() == 0 and _unsent(transport.get_extra_info("socket")) == 0:
                return
            await asyncio.sleep(0.002)

    async def _reset(self) -> None:
        await self._sent()
        transport = self.request.transport
        if transport is None:
            return
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    made = CIMultiDict(headers)
    for name in HOP_BY_HOP:
        made.popall(name, None)
    return made


def _flipped(piece: bytes, at: int | None, begin: int) -> bytes:
    if at is None or not begin <= at < begin + len(piece):
        return piece
    changed = bytearray(piece)
    changed[at - begin] ^= 0xFF
    return bytes(changed)


def _unsent(connection: Any) -> int:
    with contextlib.suppress(OSError, AttributeError, ValueError):
        return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)
    return 0
