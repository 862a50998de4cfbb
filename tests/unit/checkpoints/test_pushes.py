"""Images of a node in memory pushed to registries: what is not here is mounted, or fetched again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.holding import Holder
from stokerd.checkpoints.image_plan import Held, base_annotations, plan, source_label
from stokerd.checkpoints.pushes import ImagePusher
from stokerd.errors import NotFound
from stokerd.registry.client import RegistryClient
from stokerd.registry.content import DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, digest_of
from stokerd.registry.errors import BlobMissing
from stokerd.registry.hosts import RegistryEndpoint
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Policy
from stokerd.registry.references import Reference, parse_reference
from stokerd.runtime.memory import MemoryRuntime
from stokerd.runtime.types import Descriptor
from tests.unit.checkpoints.bench import Bench
from tests.unit.registry.uploading import PushRegistry

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = Policy(attempts=2, pause=0.0)
CONFIG, LAYER = b'{"rootfs":{"diff_ids":[]}}', b"layer" * 1000


def described(body: bytes, kind: str = "application/octet-stream") -> dict[str, object]:
    return {"mediaType": kind, "digest": digest_of(body), "size": len(body)}


def manifest_of(*layers: bytes, **more: object) -> bytes:
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described(CONFIG)}
    return msgspec.json.encode({**document, "layers": [described(each) for each in layers], **more})


async def once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


class Node:
    """A node in memory, and the registries that it can reach by their hosts."""

    def __init__(self, runtime: MemoryRuntime | None = None) -> None:
        self.runtime = runtime or MemoryRuntime()
        self.registries: dict[str, PushRegistry] = {}
        self.client = RegistryClient(hosts=self._hosts)
        self.pusher = ImagePusher(
            self.runtime, self.client, Keyring([]), Holder(self.runtime, "stokerd-1", lambda: NOW), QUICK
        )

    def _hosts(self, host: str) -> tuple[RegistryEndpoint, ...]:
        return (self.registries[host].endpoint,) if host in self.registries else ()

    async def keep(self, body: bytes, **labels: str) -> str:
        digest = digest_of(body)
        labels = {"containerd.io/gc.root": "now", **{name.replace("__", "/"): text for name, text in labels.items()}}
        await self.runtime.content.write(digest, once(body), digest=digest, labels=labels)
        return digest

    async def image(self, name: str, manifest: bytes, *bodies: bytes, kind: str = OCI_MANIFEST) -> None:
        for body in (manifest, *bodies):
            await self.keep(body)
        await self.runtime.images.put(name, Descriptor(kind, digest_of(manifest), len(manifest)), {})


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    yield made
    await made.client.aclose()


async def test_an_image_under_its_own_name_and_another(node: Node) -> None:
    async with PushRegistry() as registry:
        node.registries = {"reg.example": registry, "other.example": registry}
        await node.image("reg.example/team/app:v1", manifest_of(LAYER), CONFIG, LAYER)
        done = await node.pusher.push("reg.example/team/app:v1")
        assert (done.image, done.partial) == ("reg.example/team/app:v1", False)
        assert registry.manifests["v1"] == (OCI_MANIFEST, manifest_of(LAYER))
        done = await node.pusher.push("reg.example/team/app:v1", "other.example/mine")
        assert done.image == "other.example/mine:latest"
        assert done.pushed.existing == len(CONFIG) + len(LAYER)
        info = await node.runtime.content.info(digest_of(LAYER))
        assert info is not None
        assert info.labels["containerd.io/distribution.source.reg.example"] == "team/app"
        assert await node.runtime.leases.list() == ()


async def test_what_containerd_has_dropped_is_mounted_or_fetched_again(node: Node) -> None:
    async with PushRegistry() as target, PushRegistry() as origin:
        node.registries = {"reg.example": target, "base.example": origin}
        origin.blobs[digest_of(LAYER)] = LAYER
        names = {"org.opencontainers.image.base.name": "base.example/base:v2"}
        await node.image("reg.example/app:v1", manifest_of(LAYER, annotations=names), CONFIG)
        done = await node.pusher.push("reg.example/app:v1")
        assert done.pushed.sent == len(CONFIG) + len(LAYER)
        assert target.blobs[digest_of(LAYER)] == LAYER
        node.runtime.collect()
        assert await node.runtime.content.info(digest_of(LAYER)) is None
        target.blobs.clear()
        target.elsewhere["base", digest_of(LAYER)] = LAYER
        names = {"org.opencontainers.image.base.name": "reg.example/base:v2"}
        await node.image("reg.example/app:v2", manifest_of(LAYER, annotations=names), CONFIG)
        assert (await node.pusher.push("reg.example/app:v2")).pushed.mounted == len(LAYER)


async def test_what_is_nowhere_is_named(node: Node) -> None:
    async with PushRegistry() as target:
        node.registries = {"reg.example": target}
        await node.image("reg.example/app:v1", manifest_of(LAYER), CONFIG)
        with pytest.raises(BlobMissing, match=digest_of(LAYER)) as caught:
            await node.pusher.push("reg.example/app:v1")
        assert caught.value.hint
        assert "v1" not in target.manifests
        assert await node.runtime.leases.list() == ()


async def test_an_index_as_it_is_or_what_of_it_is_here(node: Node) -> None:
    async with PushRegistry() as target:
        node.registries = {"reg.example": target}
        one, two = manifest_of(LAYER), manifest_of(LAYER, LAYER)
        index = msgspec.json.encode({"schemaVersion": 2, "manifests": [described(one), described(two)]})
        await node.image("reg.example/app:v1", index, one, two, CONFIG, LAYER, kind=OCI_INDEX)
        assert not (await node.pusher.push("reg.example/app:v1")).partial
        assert target.manifests["v1"] == (OCI_INDEX, index)
        assert {digest_of(one), digest_of(two)} <= target.manifests.keys()
        with pytest.raises(NotFound):
            await node.pusher.push("reg.example/other:v1")


async def test_a_committed_image(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    node = Node(bench.runtime)
    async with PushRegistry() as target, node.client:
        node.registries = {"stoker.test": target}
        made = await bench.room.commit(bench.container(), CommitWish("stoker.test/made:v1", compression="zstd"))
        base = msgspec.json.decode(await bench.runtime.content.read(made.target.digest))["layers"][:-1]
        target.elsewhere = {("app", each["digest"]): b"" for each in base}
        done = await node.pusher.push("stoker.test/made:v1")
        assert done.pushed.mounted == sum(each["size"] for each in base)
        assert made.layer.digest in target.blobs


# ------------------------------------------------------------------------------------------------ decisions


def test_where_blobs_may_be_mounted_from() -> None:
    body = manifest_of(LAYER)
    held = Held(Descriptor(DOCKER_MANIFEST, digest_of(body), len(body)), body, {})
    labels = {digest_of(LAYER): {"containerd.io/distribution.source.quay.io": "a,b", "other": "x"}}
    found = plan(
        held,
        (),
        labels,
        parse_reference("quay.io/mine:v1"),
        ["docker.io/c:v1", "sha256:" + "0" * 64, "quay.io/d@sha256:" + "0" * 64],
    )
    mounts = {each.digest: each.mounts for each in found.load.blobs}
    assert mounts == {digest_of(CONFIG): ("d",), digest_of(LAYER): ("a", "b", "d")}
    assert Reference("docker.io", "library/c", "v1") in found.origins[digest_of(LAYER)]
    (top,) = found.load.documents
    assert (top.tag, top.media_type) == ("v1", DOCKER_MANIFEST)


def test_labels_remember_up_to_a_length() -> None:
    target = Reference("r.example", "app")
    name = "containerd.io/distribution.source.r.example"
    assert source_label(target, {}) == {name: "app"}
    assert source_label(target, {name: "base"}) == {name: "base,app"}
    assert source_label(target, {name: "base,app"}) == {}
    assert source_label(target, {name: "x" * 4000}) == {}


def test_a_base_is_known_by_the_name_that_people_use() -> None:
    digest = "sha256:" + "1" * 64
    names = [digest, f"docker.io/library/python@{digest}", "docker.io/library/python:3.12"]
    assert base_annotations(names, digest)["org.opencontainers.image.base.name"] == "docker.io/library/python:3.12"
    assert base_annotations([digest], digest) == {}
