"""Large blobs that come in pieces, over connections that break."""

from __future__ import annotations

import pytest
from aiohttp import web

from stokerd.registry.content import digest_of
from stokerd.registry.errors import DigestMismatch, ManifestNotFound, NoRegistryEndpoint, RegistryError
from stokerd.registry.fetching import fetch
from stokerd.registry.push_types import Policy
from stokerd.registry.references import parse_reference
from tests.unit.registry.conftest import Connect, Serve
from tests.unit.registry.fakes import FakeServer

APP = parse_reference("quay.io/team/app:v1")
BODY = bytes(range(256)) * 4096
DIGEST = digest_of(BODY)
PATH = f"/v2/team/app/blobs/{DIGEST}"
QUICK = Policy(attempts=3, pause=0.0)


class Blob:
    """Serves the blob, and breaks off after so many bytes of each answer."""

    def __init__(self, *ends: int, body: bytes = BODY, ranges: bool = True) -> None:
        self.ends, self.body, self.ranges = list(ends), body, ranges
        self.asked: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        asked = request.headers.get("Range", "")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        headers = {"Content-Length": str(len(self.body) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        end = self.ends.pop(0) if self.ends else len(self.body)
        await response.write(self.body[start : start + end])
        if start + end < len(self.body):
            assert request.transport is not None
            request.transport.close()
        return response


async def fetched(server: FakeServer, connect: Connect, size: int = len(BODY)) -> bytes:
    return b"".join([piece async for piece in fetch(connect(server.endpoint), APP, DIGEST, size, policy=QUICK)])


@pytest.mark.parametrize("ranges", [True, False])
async def test_it_goes_on_where_it_broke(serve: Serve, connect: Connect, ranges: bool) -> None:
    server, blob = await serve(), Blob(1000, 300_000, 900_000, ranges=ranges)
    server.routes[PATH] = blob
    assert await fetched(server, connect) == BODY
    assert blob.asked[0] == ""
    assert all(each.startswith("bytes=") for each in blob.asked[1:])


async def test_it_ends_when_nothing_comes(serve: Serve, connect: Connect) -> None:
    server, blob = await serve(), Blob(1000, 0, 0, 0, 0)
    server.routes[PATH] = blob
    with pytest.raises(RegistryError):
        await fetched(server, connect)
    assert len(blob.asked) == 3


@pytest.mark.parametrize("body", [BODY + b"x", BODY[:-1] + b"x", b""])
async def test_what_it_is_not_is_refused(serve: Serve, connect: Connect, body: bytes) -> None:
    server = await serve()
    server.routes[PATH] = Blob(body=body)
    with pytest.raises(RegistryError) as caught:
        await fetched(server, connect)
    assert DIGEST in str(caught.value)
    assert isinstance(caught.value, DigestMismatch) or body == b""


async def test_where_it_lies_is_followed(serve: Serve, connect: Connect) -> None:
    server, storage = await serve(), await serve()
    blob = Blob(5000)
    storage.routes["/data"] = blob
    server.redirect(PATH, f"{storage.url}/data?sig=a%2Fb")
    assert await fetched(server, connect) == BODY
    assert len(blob.asked) == 2


async def test_the_next_server_is_asked(serve: Serve, connect: Connect) -> None:
    first, second = await serve(), await serve()
    second.routes[PATH] = Blob()
    pieces = fetch(connect(first.endpoint, second.endpoint), APP, DIGEST, len(BODY), policy=QUICK)
    assert b"".join([piece async for piece in pieces]) == BODY
    with pytest.raises(ManifestNotFound):
        await fetched(first, connect)
    with pytest.raises(NoRegistryEndpoint):
        [piece async for piece in fetch(connect(), APP, DIGEST, len(BODY), policy=QUICK)]
