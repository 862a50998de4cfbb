"""Manifests and blobs from a real server: content, refusals and redirects."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from stokerd.errors import InvalidInput
from stokerd.registry.client import RegistryClient
from stokerd.registry.content import MANIFEST_TYPES, OCI_INDEX, Descriptor
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import (
    DigestMismatch,
    ManifestNotFound,
    RateLimited,
    RegistryDenied,
    RegistryError,
    RegistryProtocol,
    RegistryUnauthorized,
    RegistryUnavailable,
    UnsupportedMediaType,
)
from stokerd.registry.references import parse_reference
from stokerd.registry.transport import MAX_REDIRECTS
from tests.unit.registry.conftest import Connect, Serve
from tests.unit.registry.fakes import digest, manifest

TAG = "/v2/team/app/manifests/v1"
BODY = manifest()
DIGEST = digest(BODY)
PINNED = f"/v2/team/app/manifests/{DIGEST}"
BLOB = f"/v2/team/app/blobs/{DIGEST}"
APP = parse_reference("quay.io/team/app:v1")


def blob_of(client: RegistryClient, *, limit: int = 1 << 20) -> Any:
    return client.fetch_blob(APP, DIGEST, limit)


# ---------------------------------------------------------------------------------------------- content


async def test_a_tag_becomes_a_descriptor_and_its_bytes(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY, **{"Docker-Content-Digest": DIGEST})
    resolved = await connect(server.endpoint).resolve(APP)
    assert resolved.descriptor == Descriptor(OCI_INDEX, DIGEST, len(BODY))
    assert resolved.body == BODY
    assert (resolved.endpoint, resolved.credential) == (f"{server.url}/v2", "anonymous")
    (seen,) = server.seen
    assert set(seen.headers["Accept"].split(", ")) == set(MANIFEST_TYPES)
    assert seen.headers["Accept-Encoding"] == "identity"
    assert seen.headers["User-Agent"] == "stoker"
    assert seen.authorization is None
    assert seen.query == {}


async def test_without_the_header_the_digest_is_that_of_the_bytes(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    assert (await connect(server.endpoint).resolve(APP)).descriptor.digest == DIGEST


async def test_a_digest_is_asked_for_and_checked(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(PINNED, BODY)
    client = connect(server.endpoint)
    pinned = structs.replace(APP, digest=DIGEST)
    assert (await client.resolve(pinned)).descriptor.digest == DIGEST
    assert (await client.fetch_manifest(APP, DIGEST)).body == BODY
    assert [seen.path for seen in server.seen] == [PINNED, PINNED]
    server.put(PINNED, BODY + b" ")
    with pytest.raises(DigestMismatch, match=DIGEST):
        await client.resolve(pinned)


async def test_other_algorithms_are_checked_too(serve: Serve, connect: Connect) -> None:
    server = await serve()
    sha512 = f"sha512:{hashlib.sha512(BODY).hexdigest()}"
    server.put(f"/v2/team/app/manifests/{sha512}", BODY, **{"Docker-Content-Digest": sha512})
    server.put(TAG, BODY, **{"Docker-Content-Digest": sha512})
    client = connect(server.endpoint)
    assert (await client.fetch_manifest(APP, sha512)).descriptor.digest == sha512
    assert (await client.resolve(APP)).descriptor.digest == sha512


@pytest.mark.parametrize(
    ("header", "kind"),
    [("sha256:" + "0" * 64, DigestMismatch), ("sha256:abc", RegistryProtocol), ("x", RegistryProtocol)],
)
async def test_a_wrong_digest_header_is_refused(
    serve: Serve, connect: Connect, header: str, kind: type[RegistryError]
) -> None:
    server = await serve()
    server.put(TAG, BODY, **{"Docker-Content-Digest": header})
    with pytest.raises(kind):
        await connect(server.endpoint).resolve(APP)


@pytest.mark.parametrize(
    ("body", "content_type", "kind"),
    [
        (b'{"schemaVersion":1}', "application/vnd.docker.distribution.manifest.v1+json", UnsupportedMediaType),
        (b"<html>login</html>", "text/html", RegistryProtocol),
        (b'{"mediaType":"text/x"}', "application/json", UnsupportedMediaType),
        (b"", OCI_INDEX, RegistryProtocol),
    ],
)
async def test_what_is_no_manifest_is_refused(
    serve: Serve, connect: Connect, body: bytes, content_type: str, kind: type[RegistryError]
) -> None:
    server = await serve()
    server.put(TAG, body, content_type=content_type)
    with pytest.raises(kind) as caught:
        await connect(server.endpoint).resolve(APP)
    assert caught.value.subject.repository == "quay.io/team/app"


async def test_a_blob_is_bytes_with_its_digest(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(BLOB, BODY, content_type="application/octet-stream")
    client = connect(server.endpoint)
    assert await blob_of(client) == BODY
    assert await blob_of(client, limit=len(BODY)) == BODY
    server.put(BLOB, b"other")
    with pytest.raises(DigestMismatch):
        await blob_of(client)


@pytest.mark.parametrize("chunked", [False, True])
async def test_what_is_too_large_is_refused(serve: Serve, connect: Connect, chunked: bool) -> None:
    server = await serve()

    async def large(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": OCI_INDEX})
        if not chunked:
            response.content_length = 5000
        await response.prepare(request)
        for _ in range(5):
            await response.write(b" " * 1000)
        return response

    server.routes[TAG] = server.routes[BLOB] = large
    client = connect(server.endpoint, manifest_limit=4999)
    with pytest.raises(RegistryProtocol, match="more than 4999 bytes"):
        await client.resolve(APP)
    with pytest.raises(RegistryProtocol, match="more than 10 bytes"):
        await blob_of(client, limit=10)


@pytest.mark.parametrize("wrong", ["", "latest", "sha256:abc", "../../x"])
async def test_what_is_no_digest_is_never_sent(serve: Serve, connect: Connect, wrong: str) -> None:
    server = await serve()
    client = connect(server.endpoint)
    with pytest.raises(InvalidInput):
        await client.fetch_manifest(APP, wrong)
    with pytest.raises(InvalidInput):
        await client.fetch_blob(APP, wrong, 10)
    assert server.seen == []


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "MANIFEST_UNKNOWN", ManifestNotFound),
        (404, "NAME_UNKNOWN", ManifestNotFound),
        (403, "DENIED", RegistryDenied),
        (401, "UNAUTHORIZED", RegistryUnauthorized),
        (500, "", RegistryUnavailable),
        (502, "", RegistryUnavailable),
        (418, "", RegistryProtocol),
    ],
)
async def test_each_refusal_has_its_error(
    serve: Serve, connect: Connect, status: int, code: str, kind: type[RegistryError]
) -> None:
    server = await serve()
    server.refuse(TAG, status, code)
    with pytest.raises(kind) as caught:
        await connect(server.endpoint).resolve(APP)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert str(caught.value).startswith(f"quay.io/team/app:v1 at {server.host}: ")


@pytest.mark.parametrize(("header", "wait"), [({"Retry-After": "7"}, 7.0), ({}, None), ({"Retry-After": "x"}, None)])
async def test_a_limited_rate_says_how_long(
    serve: Serve, connect: Connect, header: dict[str, str], wait: float | None
) -> None:
    server = await serve()
    server.refuse(TAG, 429, "TOOMANYREQUESTS", **header)
    with pytest.raises(RateLimited) as caught:
        await connect(server.endpoint).resolve(APP)
    assert caught.value.retry_after == wait
    assert len(server.seen) == 1


async def test_a_long_refusal_is_cut(serve: Serve, connect: Connect) -> None:
    server = await serve()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    server.routes[TAG] = endless
    with pytest.raises(RegistryUnavailable):
        await connect(server.endpoint).resolve(APP)


# ---------------------------------------------------------------------------------------------- redirects


async def test_a_redirect_elsewhere_carries_no_credentials(serve: Serve, connect: Connect) -> None:
    registry, storage = await serve(), await serve()
    registry.redirect(BLOB, f"{storage.url}/data?X-Signature=a%2Fb%2B%7E&x=%20")
    storage.put("/data", BODY)
    endpoint = replace(registry.endpoint, header=(("X-Own", "1"), ("Authorization", "of the endpoint")))
    token = Credential(registry_token="t0ken")
    assert await connect(endpoint).fetch_blob(APP, DIGEST, 1000, [token]) == BODY
    assert registry.seen[0].authorization == "Bearer t0ken"
    assert registry.seen[0].headers["X-Own"] == "1"
    (seen,) = storage.seen
    assert seen.authorization is None
    assert "X-Own" not in seen.headers
    assert seen.query == {"X-Signature": ["a/b+~"], "x": [" "]}


async def test_a_redirect_to_the_same_origin_keeps_them(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.redirect(BLOB, "../data", 302)
    server.put("/v2/team/app/data", BODY)
    assert await connect(server.endpoint).fetch_blob(APP, DIGEST, 1000, [Credential(registry_token="t")]) == BODY
    assert server.seen[1].authorization == "Bearer t"


async def test_credentials_do_not_come_back_after_a_detour(serve: Serve, connect: Connect) -> None:
    registry, other = await serve(), await serve()
    registry.redirect(BLOB, f"{other.url}/back")
    other.redirect("/back", f"{registry.url}/data")
    registry.put("/data", BODY)
    assert await connect(registry.endpoint).fetch_blob(APP, DIGEST, 1000, [Credential(registry_token="t")]) == BODY
    assert [seen.authorization for seen in (*registry.seen, *other.seen)] == ["Bearer t", None, None]


async def test_another_origin_gets_no_answer_to_its_challenge(serve: Serve, connect: Connect) -> None:
    registry, other = await serve(), await serve()
    registry.redirect(BLOB, f"{other.url}/data")
    other.refuse("/data", 401, "", **{"WWW-Authenticate": f'Bearer realm="{other.url}/token"'})
    with pytest.raises(RegistryUnauthorized) as caught:
        await connect(registry.endpoint).fetch_blob(APP, DIGEST, 1000, [Credential("me", "pw")])
    assert caught.value.subject.registry == other.host
    assert {seen.path for seen in other.seen} == {"/data"}
    assert all(seen.authorization is None for seen in other.seen)


async def test_redirects_are_counted(serve: Serve, connect: Connect) -> None:
    server = await serve()
    for number in range(MAX_REDIRECTS):
        server.redirect(BLOB if number == 0 else f"/{number}", f"/{number + 1}")
    server.put(f"/{MAX_REDIRECTS}", BODY)
    client = connect(server.endpoint)
    assert await blob_of(client) == BODY
    server.redirect(f"/{MAX_REDIRECTS}", "/more")
    server.put("/more", BODY)
    with pytest.raises(RegistryProtocol, match="more than 5 times"):
        await blob_of(client)


@pytest.mark.parametrize("location", ["", "ftp://x/y", "http://u:p@x/y", "http://[::1/"])
async def test_redirects_that_lead_nowhere_are_refused(serve: Serve, connect: Connect, location: str) -> None:
    server = await serve()
    server.redirect(BLOB, location)
    with pytest.raises(RegistryProtocol, match="it redirects to something"):
        await blob_of(connect(server.endpoint))
    assert len(server.seen) == 1
