"""Streams that the other side ends while they are written to: gRPC hides its words now and then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from stokerd.errors import RuntimeNotFound, RuntimeUnavailable
from stokerd.runtime.channel import Wire
from stokerd.uplink.stream import Broken, ended

Handler = Callable[[Any, Any], Awaitable[None]]
TRIES = 60


@asynccontextmanager
async def served(directory: Path, handler: Handler) -> AsyncIterator[Any]:
    """Serve one method; yield what calls it."""
    server = grpc.aio.server()
    methods: dict[str, Any] = {"Call": grpc.stream_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Streams", methods),))
    server.add_insecure_port(f"unix:{directory}/socket")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{directory}/socket") as channel:
            yield channel.stream_stream("/test.Streams/Call")
    finally:
        await server.stop(None)


async def at_once(_requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")


async def after_an_answer(requests: Any, context: Any) -> None:
    async for request in requests:
        await context.write(request)
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")


async def without_a_word(_requests: Any, _context: Any) -> None:
    """The stream ends well, and too early."""


async def messages() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield b"x" * 100_000


async def _talk(call: Any) -> None:
    await call.write(b"x")
    await call.read()
    with contextlib.suppress(asyncio.InvalidStateError):  # it is known that it has ended
        await call.write(b"x")
    await call.read()


@pytest.mark.parametrize("handler", [at_once, after_an_answer])
async def test_an_exchange_that_containerd_ends(tmp_path: Path, handler: Handler) -> None:
    async with served(tmp_path, handler) as method:
        for _ in range(TRIES):
            with pytest.raises((RuntimeNotFound, RuntimeUnavailable)) as caught:
                await Wire(method, 10.0, 10.0).exchange("content.Write", method, messages())
            assert caught.value.message in {"no such thing", "containerd ended content.Write before its end"}


async def test_an_exchange_that_ends_too_early_is_a_loss_or_none(tmp_path: Path) -> None:
    async with served(tmp_path, without_a_word) as method:
        for _ in range(TRIES):
            assert await _ended(Wire(method, 10.0, 10.0).exchange("content.Write", method, messages())) in {
                "",
                "containerd ended content.Write before its end",
            }


async def _ended(exchange: Awaitable[Any]) -> str:
    """Return what an exchange that had no answer says of that."""
    try:
        assert await exchange is None
    except RuntimeUnavailable as error:
        return error.message
    return ""


async def test_a_coordinator_that_ends_a_stream(tmp_path: Path) -> None:
    async with served(tmp_path, after_an_answer) as method:
        for _ in range(TRIES):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _talk(method())
            broken = ended(caught.value)
            assert isinstance(broken, Broken)
            assert broken.message in {
                "NOT_FOUND: no such thing",
                "the coordinator ended the stream while it was written to",
            }
