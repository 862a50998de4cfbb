"""Asking UFM over HTTP: credentials, limits, refusals, cancellation."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from stoker_coordinator.hypernodes.sources.ufm import PATH
from stoker_coordinator.hypernodes.sources.ufm_client import Credentials, UfmError, fetch

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECRET = "hunter2"


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            yield f"http://127.0.0.1:{port}/", session
    finally:
        await runner.cleanup()


async def password() -> Credentials:
    return Credentials("admin", SECRET)


async def ask(handler: Handler, credentials: Callable[[], Awaitable[Credentials]] = password, **more: object) -> bytes:
    async with serving(handler) as (endpoint, session):
        return await fetch(session, endpoint, credentials, **more)  # type: ignore[arg-type]


async def test_the_answer_comes_for_user_and_password() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.path == PATH
        assert request.headers["Authorization"] == "Basic " + base64.b64encode(b"admin:hunter2").decode()
        return web.Response(text="[]")

    assert await ask(handler) == b"[]"


async def test_tokens_have_their_own_path_and_are_read_each_time() -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers["Authorization"]))
        return web.Response(text="[]")

    tokens = iter(("one", "two"))

    async def token() -> Credentials:
        return Credentials(token=next(tokens))

    async with serving(handler) as (endpoint, session):
        await fetch(session, endpoint, token)
        await fetch(session, endpoint, token)
    assert seen == [("/ufmRestV3/resources/ports", "Basic one"), ("/ufmRestV3/resources/ports", "Basic two")]


@pytest.mark.parametrize(
    ("status", "told"), [(401, "refuses the credentials"), (403, "refuses"), (500, "status 500"), (302, "status 302")]
)
async def test_refusals_say_why_and_hold_no_secret(status: int, told: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "http://127.0.0.1:1/"}, text=SECRET)

    with pytest.raises(UfmError, match=told) as caught:
        await ask(handler)
    assert SECRET not in str(caught.value)


async def test_an_endless_answer_ends() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 65536)
        except ConnectionError:
            return response

    with pytest.raises(UfmError, match="longer than 1 MiB"):
        await ask(handler, limit=1 << 20)


async def test_who_does_not_answer_in_time_has_failed() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(UfmError, match=r"within 0.2 s"):
        await ask(handler, timeout=0.2)


async def test_it_can_be_cancelled() -> None:
    asked = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handler) as (endpoint, session):
        task = asyncio.create_task(fetch(session, endpoint, password), name="fetch")
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "nonsense", "http://[", ""])
async def test_where_nobody_is(endpoint: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(UfmError):
            await fetch(session, endpoint, password)
