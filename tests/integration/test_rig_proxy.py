"""The fault proxy: every fault does what it says, and without one nothing changes."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest

from tests.rig import images
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import (
    BLOBS,
    MANIFESTS,
    Cut,
    Delay,
    Gate,
    Hang,
    Hold,
    NoRange,
    Reset,
    Status,
    Trickle,
    Truncate,
    WrongDigest,
    too_many_requests,
    unauthorized,
)
from tests.rig.fixtures import MakeRegistry
from tests.rig.layers import LayerSpec
from tests.rig.push import Pushed, push
from tests.rig.registry import Registry
from tests.rig.tokenauth import TokenAuth

SIZE = 1 << 20
# Without it, docker-registry has no OCI manifests.
ACCEPT = {"Accept": "application/vnd.oci.image.manifest.v1+json"}


@pytest.fixture(scope="module")
def pushed(registry: Registry) -> Pushed:
    spec = images.ImageSpec(layers=(LayerSpec(size=SIZE, compression="none", seed="proxy"),))
    return registry.push("proxy/one", images.build(spec))


@pytest.fixture
def blob(pushed: Pushed) -> str:
    return f"/v2/{pushed.repository}/blobs/{pushed.layer_digests[0]}"


@contextmanager
def asked(
    proxy: FaultProxy, path: str, headers: dict[str, str] | None = None, *, method: str = "GET", timeout: float = 10
) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection(proxy.address, timeout=timeout)) as connection:
        connection.request(method, path, headers=headers or {})
        with connection.getresponse() as answer:
            yield answer


def got(proxy: FaultProxy, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    with asked(proxy, path, headers) as answer:
        return answer.status, answer.read()


def read_until_it_breaks(answer: http.client.HTTPResponse) -> tuple[int, type[Exception] | None]:
    """How many bytes came, and what ended them early."""
    count = 0
    try:
        while piece := answer.read1(4096):
            count += len(piece)
    except ConnectionResetError:
        return count, ConnectionResetError
    return count, http.client.IncompleteRead if answer.length else None


def test_passes_everything_as_it_is(proxy: FaultProxy, registry: Registry, pushed: Pushed, blob: str) -> None:
    status, body = got(proxy, blob)
    assert status == 200
    assert f"sha256:{hashlib.sha256(body).hexdigest()}" == pushed.layer_digests[0]
    path = f"/v2/{pushed.repository}/manifests/v1"
    with asked(proxy, path, ACCEPT) as through, closing(http.client.HTTPConnection(registry.address)) as straight:
        straight.request("GET", path, headers=ACCEPT)
        direct = straight.getresponse()
        hidden = {"date", "server"}
        assert {k: v for k, v in through.getheaders() if k.lower() not in hidden} == {
            k: v for k, v in direct.getheaders() if k.lower() not in hidden
        }
        assert through.read() == direct.read()


def test_head_range_and_missing(proxy: FaultProxy, pushed: Pushed, blob: str) -> None:
    with asked(proxy, blob, method="HEAD") as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (200, str(pushed.layers[0].size))
        assert answer.read() == b""
    status, body = got(proxy, blob, {"Range": "bytes=100-199"})
    assert (status, len(body)) == (206, 100)
    assert got(proxy, f"/v2/{pushed.repository}/manifests/absent")[0] == 404


def test_pushing_goes_through_it(proxy: FaultProxy) -> None:
    """Locations are relative, so an upload stays on the proxy."""
    image = images.build(images.random_image(layers=2, size=100_000, seed="through the proxy"))
    through = push(proxy.address, "proxy/pushed", image)
    assert through.reference.startswith(proxy.address)
    assert len(proxy.matching(r"/blobs/uploads/", "PUT")) == 3
    assert got(proxy, f"/v2/proxy/pushed/blobs/{through.layer_digests[1]}")[0] == 200


def test_counts(proxy: FaultProxy, pushed: Pushed, blob: str) -> None:
    got(proxy, blob)
    got(proxy, blob, {"Range": "bytes=0-9", "Authorization": "Basic eDp5"})
    proxy.wait_until("both to be done", lambda records: len([r for r in records if r.done]) == 2)
    size = pushed.layers[0].size
    assert proxy.bytes_sent(BLOBS) == size + 10
    stats = proxy.stats()[blob]
    assert (stats.requests, stats.bytes, stats.ranges) == (2, size + 10, ("bytes=0-9",))
    first, second = proxy.requests
    assert (first.method, first.status, first.has_authorization, first.range) == ("GET", 200, False, None)
    assert (second.status, second.has_authorization, second.bytes) == (206, True, 10)
    proxy.forget()
    assert proxy.requests == []


def test_delay_and_trickle(proxy: FaultProxy, blob: str) -> None:
    proxy.rule(Delay(0.2), path=MANIFESTS)
    proxy.rule(Trickle(200_000), path=BLOBS)
    began = time.monotonic()
    got(proxy, "/v2/proxy/one/manifests/v1")
    assert time.monotonic() - began >= 0.2
    began = time.monotonic()
    assert len(got(proxy, blob, {"Range": "bytes=0-99999"})[1]) == 100_000
    assert 0.4 <= time.monotonic() - began < 3


@pytest.mark.parametrize("after", [0, 1, 65_536, 300_001])
def test_reset_after_bytes(proxy: FaultProxy, blob: str, after: int) -> None:
    proxy.rule(Reset(after), path=BLOBS, times=1)
    with asked(proxy, blob) as answer:
        count, how = read_until_it_breaks(answer)
    assert (count, how) == (after, ConnectionResetError)
    assert got(proxy, blob)[0] == 200


def test_truncated_bodies(proxy: FaultProxy, pushed: Pushed, blob: str) -> None:
    proxy.rule(Truncate(1000), path=BLOBS, nth=1)
    proxy.rule(Truncate(1000, honest=True), path=BLOBS, nth=2)
    with asked(proxy, blob) as answer:
        assert answer.headers["Content-Length"] == str(pushed.layers[0].size)
        assert read_until_it_breaks(answer) == (1000, http.client.IncompleteRead)
    with asked(proxy, blob) as answer:
        assert answer.headers["Content-Length"] == "1000"
        assert read_until_it_breaks(answer) == (1000, None)


def test_wrong_digest(proxy: FaultProxy, pushed: Pushed, blob: str) -> None:
    right = got(proxy, blob)[1]
    proxy.rule(WrongDigest(at=70_000), path=BLOBS, times=1)
    wrong = got(proxy, blob)[1]
    assert [i for i in range(len(right)) if right[i] != wrong[i]] == [70_000]
    assert got(proxy, blob)[1] == right


def test_statuses(proxy: FaultProxy) -> None:
    path = "/v2/proxy/one/manifests/v1"
    proxy.rule(unauthorized(), nth=1)
    proxy.rule(unauthorized(None), nth=2)
    proxy.rule(too_many_requests(7), nth=3)
    proxy.rule(Status(503, body=b"gone fishing"), nth=4)
    with asked(proxy, path) as answer:
        assert (answer.status, answer.headers["Www-Authenticate"]) == (401, 'Basic realm="rig"')
        assert json.loads(answer.read())["errors"][0]["code"] == "UNAUTHORIZED"
    with asked(proxy, path) as answer:
        assert (answer.status, answer.headers["Www-Authenticate"]) == (401, None)
    with asked(proxy, path) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    assert got(proxy, path) == (503, b"gone fishing")
    assert got(proxy, path, ACCEPT)[0] == 200


def test_no_range(proxy: FaultProxy, pushed: Pushed, blob: str) -> None:
    proxy.rule(NoRange(), path=BLOBS)
    with asked(proxy, blob, {"Range": "bytes=500-"}) as answer:
        assert (answer.status, answer.headers["Accept-Ranges"]) == (200, None)
        assert len(answer.read()) == pushed.layers[0].size
    assert proxy.requests[0].range == "bytes=500-"


def test_hang(proxy: FaultProxy, blob: str) -> None:
    proxy.rule(Hang(), path=BLOBS)
    with pytest.raises(TimeoutError), asked(proxy, blob, timeout=0.3):
        pass
    proxy.wait_until("the client's end to be noticed", lambda records: any(each.done for each in records))
    assert proxy.requests[0].status == 0


def test_stops_while_something_hangs(registry: Registry) -> None:
    proxy = FaultProxy(registry.address)
    proxy.start()
    proxy.rule(Hang())
    with closing(http.client.HTTPConnection(proxy.address, timeout=10)) as connection:
        connection.request("GET", "/v2/")
        proxy.wait_seen("/v2/")
        proxy.stop()
        with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
            connection.getresponse()


def test_rules_by_method_count_and_chance(proxy: FaultProxy, blob: str) -> None:
    head = proxy.rule(Status(500), path=BLOBS, method="HEAD", times=2)
    with asked(proxy, blob, method="HEAD") as answer:
        assert answer.status == 500
    assert got(proxy, blob)[0] == 200
    assert (head.matched, head.applied) == (1, 1)
    proxy.remove(head)
    sometimes = proxy.rule(Status(500), path=r"/v2/$", probability=0.5)
    answers = [got(proxy, "/v2/")[0] for _ in range(60)]
    assert 10 < answers.count(500) < 50
    assert sometimes.matched == 60
    proxy.clear()
    assert got(proxy, "/v2/")[0] == 200


async def test_a_gate_holds_an_answer_in_its_middle(proxy: FaultProxy, pushed: Pushed, blob: str) -> None:
    gate = Gate()
    proxy.rule(Hold(gate, after=300_000), path=BLOBS)
    download = asyncio.create_task(asyncio.to_thread(got, proxy, blob))
    await proxy.seen(BLOBS)
    await gate.reached()
    assert proxy.bytes_sent(BLOBS) == 300_000
    assert not download.done()
    gate.release()
    status, body = await download
    assert (status, len(body)) == (200, pushed.layers[0].size)


async def test_as_an_asynchronous_context(registry: Registry) -> None:
    async with FaultProxy(registry.address) as proxy:
        assert (await asyncio.to_thread(got, proxy, "/v2/"))[0] == 200
        await proxy.seen("/v2/")


def send(proxy: FaultProxy, path: str, body: bytes) -> None:
    with closing(http.client.HTTPConnection(proxy.address, timeout=10)) as connection:
        connection.request("PATCH", path, body=body)
        connection.getresponse()


@pytest.mark.parametrize("before", [False, True])
def test_cut(make_registry: MakeRegistry, before: bool) -> None:
    """The body of a request breaks off: the registry has had a part of it, or nothing."""
    own = make_registry()
    with FaultProxy(own.address) as proxy:
        rule = proxy.rule(Cut(at=70_000, before=before), method="PATCH")
        with closing(http.client.HTTPConnection(proxy.address, timeout=10)) as connection:
            connection.request("POST", "/v2/proxy/cut/blobs/uploads/")
            location = connection.getresponse().headers["Location"] or ""
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            send(proxy, location, b"x" * 200_000)
        proxy.remove(rule)
        (record,) = proxy.matching("/blobs/uploads/", "PATCH")
        assert record.received == 70_000
        with asked(proxy, location) as answer:  # docker-registry throws away what broke off, as soon as it notices
            assert answer.status == 204 or not before


def test_token_auth(registry: Registry, pushed: Pushed) -> None:
    auth = TokenAuth("someone", "secret")
    path = f"/v2/{pushed.repository}/manifests/v1"
    with FaultProxy(registry.address, auth=auth) as proxy:
        with asked(proxy, path) as answer:
            assert answer.status == 401
            challenge = answer.headers["Www-Authenticate"] or ""
        assert f'realm="http://{proxy.address}/token"' in challenge
        assert f'scope="repository:{pushed.repository}:pull"' in challenge
        token_path = f"/token?service=rig&scope=repository:{pushed.repository}:pull"
        assert got(proxy, token_path)[0] == 401
        right = {"Authorization": "Basic c29tZW9uZTpzZWNyZXQ="}
        status, body = got(proxy, token_path, right)
        bearer = {"Authorization": f"Bearer {json.loads(body)['token']}", **ACCEPT}
        assert status == 200
        assert got(proxy, path, bearer)[0] == 200
        assert got(proxy, "/v2/other/manifests/v1", bearer)[0] == 401
        auth.revoke()
        assert got(proxy, path, bearer)[0] == 401
        assert (auth.given, auth.refused) == (1, 1)
        assert urlsplit(f"http://{proxy.address}").port == proxy.port


def test_a_dead_registry_resets_and_comes_back(make_registry: MakeRegistry) -> None:
    own = make_registry()
    layer = images.build(images.ImageSpec(layers=(LayerSpec(size=64 << 20, compression="none", seed="big"),)))
    there = own.push("proxy/big", layer)
    path = f"/v2/proxy/big/blobs/{there.layer_digests[0]}"
    with FaultProxy(own.address) as proxy:
        proxy.rule(Trickle(4 << 20), path=BLOBS, times=1)
        with asked(proxy, path) as answer:
            answer.read(65_536)
            own.kill()
            assert read_until_it_breaks(answer)[1] is not None
        with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
            got(proxy, path)
        own.restart()
        assert len(got(proxy, path)[1]) == there.layers[0].size
