"""Challenges of a real server: passwords, tokens, which credential is used where, and what is never sent."""

from __future__ import annotations

import base64
import logging
import traceback
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from stokerd.registry.credentials import Credential
from stokerd.registry.errors import (
    ManifestNotFound,
    RateLimited,
    RegistryDenied,
    RegistryError,
    RegistryProtocol,
    RegistryUnauthorized,
    RegistryUnavailable,
)
from stokerd.registry.references import parse_reference
from tests.unit.registry.conftest import Connect, Serve
from tests.unit.registry.fakes import FakeServer, Handler, digest, manifest, refusal

TAG = "/v2/team/app/manifests/v1"
BODY = manifest()
DIGEST = digest(BODY)
PINNED = f"/v2/team/app/manifests/{DIGEST}"
APP = parse_reference("quay.io/team/app:v1")
SECRET = "Hunter2-s3cret"
ME = Credential("me", SECRET, source="file /me")
YOU = Credential("you", SECRET, source="file /you")


def basic(name: str, password: str = SECRET) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def token_registry(
    serve: Serve, grants: dict[str | None, dict[str, Any]], *accepted: str
) -> tuple[FakeServer, FakeServer]:
    """Return a registry and its token server."""
    registry, tokens = await serve(), await serve()
    tokens.tokens("/token", grants)
    challenge = f'Bearer realm="{tokens.url}/token",service="reg",scope="repository:team/app:pull"'
    for path in (TAG, PINNED):
        registry.put(path, BODY)
        registry.guard(path, challenge, *(f"Bearer {token}" for token in accepted))
    return registry, tokens


# ---------------------------------------------------------------------------------------------- passwords


async def test_a_password_is_sent_when_asked_for_and_then_at_once(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    server.guard(TAG, 'Basic realm="x"', basic("me"))
    client = connect(server.endpoint)
    for _ in range(2):
        assert (await client.resolve(APP, [ME])).credential == "file /me"
    assert [seen.authorization for seen in server.seen] == [None, basic("me"), basic("me")]


async def test_names_and_passwords_may_have_any_characters(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    server.guard(TAG, "Basic", basic("m\u00e9", "p:\u20ac"))
    assert (await connect(server.endpoint).resolve(APP, [Credential("m\u00e9", "p:\u20ac")])).body == BODY


async def test_a_password_that_was_refused_is_not_sent_twice(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    server.guard(TAG, "Basic", basic("you"))
    client = connect(server.endpoint)
    for _ in range(2):
        with pytest.raises(RegistryUnauthorized, match="file /me"):
            await client.resolve(APP, [ME])
    # The challenge, the refusal and nobody; then the refusal and nobody.
    assert [seen.authorization for seen in server.seen] == [None, basic("me"), None, basic("me"), None]


@pytest.mark.parametrize("credential", [Credential(identity_token=SECRET), Credential(registry_token=SECRET)])
async def test_a_token_is_no_password(serve: Serve, connect: Connect, credential: Credential) -> None:
    server = await serve()
    server.put(TAG, BODY)
    server.guard(TAG, "Basic", basic("me"))
    with pytest.raises(RegistryUnauthorized):
        await connect(server.endpoint).resolve(APP, [credential])
    assert not any(str(seen.authorization).startswith("Basic") for seen in server.seen)


async def test_each_credential_is_tried_and_then_none(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    server.guard(TAG, "Basic", basic("you"))
    assert (await connect(server.endpoint).resolve(APP, [ME, YOU])).credential == "file /you"
    public = await serve()
    public.put(TAG, BODY)
    public.guard(TAG, "Basic", *(str(None), basic("nobody")))
    inner = public.routes[TAG]

    async def open_to_nobody(request: web.Request) -> web.StreamResponse:
        if "Authorization" in request.headers or len(public.seen) < 4:
            return await inner(request)
        return web.Response(body=BODY)

    public.routes[TAG] = open_to_nobody
    assert (await connect(public.endpoint).resolve(APP, [ME, YOU])).credential == "anonymous"


# ---------------------------------------------------------------------------------------------- tokens


async def test_a_password_buys_a_token_that_is_kept(serve: Serve, connect: Connect) -> None:
    registry, tokens = await token_registry(serve, {basic("me"): {"token": "T", "expires_in": 300}}, "T")
    clock = Clock()
    client = connect(registry.endpoint, clock=clock)
    resolved = await client.resolve(APP, [ME])
    assert resolved.credential == "file /me"
    await client.fetch_manifest(APP, DIGEST, [ME])
    assert [seen.authorization for seen in registry.seen] == [None, "Bearer T", "Bearer T"]
    (seen,) = tokens.seen
    assert (seen.method, seen.query) == ("GET", {"service": ["reg"], "scope": ["repository:team/app:pull"]})
    assert seen.authorization == basic("me")
    # Ten seconds before it ends, a token is not used any more.
    clock.now += 289
    await client.resolve(APP, [ME])
    assert len(tokens.seen) == 1
    clock.now += 2
    await client.resolve(APP, [ME])
    assert len(tokens.seen) == 2


async def test_nobody_gets_a_token_too_and_tokens_are_not_mixed_up(serve: Serve, connect: Connect) -> None:
    registry, tokens = await token_registry(serve, {None: {"access_token": "N"}, basic("me"): {"token": "M"}}, "N", "M")
    client = connect(registry.endpoint)
    assert (await client.resolve(APP)).credential == "anonymous"
    assert (await client.resolve(APP, [ME])).credential == "file /me"
    await client.resolve(APP)
    assert [seen.authorization for seen in registry.seen] == [None, "Bearer N", None, "Bearer M", "Bearer N"]
    assert [seen.authorization for seen in tokens.seen] == [None, basic("me")]


async def test_an_identity_token_is_exchanged(serve: Serve, connect: Connect) -> None:
    registry, tokens = await token_registry(serve, {"refresh me": {"access_token": "T"}}, "T")
    await connect(registry.endpoint).resolve(APP, [Credential(identity_token="refresh me")])
    (seen,) = tokens.seen
    assert seen.method == "POST"
    assert seen.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert seen.authorization is None
    assert seen.query == {}


async def test_a_registry_token_is_used_as_it_is(serve: Serve, connect: Connect) -> None:
    registry, tokens = await token_registry(serve, {}, "RT")
    assert (await connect(registry.endpoint).resolve(APP, [Credential(registry_token="RT")])).credential == "request"
    assert len(registry.seen) == 1
    assert tokens.seen == []


async def test_only_so_many_tokens_are_kept(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stokerd.registry.auth._MAX_ENTRIES", 2)
    grants: dict[str | None, dict[str, Any]] = {basic(name): {"token": name} for name in "abc"}
    registry, tokens = await token_registry(serve, grants, "a", "b", "c")
    client = connect(registry.endpoint)
    for name in "abcbca":
        await client.resolve(APP, [Credential(name, SECRET)])
    assert [seen.authorization for seen in tokens.seen] == [basic(name) for name in "abca"]


async def test_a_kept_token_that_is_refused_is_bought_again(serve: Serve, connect: Connect) -> None:
    grants: dict[str | None, dict[str, Any]] = {basic("me"): {"token": "old", "expires_in": 300}}
    registry, tokens = await token_registry(serve, grants, "old")
    client = connect(registry.endpoint)
    await client.resolve(APP, [ME])
    registry.put(TAG, BODY)
    challenge = f'Bearer realm="{tokens.url}/token",service="reg",scope="repository:team/app:pull"'
    registry.guard(TAG, challenge, "Bearer new")
    grants[basic("me")] = {"token": "new", "expires_in": 300}
    await client.resolve(APP, [ME])
    assert [seen.authorization for seen in registry.seen[2:]] == ["Bearer old", "Bearer new"]


async def test_a_token_that_does_not_help_is_not_tried_for_ever(serve: Serve, connect: Connect) -> None:
    registry, tokens = await token_registry(serve, {basic("me"): {"token": "T"}, None: {"token": "N"}}, "other")
    with pytest.raises(RegistryUnauthorized) as caught:
        await connect(registry.endpoint).resolve(APP, [ME])
    assert len(registry.seen) == 4
    assert len(tokens.seen) == 2
    assert "file /me" in str(caught.value)


@pytest.mark.parametrize("credential", [ME, Credential(identity_token=SECRET, source="file /me")])
async def test_refused_credentials_are_named_by_their_source(
    serve: Serve, connect: Connect, credential: Credential
) -> None:
    registry, tokens = await token_registry(serve, {}, "T")
    with pytest.raises(RegistryUnauthorized) as caught:
        await connect(registry.endpoint).resolve(APP, [credential])
    assert "file /me" in str(caught.value)
    assert tokens.host in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RegistryUnauthorized),
        (403, RegistryUnauthorized),
        (404, RegistryProtocol),
        (405, RegistryProtocol),
        (429, RateLimited),
        (503, RegistryUnavailable),
    ],
)
async def test_refusals_of_a_token_server(
    serve: Serve, connect: Connect, status: int, kind: type[RegistryError]
) -> None:
    registry, tokens = await token_registry(serve, {}, "T")
    tokens.refuse("/token", status, "", **{"Retry-After": "3"})
    with pytest.raises(kind) as caught:
        await connect(registry.endpoint).resolve(APP, [ME])
    assert caught.value.subject.registry == tokens.host
    if kind is RateLimited:
        assert caught.value.retry_after == 3.0


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"token":""}', b'{"token":"a b"}', b'{"token":"' + b"x" * 300_000 + b'"}']
)
async def test_a_token_server_that_gives_none(serve: Serve, connect: Connect, body: bytes) -> None:
    registry, tokens = await token_registry(serve, {}, "T")
    tokens.put("/token", body)
    with pytest.raises(RegistryProtocol):
        await connect(registry.endpoint).resolve(APP, [ME])


async def test_a_token_request_is_never_redirected_elsewhere(serve: Serve, connect: Connect) -> None:
    registry, tokens = await token_registry(serve, {}, "T")
    other = await serve()
    other.tokens("/token", {basic("me"): {"token": "T"}, None: {"token": "T"}, SECRET: {"token": "T"}})
    tokens.redirect("/token", f"{other.url}/token")
    for credential in (ME, Credential(identity_token=SECRET)):
        with pytest.raises(RegistryProtocol, match="redirects a request for a token"):
            await connect(registry.endpoint).resolve(APP, [credential])
    assert other.seen == []
    # A GET may go elsewhere on the same server; the form of a POST is never sent twice.
    tokens.redirect("/token", "/other")
    tokens.tokens("/other", {basic("me"): {"token": "T"}, SECRET: {"token": "T"}})
    await connect(registry.endpoint).resolve(APP, [ME])
    with pytest.raises(RegistryProtocol):
        await connect(registry.endpoint).resolve(APP, [Credential(identity_token=SECRET)])


@pytest.mark.parametrize(
    "challenge", ["Negotiate", "", 'Bearer realm="ftp://x/y"', 'Bearer service="x"', 'Bearer realm="http://u:p@x/"']
)
async def test_challenges_that_cannot_be_answered(serve: Serve, connect: Connect, challenge: str) -> None:
    server = await serve()
    server.put(TAG, BODY)
    server.guard(TAG, challenge, "x")
    with pytest.raises((RegistryUnauthorized, RegistryProtocol)):
        await connect(server.endpoint).resolve(APP, [ME])
    assert all(seen.authorization is None for seen in server.seen)


# ---------------------------------------------------------------------------------------------- which error


async def test_the_refusal_that_tells_most_is_raised(serve: Serve, connect: Connect) -> None:
    server = await serve()

    async def handler(request: web.Request) -> web.Response:
        answers = {basic("me"): (404, "MANIFEST_UNKNOWN"), basic("you"): (403, "DENIED")}
        status, code = answers.get(str(request.headers.get("Authorization")), (401, "UNAUTHORIZED"))
        return refusal(status, code, "no", **{"WWW-Authenticate": "Basic"})

    server.routes[TAG] = handler
    other = Credential("other", "x")
    cases: list[tuple[list[Credential], type[RegistryError]]] = [
        ([ME], ManifestNotFound),
        ([YOU], RegistryDenied),
        ([other, YOU], RegistryDenied),
        ([YOU, ME], RegistryDenied),
        ([other], RegistryUnauthorized),
        ([], RegistryUnauthorized),
    ]
    for credentials, kind in cases:
        with pytest.raises(RegistryError) as caught:
            await connect(server.endpoint).resolve(APP, credentials)
        assert type(caught.value) is kind
    # Nobody's 403 and broken answers do not hide that credentials were refused; "not found" and "wait" count.
    for status, kind in (
        (403, RegistryUnauthorized),
        (400, RegistryUnauthorized),
        (404, ManifestNotFound),
        (429, RateLimited),
    ):
        registry, tokens = await token_registry(serve, {None: {"token": "N"}}, "T")
        guarded = registry.routes[TAG]

        async def to_nobody(
            request: web.Request, status: int = status, guarded: Handler = guarded
        ) -> web.StreamResponse:
            return refusal(status, "", "") if request.headers.get("Authorization") else await guarded(request)

        registry.routes[TAG] = to_nobody
        with pytest.raises(RegistryError) as caught:
            await connect(registry.endpoint).resolve(APP, [other])
        assert type(caught.value) is kind
        assert len(tokens.seen) == 2
    with pytest.raises(RegistryDenied, match="file /you"):
        await connect(server.endpoint).resolve(APP, [YOU])


# ---------------------------------------------------------------------------------------------- mirrors


async def test_a_remote_mirror_without_tls_is_told_nothing(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, registry = await serve(), await serve()
    for server in (mirror, registry):
        server.put(TAG, BODY)
        server.guard(TAG, "Basic", basic("me"))
    client = connect(replace(mirror.endpoint, namespace="quay.io"), registry.endpoint)
    # A mirror on this machine is as good as the registry.
    assert (await client.resolve(APP, [ME])).endpoint.startswith(mirror.url)
    mirror.seen.clear()
    monkeypatch.setattr("stokerd.registry.client.is_loopback", lambda _: False)
    assert (await client.resolve(APP, [ME])).endpoint.startswith(registry.url)
    assert [seen.authorization for seen in mirror.seen] == [None]


# ---------------------------------------------------------------------------------------------- secrets


async def test_no_secret_is_in_errors_reprs_or_logs(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    registry, tokens = await token_registry(serve, {basic("me"): {"token": "T" + SECRET}}, "x")
    storage = await serve()
    client = connect(replace(registry.endpoint, header=(("X-Key", SECRET),)))
    credentials = [ME, Credential(identity_token=SECRET), Credential(registry_token=SECRET)]
    texts = [repr(client), repr(registry.endpoint), repr(credentials)]

    async def fails() -> None:
        with pytest.raises(RegistryError) as caught:
            await client.resolve(APP, credentials)
        texts.append("".join(traceback.format_exception(caught.value)))
        texts.extend((str(caught.value), repr(caught.value), repr(vars(caught.value))))

    await fails()
    registry.redirect(TAG, f"{storage.url}/x?sig={SECRET}")
    await fails()
    await storage.stop()
    await fails()
    await tokens.stop()
    await fails()
    # The access log is that of the servers.
    logs = [record.getMessage() for record in caplog.records if record.name != "aiohttp.access"]
    for text in (*texts, *logs):
        assert SECRET not in text
        assert base64.b64encode(f"me:{SECRET}".encode()).decode() not in text
