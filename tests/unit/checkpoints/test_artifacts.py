"""Checkpoints pushed by one node in memory and pulled by another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.objects.images import InlineAuth
from stokerd.checkpoints import freezing, shipping
from stokerd.checkpoints.archive_plan import Limits
from stokerd.checkpoints.artifacts import MEMORY_TYPE, ROOT_TYPE, SHM_TYPE, read_artifact
from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.checkpoints.importing import ImportWish
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.shipping import Shipper
from stokerd.errors import InvalidInput, NotFound
from stokerd.registry.client import RegistryClient
from stokerd.registry.content import OCI_MANIFEST, digest_of
from stokerd.registry.errors import DigestMismatch, RegistryError
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Policy
from tests.unit.checkpoints.bench import IMAGE, Bench
from tests.unit.registry.uploading import PushRegistry

NAME = "reg.example/checkpoints/app:v1"
QUICK = Policy(attempts=2, pause=0.0, chunk=1 << 20)


class Ship:
    """A node in memory with what ships to and from one registry."""

    def __init__(self, tmp: Path, registry: PushRegistry) -> None:
        self.bench = Bench(tmp)
        self.client = RegistryClient(hosts=lambda _: (registry.endpoint,))
        self.pulled: list[str] = []
        self.shipper = Shipper(self.bench.runtime, self.client, Keyring([]), self, self.bench.room.holder, QUICK)

    async def warm(self, image: str, auths: Sequence[InlineAuth]) -> None:
        self.pulled.append(image)
        self.bench.runtime.load_image(IMAGE)

    async def push(self, manifest: Manifest, to: str = NAME) -> None:
        await self.shipper.push(await self.bench.room.exporter(), manifest, to)

    async def get(self, wish: ImportWish, name: str = NAME) -> Manifest:
        return await self.shipper.pull(await self.bench.room.importer(), name, wish)


@pytest.fixture
async def registry() -> AsyncIterator[PushRegistry]:
    async with PushRegistry() as made:
        yield made


@pytest.fixture
async def here(tmp_path: Path, registry: PushRegistry, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ship]:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    made = Ship(tmp_path / "here", registry)
    yield made
    await made.client.aclose()


@pytest.fixture
async def there(tmp_path: Path, registry: PushRegistry) -> AsyncIterator[Ship]:
    made = Ship(tmp_path / "there", registry)
    yield made
    await made.client.aclose()


async def test_from_one_node_to_another(
    here: Ship, there: Ship, registry: PushRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_FRAMES", 1)
    made = await here.bench.room.create(here.bench.container())
    await here.push(made)
    sent = registry.taken
    await here.push(made)
    assert registry.taken == sent
    assert await here.bench.runtime.leases.list() == ()
    document = msgspec.json.decode(registry.manifests["v1"][1])
    assert document["annotations"]["org.criu.checkpoint.container.name"] == "app"
    assert document["annotations"]["org.opencontainers.image.base.name"] == IMAGE
    container = there.bench.runtime.add_container(there.bench.pod, "like", IMAGE)
    back = await there.get(ImportWish(like=container, name="from-afar"))
    assert there.pulled == []
    assert back.name == "from-afar"
    assert [part for part in back.parts if part.path.startswith("images/")] == [
        part for part in made.parts if part.path.startswith("images/")
    ]
    await there.bench.room.verify(back.id)


async def test_the_image_is_pulled_by_its_digest(here: Ship, there: Ship) -> None:
    made = await here.bench.room.create(here.bench.container())
    await here.push(made)
    back = await there.get(ImportWish(trust=True))
    await there.bench.room.verify(back.id)
    await there.bench.room.remove(back.id)
    (pulled,) = there.pulled
    record = await here.bench.runtime.images.get(IMAGE)
    assert record is not None
    assert pulled == f"{IMAGE.rpartition(':')[0]}@{record.target.digest}"
    assert there.bench.left() == []


async def test_what_goes_wrong_leaves_nothing(here: Ship, there: Ship, registry: PushRegistry) -> None:
    made = await here.bench.room.create(here.bench.container())
    with pytest.raises(InvalidInput, match="digest"):
        await here.push(made, "reg.example/app@sha256:" + "0" * 64)
    await here.push(made)
    container = there.bench.runtime.add_container(there.bench.pod, "like", IMAGE)
    document = msgspec.json.decode(registry.manifests["v1"][1])
    for layer in document["layers"]:
        whole = registry.blobs[layer["digest"]]
        for body, kind in ((_damaged(whole), (DigestMismatch, ArchiveRefused)), (None, RegistryError)):
            if body is None:
                del registry.blobs[layer["digest"]]
            else:
                registry.blobs[layer["digest"]] = body
            with pytest.raises(kind):
                await there.get(ImportWish(like=container))
            assert there.bench.left() == []
        registry.blobs[layer["digest"]] = whole
    with pytest.raises(InvalidInput, match="like"):
        await there.get(ImportWish())
    with pytest.raises(NotFound):
        await there.get(ImportWish(like="nobody"))
    assert there.bench.left() == []


# ------------------------------------------------------------------------------------------------ manifests


def _damaged(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


def layers(*kinds: str) -> list[dict[str, Any]]:
    return [{"mediaType": kind, "digest": digest_of(kind.encode()), "size": 10} for kind in kinds]


def document(*kinds: str, **fields: Any) -> bytes:
    config = {"mediaType": "application/vnd.stoker.checkpoint.contents.v1+json", "digest": digest_of(b""), "size": 1}
    base = {"artifactType": "application/vnd.stoker.checkpoint.v1", "config": config, "layers": layers(*kinds)}
    return msgspec.json.encode({**base, **fields})


GOOD = (ROOT_TYPE, MEMORY_TYPE, MEMORY_TYPE, SHM_TYPE)


def test_the_parts_of_an_artifact() -> None:
    found = read_artifact(document(*GOOD), Limits(100))
    assert (len(found.memory), found.bytes, found.base) == (2, 41, None)
    assert found.shm is not None
    names = {
        "org.opencontainers.image.base.name": "python:3.12",
        "org.opencontainers.image.base.digest": digest_of(b""),
    }
    base = read_artifact(document(*GOOD, annotations=names), Limits(100)).base
    assert str(base) == f"docker.io/library/python@{digest_of(b'')}"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        document(*GOOD, artifactType="other"),
        document(*GOOD, config={"mediaType": OCI_MANIFEST, "digest": digest_of(b""), "size": 1}),
        document(*GOOD, config={"mediaType": "x", "digest": "x", "size": 1 << 40}),
        document(ROOT_TYPE),
        document(MEMORY_TYPE, ROOT_TYPE),
        document(ROOT_TYPE, MEMORY_TYPE, SHM_TYPE, SHM_TYPE),
        document(ROOT_TYPE, MEMORY_TYPE, "application/octet-stream"),
        document(*GOOD, layers=[{"mediaType": ROOT_TYPE, "digest": "x", "size": -5}, *layers(MEMORY_TYPE)]),
        document(*GOOD, layers=[{"mediaType": ROOT_TYPE, "digest": "x", "size": 1 << 60}, *layers(MEMORY_TYPE)]),
    ],
)
def test_what_is_no_checkpoint(body: bytes) -> None:
    with pytest.raises(ArchiveRefused):
        read_artifact(body, Limits(1000))


@pytest.mark.parametrize(
    "names",
    [
        {"org.opencontainers.image.base.name": "UPPER", "org.opencontainers.image.base.digest": digest_of(b"")},
        {"org.opencontainers.image.base.name": "python:3", "org.opencontainers.image.base.digest": "latest"},
        {"org.opencontainers.image.base.name": 7},
        {},
    ],
)
def test_a_base_that_is_none(names: dict[str, Any]) -> None:
    assert read_artifact(document(*GOOD, annotations=names), Limits(1000)).base is None
