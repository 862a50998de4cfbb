"""Hooks and probes over the network, against servers that are not friendly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from stokerd.containers import network
from stokerd.containers.hooks import HttpHook

HOST = "127.0.0.1"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[int]:
    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(whole, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def answering(answer: bytes, seen: list[bytes] | None = None) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head)
        writer.write(answer)
        await writer.drain()

    return serve


async def closed_port() -> int:
    async with served(answering(b"")) as port:
        return port


async def test_a_request_is_what_it_should_be() -> None:
    seen: list[bytes] = []
    async with served(answering(b"HTTP/1.1 204 No Content\r\n\r\n", seen)) as port:
        hook = HttpHook(port, "/stop?x=1", False, (("X-Why", "because"), ("Connection", "keep-alive")))
        assert await network.get(HOST, hook, timeout=5) == ""
    lines = seen[0].decode().split("\r\n")
    assert lines[0] == "GET /stop?x=1 HTTP/1.1"
    assert set(lines[1:-2]) == {
        "X-Why: because", f"Host: {HOST}:{port}", "User-Agent: stoker", "Accept: */*", "Connection: close"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 302 Found\r\n\r\n", ""),
        (b"HTTP/1.0 500 Oh\r\n\r\n", "it was answered with status 500"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is no HTTP"),
        (b"HTTP/1.1 abc\r\n", "the answer is no HTTP"),
        (b"", "the answer is no HTTP"),
        (b"x" * 100_000, "the answer is no HTTP"),
    ],
)
async def test_answers(answer: bytes, problem: str) -> None:
    async with served(answering(answer)) as port:
        assert await network.get(HOST, HttpHook(port, "/", False, ()), timeout=5) == problem


async def test_what_does_not_answer_is_given_up() -> None:
    done = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await done.wait()

    async with served(silent) as port:
        problem = await network.get(HOST, HttpHook(port, "/", False, ()), timeout=0.05)
        assert problem == f"port {port} did not answer within 0.05 s"
        assert await network.connects(HOST, port, timeout=5) == ""
        done.set()


async def test_a_port_that_nobody_listens_on() -> None:
    port = await closed_port()
    assert "refused" in (await network.get(HOST, HttpHook(port, "/", False, ()), timeout=5)).lower()
    assert "refused" in (await network.connects(HOST, port, timeout=5)).lower()


async def test_tls_with_what_speaks_none() -> None:
    async with served(answering(b"HTTP/1.1 200 OK\r\n\r\n")) as port:
        assert await network.get(HOST, HttpHook(port, "/", True, ()), timeout=0.5)
