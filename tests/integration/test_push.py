"""Pushes to a real registry through a proxy that goes wrong: what is taken once is not sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.pushes import ImagePusher
from stokerd.registry.client import RegistryClient
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import RegistryError, RegistryUnauthorized
from stokerd.registry.hosts import load_endpoints
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Policy
from tests.integration.checkpoint_scene import COUNT, Scene, scene
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Cut, Status, too_many_requests
from tests.rig.node import Node
from tests.rig.registry import Registry
from tests.rig.tokenauth import TokenAuth

MIB = 1 << 20
POLICY = Policy(chunk=2 * MIB, attempts=4, pause=0.0)
FILL = f"head -c {7 * MIB} /dev/urandom >/large; "
UPLOADS = "/blobs/uploads/"


@asynccontextmanager
async def pushing(here: Scene) -> AsyncIterator[ImagePusher]:
    async with RegistryClient(hosts=load_endpoints) as client:
        yield ImagePusher(here.runtime, client, Keyring([]), here.checkpoints.holder, POLICY)


def uploaded(proxy: FaultProxy) -> int:
    """Return how many bytes came in the bodies of uploads."""
    return sum(each.received for each in proxy.matching(UPLOADS) if each.method in {"PATCH", "PUT"})


async def test_a_committed_image_breaks_on_its_way_and_runs_from_there(node: Node, proxy: FaultProxy) -> None:
    async with scene(node, FILL + COUNT) as here, pushing(here) as pusher:
        name = f"{proxy.address}/made/app:v1"
        made = await here.checkpoints.commit(here.container, CommitWish(name, compression="zstd", level=3))
        await here.goes_on()
        # A chunk that the proxy has never passed on, an answer that never came, trouble of the moment.
        proxy.rule(Status(503), path=UPLOADS, method="POST", times=1)
        proxy.rule(Cut(at=MIB, before=True), path=UPLOADS, method="PATCH", nth=2)
        proxy.rule(Status(502), path=UPLOADS, method="PATCH", nth=4)
        proxy.rule(too_many_requests(0), path="/manifests/", method="PUT", times=1)
        done = await pusher.push(name)
        assert done.pushed.digest == made.target.digest
        assert uploaded(proxy) <= done.pushed.sent + 3 * POLICY.chunk
        again = await pusher.push(name)
        assert again.pushed.transferred == 0
        # What broke off in the middle of a chunk is thrown away by this registry: the blob is sent anew, and is right.
        other = f"{proxy.address}/made/other:v1"
        proxy.clear()
        proxy.rule(Cut(at=MIB), path=UPLOADS, method="PATCH", nth=2)
        for rule in (Status(500), Status(404)):
            proxy.rule(rule, path="mount=", method="POST")
        moved = await pusher.push(name, other)
        assert moved.pushed.sent > made.layer.size
        await asyncio.to_thread(node.ctr, "images", "rm", "--sync", name, made.id)
        await _runs(here, name)
        await asyncio.to_thread(node.ctr, "images", "rm", "--sync", name)


async def _runs(here: Scene, name: str) -> None:
    """Pull it as anybody would, and look into it."""
    bare = here.bare
    await here.runtime.cri.pull(name)
    pod = await bare.run_pod("from-the-registry")
    container = await bare.run(pod, "main", image=name, command=["sleep", "600"])
    assert (await bare.exec(container, "stat", "-c", "%s", "/large")).strip() == str(7 * MIB)
    await bare.remove_pod(pod)


async def test_who_may_push(node: Node, registry: Registry) -> None:
    auth = TokenAuth("me", "Hunter2-s3cret", expires_in=300)
    me, you = Credential("me", "Hunter2-s3cret"), Credential("you", "wrong")
    async with scene(node, COUNT) as here, pushing(here) as pusher:
        with FaultProxy(registry.address, auth=auth) as guarded:
            name = f"{guarded.address}/made/private:v1"
            made = await here.checkpoints.commit(here.container, CommitWish(name))
            with pytest.raises(RegistryUnauthorized) as caught:
                await pusher.push(name, credentials=[you])
            assert "made/private" in str(caught.value)
            challenge = auth.challenge("/v2/made/private/blobs/", f"http://{guarded.address}")
            for method in ("POST", "PUT"):  # a token that ends in the middle
                guarded.rule(Status(401, {"Www-Authenticate": challenge}), path=UPLOADS, method=method, times=1)
            done = await pusher.push(name, credentials=[you, me])
            assert done.pushed.digest == made.target.digest
            guarded.rule(Status(500), path="/manifests/", method="PUT")
            failing = f"{guarded.address}/made/failing:v1"
            with pytest.raises(RegistryError, match="made/failing"):
                await pusher.push(name, failing, credentials=[me])
        assert await here.leases() == []
        config = msgspec.json.decode(await here.runtime.content.read(made.id))
        assert config["history"][-1]["created_by"] == "stoker commit"
        await asyncio.to_thread(node.ctr, "images", "rm", "--sync", name, made.id)
