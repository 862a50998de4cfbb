"""Which servers are asked, and connections that fail, hang, break and are given up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from stokerd.errors import ConfigError
from stokerd.registry.client import RegistryClient
from stokerd.registry.content import DOCKER_MANIFEST, OCI_INDEX
from stokerd.registry.errors import (
    ManifestNotFound,
    NoRegistryEndpoint,
    RegistryError,
    RegistryProtocol,
    RegistryTimeout,
    RegistryUnreachable,
)
from stokerd.registry.hosts import RegistryEndpoint
from stokerd.registry.references import Reference, parse_reference
from tests.unit.deadlines import passes_when
from tests.unit.registry.conftest import QUICK, Connect, Serve
from tests.unit.registry.fakes import FakeServer, digest, manifest

TAG = "/v2/team/app/manifests/v1"
BODY = manifest()
DIGEST = digest(BODY)
PINNED = f"/v2/team/app/manifests/{DIGEST}"
BLOB = f"/v2/team/app/blobs/{DIGEST}"
APP = parse_reference("quay.io/team/app:v1")


def blob_of(client: RegistryClient, *, limit: int = 1 << 20) -> Any:
    return client.fetch_blob(APP, DIGEST, limit)


# ---------------------------------------------------------------------------------------------- mirrors


async def test_servers_are_asked_in_turn(serve: Serve, connect: Connect) -> None:
    refused, mirror, registry = await serve(), await serve(), await serve()
    for server in (refused, mirror, registry):
        server.put(TAG, BODY)
        server.put(BLOB, BODY)
    await refused.stop()
    mirror.put(BLOB, b"not the blob")
    mirrors = [replace(server.endpoint, namespace="quay.io") for server in (refused, mirror)]
    client = connect(*mirrors, registry.endpoint)
    resolved = await client.resolve(APP)
    assert resolved.endpoint == f"{mirror.url}/v2"
    assert mirror.seen[0].query == {"ns": ["quay.io"]}
    assert registry.seen == []
    assert await blob_of(client) == BODY
    assert registry.seen[0].query == {}


async def test_mirrors_that_may_not_resolve_are_asked_for_digests_only(serve: Serve, connect: Connect) -> None:
    mirror, registry = await serve(), await serve()
    for server in (mirror, registry):
        server.put(TAG, BODY)
        server.put(PINNED, BODY)
    client = connect(replace(mirror.endpoint, capabilities=frozenset({"pull"})), registry.endpoint)
    assert (await client.resolve(APP)).endpoint.startswith(registry.url)
    assert (await client.fetch_manifest(APP, DIGEST)).endpoint.startswith(mirror.url)


async def test_the_registrys_own_failure_counts_and_the_mirrors_are_told(serve: Serve, connect: Connect) -> None:
    mirror, registry = await serve(), await serve()
    mirror.refuse(TAG, 500)
    with pytest.raises(ManifestNotFound) as caught:
        await connect(replace(mirror.endpoint, namespace="quay.io"), registry.endpoint).resolve(APP)
    assert caught.value.status == 404
    assert f"asked before: {mirror.host}: it has trouble of its own (HTTP 500)" in caught.value.message


async def test_without_a_capable_server_nothing_is_asked(serve: Serve, connect: Connect) -> None:
    server = await serve()
    for endpoints in ((), (replace(server.endpoint, capabilities=frozenset({"push"})),)):
        with pytest.raises(NoRegistryEndpoint, match="pull and resolve"):
            await connect(*endpoints).resolve(APP)
    assert server.seen == []


async def test_a_broken_configuration_is_raised_as_it_is() -> None:
    def hosts(_: str) -> tuple[RegistryEndpoint, ...]:
        raise ConfigError("/etc/hosts.toml", ["line 3"])

    async with RegistryClient(hosts=hosts) as client:
        with pytest.raises(ConfigError):
            await client.resolve(APP)


async def test_paths_of_endpoints_and_their_headers_are_used(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put("/v2/proxy/team/app/manifests/v1", BODY, content_type=DOCKER_MANIFEST)
    endpoint = replace(server.endpoint, path="/v2/proxy", namespace="quay.io:5000", header=(("X-A", "1"), ("X-A", "2")))
    await connect(endpoint).resolve(APP)
    (seen,) = server.seen
    assert seen.query == {"ns": ["quay.io:5000"]}
    assert seen.headers.getall("X-A") == ["1", "2"]  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- connections


def assert_idle(client: RegistryClient) -> None:
    session = client._transport._session
    assert session is not None
    assert session.connector is not None
    assert not session.connector._acquired


def breaks(server: FakeServer, path: str, *, times: int, after: bytes = b"") -> None:
    """Drop the connection of the first *times* requests, with *after* of an answer sent."""
    left = times

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal left
        left -= 1
        if left < 0:
            return web.Response(body=BODY, content_type=OCI_INDEX)
        assert request.transport is not None
        if after:
            response = web.StreamResponse(headers={"Content-Length": str(len(BODY)), "Content-Type": OCI_INDEX})
            await response.prepare(request)
            await response.write(after)
        request.transport.abort() if not after else request.transport.close()
        return web.Response()

    server.routes[path] = handler


@pytest.mark.parametrize("after", [b"", BODY[:5]])
async def test_a_connection_that_breaks_is_made_again_twice(serve: Serve, connect: Connect, after: bytes) -> None:
    server = await serve()
    breaks(server, TAG, times=2, after=after)
    assert (await connect(server.endpoint).resolve(APP)).body == BODY
    assert len(server.seen) == 3
    client = connect(server.endpoint)
    breaks(server, TAG, times=100, after=after)
    with pytest.raises(RegistryUnreachable, match="connection broke") as caught:
        await client.resolve(APP)
    assert caught.value.retryable
    # Three tries, each of which aiohttp makes twice where nothing of an answer came.
    assert len(server.seen) == 3 + (3 if after else 6)
    assert_idle(client)


async def test_nobody_listens(serve: Serve, connect: Connect) -> None:
    server = await serve()
    await server.stop()
    with pytest.raises(RegistryUnreachable, match="Connect") as caught:
        await connect(server.endpoint).resolve(APP)
    assert type(caught.value) is RegistryUnreachable


@pytest.mark.parametrize(
    ("host", "kind"),
    [("registry.invalid", RegistryUnreachable), ("a" * 64 + ".invalid", RegistryProtocol), ("a..b", RegistryProtocol)],
)
async def test_hosts_that_do_not_exist(connect: Connect, host: str, kind: type[RegistryError]) -> None:
    with pytest.raises((kind, RegistryUnreachable)) as caught:
        await connect(RegistryEndpoint("https", host)).resolve(Reference(host, "team/app", "v1"))
    assert host in str(caught.value)


async def test_what_is_not_http_is_refused(connect: Connect) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RegistryError) as caught:
            await connect(RegistryEndpoint("http", f"127.0.0.1:{port}")).resolve(APP)
    assert isinstance(caught.value, RegistryProtocol)


@pytest.mark.parametrize("first", [b"", b"{"])
async def test_a_server_that_hangs_meets_the_deadline(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    server = await serve()
    server.hang(TAG, first)
    client = connect(server.endpoint)
    passes_when(monkeypatch, server.entered.is_set)
    with pytest.raises(RegistryTimeout, match="no answer within 20 s") as caught:
        await client.resolve(APP)
    assert caught.value.retryable
    await server.gone.wait()
    assert_idle(client)


async def test_a_mirror_that_hangs_leaves_time_for_the_next(serve: Serve, connect: Connect) -> None:
    mirror, registry = await serve(), await serve()
    mirror.hang(TAG)
    registry.put(TAG, BODY)
    client = connect(mirror.endpoint, registry.endpoint, timeouts=replace(QUICK, read=0.2))
    resolving = asyncio.create_task(client.resolve(APP))
    entering = asyncio.create_task(mirror.entered.wait())
    await asyncio.wait({resolving, entering}, return_when=asyncio.FIRST_COMPLETED)
    client._transport.timeouts = QUICK  # for the registry: it need not be as quick
    assert (await resolving).endpoint.startswith(registry.url)
    entering.cancel()


@pytest.mark.parametrize("first", [b"", b"{"])
async def test_cancelling_leaves_neither_task_nor_connection(serve: Serve, connect: Connect, first: bytes) -> None:
    server = await serve()
    server.hang(TAG, first)
    server.put(BLOB, BODY)
    client = connect(server.endpoint)
    before = asyncio.all_tasks()
    task = asyncio.create_task(client.resolve(APP))
    await server.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.gone.wait()
    assert_idle(client)
    assert {task for task in asyncio.all_tasks() - before if "RequestHandler" not in repr(task)} == set()
    assert await blob_of(client) == BODY


async def test_many_at_once(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    client = connect(server.endpoint)
    assert len(await asyncio.gather(*(client.resolve(APP) for _ in range(60)))) == 60
    assert_idle(client)


async def test_a_closed_client_asks_nobody(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    client = connect(server.endpoint)
    await client.resolve(APP)
    await client.aclose()
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await client.resolve(APP)
    assert len(server.seen) == 1
