"""Pushes to a real server that takes them, refuses them, and breaks off in their middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from msgspec.structs import replace

from stokerd.errors import RuntimeUnavailable, StokerError
from stokerd.registry.content import OCI_MANIFEST, digest_of
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import (
    DigestMismatch,
    NoRegistryEndpoint,
    PushRefused,
    RateLimited,
    RegistryDenied,
    RegistryError,
    RegistryTimeout,
    RegistryUnauthorized,
    RegistryUnavailable,
    RegistryUnreachable,
)
from stokerd.registry.hosts import RegistryEndpoint
from stokerd.registry.push_types import Blob, Document, Load, Moved, Policy, Pushed
from stokerd.registry.pushing import push
from stokerd.registry.references import parse_reference
from tests.unit.registry.conftest import Connect, Serve
from tests.unit.registry.fakes import refusal
from tests.unit.registry.uploading import PushRegistry

KIB = 1 << 10
CHUNK = 256 * KIB
QUICK = Policy(chunk=CHUNK, attempts=4, stall=5.0, answer=5.0, pause=0.0)
APP = parse_reference("quay.io/team/app:v1")
SMALL, LARGE = b"small" * 100, bytes(range(256)) * 4 * 1000
BLOBS = {digest_of(body): body for body in (SMALL, LARGE)}
BODY = b'{"schemaVersion":2}'
TOP = Document(OCI_MANIFEST, digest_of(BODY), BODY, "v1")
LOAD = Load(tuple(Blob(digest, len(body)) for digest, body in BLOBS.items()), (TOP,))
ALL = sum(map(len, BLOBS.values()))


class Shelf:
    """Contents that are here, of which some may be missing, and of which a read may fail."""

    def __init__(self, blobs: dict[str, bytes] = BLOBS) -> None:
        self.blobs = blobs
        self.obtained: list[str] = []
        self.failure: StokerError | None = None

    async def obtain(self, blob: Blob) -> None:
        self.obtained.append(blob.digest)

    async def read(self, blob: Blob, offset: int, size: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        return self.blobs[blob.digest][offset : offset + min(size, 64 * KIB)]


def mounting(*repositories: str) -> Load:
    return replace(LOAD, blobs=tuple(replace(blob, mounts=repositories) for blob in LOAD.blobs))


async def pushed(
    registry: PushRegistry,
    connect: Connect,
    load: Load = LOAD,
    *credentials: Credential,
    shelf: Shelf | None = None,
    tell: Callable[[Moved], object] = lambda _: None,
    policy: Policy = QUICK,
) -> Pushed:
    client = connect(registry.endpoint)
    return await push(client, APP, load, shelf or Shelf(), credentials, tell=tell, policy=policy)


async def test_everything_is_there_afterwards(connect: Connect) -> None:
    async with PushRegistry() as registry:
        told: list[Moved] = []
        done = await pushed(registry, connect, tell=told.append)
        assert registry.blobs == BLOBS
        assert registry.manifests["v1"] == (OCI_MANIFEST, BODY)
        assert (done.sent, done.existing, done.mounted) == (ALL, 0, 0)
        assert done.digest == TOP.digest
        assert done.transferred == ALL + len(BODY)
        of_large = [each.sent for each in told if each.size == len(LARGE)]
        assert of_large == sorted(of_large)
        assert of_large[-1] == len(LARGE)
        assert {each.state for each in told} == {"fetching", "sending", "sent"}


async def test_what_is_there_is_not_sent_again(connect: Connect) -> None:
    async with PushRegistry() as registry:
        await pushed(registry, connect)
        registry.taken = 0
        shelf = Shelf()
        done = await pushed(registry, connect, shelf=shelf)
        assert (done.existing, done.sent, registry.taken, shelf.obtained) == (ALL, 0, 0, [])
        assert registry.requests("PUT", "/manifests/") == 1


async def test_what_another_repository_has_is_mounted(connect: Connect) -> None:
    async with PushRegistry() as registry:
        registry.elsewhere = {("base/image", digest): body for digest, body in BLOBS.items()}
        shelf = Shelf({})
        done = await pushed(registry, connect, mounting("not/here", "base/image"), shelf=shelf)
        assert (done.mounted, done.sent, shelf.obtained) == (ALL, 0, [])


async def test_what_cannot_be_mounted_is_sent_over_the_upload_that_was_begun_instead(connect: Connect) -> None:
    async with PushRegistry() as registry:
        await pushed(registry, connect, mounting("team/app", "not/here"))
        assert registry.requests("POST") == 2
        assert registry.blobs == BLOBS


@pytest.mark.parametrize("end", [1, 100, CHUNK - 1])
async def test_an_upload_goes_on_where_it_broke(connect: Connect, end: int) -> None:
    async with PushRegistry() as registry:
        registry.breaks = {2: end, 4: end, 6: 1}
        await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[1:]))
        assert registry.blobs[LOAD.blobs[1].digest] == LARGE
        assert registry.taken <= len(LARGE) + 3  # one byte looks like none
        assert registry.requests("POST") == 1


async def test_an_answer_that_is_lost_costs_nothing(connect: Connect) -> None:
    async with PushRegistry() as registry:
        registry.lost_answers = {1, 3, 5}
        done = await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[1:]))
        assert registry.taken == len(LARGE) == done.transferred - len(BODY)


async def test_a_registry_that_throws_broken_uploads_away_gets_the_blob_anew(connect: Connect) -> None:
    async with PushRegistry(kind="docker") as registry:
        registry.breaks = {3: 1000}
        await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[1:]))
        assert registry.blobs[LOAD.blobs[1].digest] == LARGE
        assert registry.taken == 2 * CHUNK + 1000 + len(LARGE)
        assert registry.requests("POST") == 2


async def test_a_registry_that_notices_the_break_too_late(connect: Connect) -> None:
    async with PushRegistry(kind="docker") as registry:
        registry.breaks = {3: 1000}
        state = {"Location": f"/v2/team/app/blobs/uploads/1?known={2 * CHUNK}", "Range": "0-0"}
        registry.answers = {("GET", "/uploads/1"): [web.Response(status=204, headers=state)]}
        await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[1:]))
        assert registry.blobs[LOAD.blobs[1].digest] == LARGE
        assert registry.requests("POST") == 2


async def test_what_came_out_of_order_is_sent_anew(connect: Connect) -> None:
    async with PushRegistry() as registry:
        registry.breaks = {2: 1000}
        refused = web.json_response({"errors": [{"code": "DIGEST_INVALID"}]}, status=400)
        registry.answers = {("PUT", "/uploads/1"): [refused]}
        await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[1:]))
        assert registry.blobs[LOAD.blobs[1].digest] == LARGE
        assert registry.requests("POST") == 2


async def test_and_one_that_was_not_reached_goes_on(connect: Connect) -> None:
    async with PushRegistry(kind="docker") as registry:
        gone = [web.Response(status=503), web.Response(status=502)]
        registry.answers = {("PATCH", "/uploads/1"): gone}
        await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[1:]))
        assert registry.taken == len(LARGE)
        assert registry.requests("POST") == 1


async def test_a_registry_that_takes_no_chunks_gets_blobs_whole(connect: Connect) -> None:
    async with PushRegistry(chunks=False) as registry:
        await pushed(registry, connect)
        assert registry.blobs == BLOBS


async def test_a_break_at_the_end_is_told_from_a_blob_that_is_not_there(connect: Connect) -> None:
    async with PushRegistry() as registry:
        registry.lost_answers = {1}
        await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[:1]))
        assert registry.taken == len(SMALL)


@pytest.mark.parametrize(("method", "end"), [("HEAD", "/v1"), ("POST", "/uploads/"), ("PUT", "/v1")])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, RegistryUnavailable), (429, RateLimited), (403, RegistryDenied), (405, PushRefused), (413, PushRefused)],
)
async def test_refusals_name_what_and_where(
    connect: Connect, method: str, end: str, status: int, kind: type[RegistryError]
) -> None:
    async with PushRegistry() as registry:
        registry.answers = {(method, end): [refusal(status, "", "no") for _ in range(40)]}
        with pytest.raises(kind) as caught:
            await pushed(registry, connect)
        assert "team/app" in str(caught.value)
        assert caught.value.hint
        assert caught.value.status == status


async def test_trouble_of_the_moment_is_waited_out(connect: Connect) -> None:
    async with PushRegistry() as registry:
        registry.answers = {
            ("HEAD", "/v1"): [refusal(503, "", "no")],
            ("POST", "/uploads/"): [refusal(429, "", "no", **{"Retry-After": "0"}), refusal(500, "", "no")],
            ("PUT", "/v1"): [refusal(502, "", "no")],
        }
        assert (await pushed(registry, connect)).digest == TOP.digest


async def test_a_repository_that_is_not_there_says_what_to_do(connect: Connect) -> None:
    async with PushRegistry() as registry:
        registry.answers = {("POST", "/uploads/"): [refusal(404, "NAME_UNKNOWN", "no") for _ in range(9)]}
        with pytest.raises(PushRefused, match=r"team/app.*create the repository"):
            await pushed(registry, connect)


async def test_another_manifest_under_the_name_is_told(connect: Connect) -> None:
    async with PushRegistry() as registry:
        wrong = web.Response(headers={"Docker-Content-Digest": digest_of(b"other")})
        registry.answers = {("HEAD", "/v1"): [web.Response(status=404), web.Response(status=404), wrong]}
        with pytest.raises(DigestMismatch):
            await pushed(registry, connect)


async def test_bytes_that_changed_are_refused(connect: Connect) -> None:
    async with PushRegistry() as registry:
        changed = {digest: b"x" * len(body) for digest, body in BLOBS.items()}
        with pytest.raises(DigestMismatch, match="check this node's disk"):
            await pushed(registry, connect, shelf=Shelf(changed))
        assert registry.manifests == {}


async def test_a_read_that_fails_is_no_fault_of_the_registry(connect: Connect) -> None:
    async with PushRegistry() as registry:
        shelf = Shelf()
        shelf.failure = RuntimeUnavailable("containerd is away")
        with pytest.raises(RuntimeUnavailable):
            await pushed(registry, connect, shelf=shelf)


async def test_an_upload_that_does_not_move_ends(connect: Connect) -> None:
    async with PushRegistry(hang=True) as registry:
        policy = replace(QUICK, stall=0.2, answer=0.2, attempts=1)
        with pytest.raises(RegistryTimeout):
            await pushed(registry, connect, policy=policy)


async def test_a_caller_that_goes_away_ends_it(connect: Connect) -> None:
    async with PushRegistry(hang=True) as registry:
        started = asyncio.Event()
        task = asyncio.create_task(
            pushed(registry, connect, tell=lambda moved: started.set() if moved.state == "sending" else None)
        )
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert registry.manifests == {}


async def test_a_registry_that_is_not_there(connect: Connect) -> None:
    async with PushRegistry() as registry:
        endpoint = registry.endpoint
    with pytest.raises(RegistryUnreachable):
        await push(connect(endpoint), APP, LOAD, Shelf(), policy=QUICK)


async def test_only_servers_that_may_be_pushed_to_are(connect: Connect) -> None:
    async with PushRegistry() as registry:
        mirror = RegistryEndpoint(
            "http", "127.0.0.1:1", capabilities=frozenset({"pull", "resolve"}), namespace="quay.io"
        )
        await push(connect(mirror, registry.endpoint), APP, LOAD, Shelf(), policy=QUICK)
        assert registry.blobs == BLOBS
        with pytest.raises(NoRegistryEndpoint):
            await push(connect(mirror), APP, LOAD, Shelf(), policy=QUICK)


async def test_a_token_is_asked_for_once_and_for_all_that_a_push_needs(connect: Connect, serve: Serve) -> None:
    tokens = await serve()
    me = Credential("me", "Hunter2-s3cret", source="file /me")
    tokens.tokens("/token", {"Basic bWU6SHVudGVyMi1zM2NyZXQ=": {"token": "good", "expires_in": 300}})
    challenge = f'Bearer realm="{tokens.url}/token",service="reg",scope="repository:team/app:pull"'
    async with PushRegistry(guard=(challenge, "Bearer good")) as registry:
        done = await pushed(registry, connect, LOAD, Credential("you", "wrong", source="file /you"), me)
        assert done.credential == "file /me"
        assert {seen.query["scope"][0] for seen in tokens.seen} == {"repository:team/app:pull,push"}
        assert len(tokens.seen) == 2
        with pytest.raises(RegistryUnauthorized, match="may push to") as caught:
            await pushed(registry, connect)
        assert "Hunter2" not in str(caught.value)


async def test_a_token_that_ends_in_the_middle_is_renewed(connect: Connect, serve: Serve) -> None:
    tokens = await serve()

    async def give(_: web.Request) -> web.Response:
        return web.json_response({"token": f"good{len(tokens.seen)}", "expires_in": 300})

    tokens.routes["/token"] = give
    challenge = f'Bearer realm="{tokens.url}/token",scope="repository:team/app:pull"'
    async with PushRegistry() as registry:
        for method, end in (("PATCH", "/uploads/1"), ("PUT", "/uploads/1"), ("PUT", "/v1")):
            registry.answers[method, end] = [refusal(401, "", "no", **{"WWW-Authenticate": challenge})]
        await pushed(registry, connect, replace(LOAD, blobs=LOAD.blobs[1:]))
        assert registry.taken == len(LARGE)
