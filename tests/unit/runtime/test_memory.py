"""The in-memory runtime beyond what it shares with containerd: its images, its disk, its odd cases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable

import pytest

from stokerd.errors import RuntimeFailure, RuntimeNoSpace, RuntimeUnavailable
from stokerd.images.failures import classify
from stokerd.images.manifests import Index, Manifest, parse_config, parse_document
from stokerd.images.space import FileSystem
from stokerd.runtime.memory import MemoryOptions, MemoryRuntime
from stokerd.runtime.memory_artifacts import Layer, Reference
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import RegistryAuth

MIB = 1 << 20
APP = "registry.test/app:v1"


@pytest.fixture
async def memory() -> MemoryRuntime:
    return MemoryRuntime()


async def failure(memory: MemoryRuntime, reference: str, auth: RegistryAuth | None = None) -> RuntimeFailure:
    with pytest.raises(RuntimeFailure) as caught:
        await memory.cri.pull(reference, auth=auth)
    return caught.value


async def settled() -> None:
    """Let everything run that can run without waiting."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_is_a_runtime() -> None:
    async def make() -> Runtime:
        return MemoryRuntime()

    assert asyncio.run(make()).ready


class TestArtifacts:
    @pytest.mark.parametrize("style", ["oci", "docker"])
    def test_documents_are_real(self, memory: MemoryRuntime, style: str) -> None:
        image = memory.remote.add_image(
            APP,
            layers=[3 * MIB, Layer.of(5, compression="zstd"), Layer.of(6, compression="none")],
            platforms=["linux/amd64", "linux/arm64", "linux/arm/v7"],
            attested=True,
            style="oci" if style == "oci" else "docker",
        )
        index = parse_document(image.document)
        assert isinstance(index, Index)
        assert [str(entry.platform) for entry in index.entries[:3]] == ["linux/amd64", "linux/arm64", "linux/arm/v7"]
        assert [entry.attestation for entry in index.entries] == [False, False, False, True, True, True]
        for entry, variant in zip(index.entries, image.variants, strict=False):
            assert entry.descriptor.digest == variant.manifest_digest
            assert entry.descriptor.size == len(variant.manifest)
            manifest = parse_document(variant.manifest)
            assert isinstance(manifest, Manifest)
            assert manifest.config.digest == variant.config_digest
            assert [layer.size for layer in manifest.layers] == [3 * MIB, 5, 6]
            config = parse_config(variant.config)
            assert str(config.platform) == variant.platform
            assert config.chain_ids == variant.chain_ids
        assert len({variant.config_digest for variant in image.variants}) == 3

    def test_layers_are_shared_by_seed(self) -> None:
        assert Layer.of(5, "a") == Layer.of(5, "a")
        assert Layer.of(5, "a").digest != Layer.of(5, "b").digest
        assert Layer.of(5, "a").digest != Layer.of(6, "a").digest
        assert Layer.of(5).unpacked == 10
        assert Layer.of(5, unpacked=7, inodes=3) == Layer.of(5, unpacked=7, inodes=3)

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("bitnami/nginx", "docker.io/bitnami/nginx:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("registry.test:5000/a/b:v1", "registry.test:5000/a/b:v1"),
            ("registry.test/a@sha256:1", "registry.test/a@sha256:1"),
            ("registry.test/a:v1@sha256:1", "registry.test/a@sha256:1"),
        ],
    )
    def test_references(self, text: str, name: str) -> None:
        assert str(Reference.parse(text)) == name

    @pytest.mark.parametrize("text", ["", "a b", ":v1", "@sha256:1", "registry.test/"])
    def test_what_is_no_reference(self, text: str) -> None:
        assert Reference.parse(text) is None

    async def test_pulls_what_is_for_its_platform(self) -> None:
        for platform in ("linux/amd64", "linux/arm64"):
            memory = MemoryRuntime(MemoryOptions(platform=platform))
            image = memory.remote.add_image(APP, platforms=["linux/amd64", "linux/arm64"])
            assert await memory.cri.pull(APP) == image.variant(platform).config_digest


class TestDisk:
    async def test_counts_what_is_there(self, memory: MemoryRuntime) -> None:
        image = memory.remote.add_image(APP, layers=[Layer.of(MIB, unpacked=3 * MIB, inodes=5)])
        await memory.cri.pull(APP)
        documents = len(image.document) + len(image.first.config)
        assert memory.disk.used_bytes == documents + MIB + 3 * MIB + 4096
        assert memory.disk.used_inodes == 3 + 5 + 1
        state = FileSystem(*memory.disk.state())
        assert state.path == memory.info.root
        assert state.total_bytes - state.free_bytes == memory.disk.used_bytes
        assert state.total_inodes - state.free_inodes == memory.disk.used_inodes
        memory.disk.other_bytes = state.free_bytes + 5
        assert memory.disk.state().free_bytes == 0
        await memory.cri.remove(APP)
        assert (memory.disk.used_bytes, memory.disk.used_inodes) == (0, 0)

    @pytest.mark.parametrize("generation", ["1.6", "1.7", "2.1"])
    async def test_is_empty_after_every_kind_of_end(self, generation: str) -> None:
        memory = MemoryRuntime(pinning=generation != "1.6")
        memory.remote.add_image(APP, layers=[2 * MIB, MIB], attested=True)
        for stage in ("index", "manifest", "config", "layer:1", "unpack:1", "record"):
            memory.remote.fail(APP, stage, "no")
            await memory.leases.create(stage, {})
            with pytest.raises(RuntimeFailure):
                await memory.cri.pull(APP, lease=stage)
        for lease in await memory.leases.list():
            await memory.leases.delete(lease.id)
        assert (memory.disk.used_bytes, memory.disk.used_inodes) == (0, 0)
        assert await memory.content.list() == ()
        assert await memory.snapshots.list() == ()

    @pytest.mark.parametrize(
        ("disk_bytes", "disk_inodes", "words"),
        [(MIB, 1000, "failed to copy: write "), (3 * MIB, 1000, "failed to extract layer "), (100 * MIB, 8, "extract")],
    )
    async def test_full(self, disk_bytes: int, disk_inodes: int, words: str) -> None:
        memory = MemoryRuntime(MemoryOptions(disk_bytes=disk_bytes, disk_inodes=disk_inodes))
        memory.remote.add_image(APP, layers=[Layer.of(2 * MIB, unpacked=4 * MIB, inodes=20)])
        error = await failure(memory, APP)
        assert isinstance(error, RuntimeNoSpace)
        assert words in error.message
        assert error.message.endswith("no space left on device")
        assert classify(error, APP).reason == "DiskFull"
        assert memory.disk.used_bytes == 0


class TestOddImages:
    @pytest.mark.parametrize(
        ("generation", "words"),
        [("1.6", "no processor for media-type"), ("1.7", "mismatched image rootfs"), ("2.1", None)],
    )
    async def test_with_nothing_that_can_be_unpacked(self, generation: str, words: str | None) -> None:
        options = {"1.6": MemoryOptions("1.6"), "1.7": MemoryOptions("1.7"), "2.1": MemoryOptions("2.1")}
        memory = MemoryRuntime(options[generation])
        memory.remote.add_image(APP, layers=[Layer.of(100, compression="unknown")])
        if words is None:
            await memory.cri.pull(APP)
        else:
            assert words in (await failure(memory, APP)).message
        assert await memory.images.get(APP) is not None
        assert await memory.snapshots.list() == ()

    async def test_with_something_that_cannot_be_unpacked(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP, layers=[100, Layer.of(100, compression="unknown")])
        assert "number of layers and diffIDs don't match: 1 != 2" in (await failure(memory, APP)).message
        assert await memory.images.get(APP) is None

    async def test_without_layers(self, memory: MemoryRuntime) -> None:
        image = memory.remote.add_image(APP, layers=[])
        assert await memory.cri.pull(APP) == image.id
        assert await memory.snapshots.list() == ()

    async def test_with_the_same_layer_twice(self, memory: MemoryRuntime) -> None:
        layer = Layer.of(MIB)
        image = memory.remote.add_image(APP, layers=[layer, layer])
        await memory.cri.pull(APP)
        assert memory.remote.fetched[layer.digest] == MIB
        assert len(set(image.first.chain_ids)) == 2
        assert {info.name for info in await memory.snapshots.list()} == set(image.first.chain_ids)

    async def test_with_an_empty_layer(self, memory: MemoryRuntime) -> None:
        memory.remote.add_image(APP, layers=[0])
        await memory.cri.pull(APP)

    async def test_many_at_once(self, memory: MemoryRuntime) -> None:
        base = Layer.of(4 * MIB, "base")
        images = [memory.remote.add_image(f"registry.test/app{n}:v1", layers=[base, 1000]) for n in range(30)]
        ids: list[Awaitable[str]] = [memory.cri.pull(image.reference) for image in images]
        assert await asyncio.gather(*ids) == [image.id for image in images]
        assert memory.remote.fetched[base.digest] == base.size
        assert len(await memory.cri.list()) == 30
        assert len(await memory.images.list()) == 90


async def test_what_is_in_use_is_told(memory: MemoryRuntime) -> None:
    memory.used.update({APP, "sha256:1"})
    assert await memory.cri.in_use() == {APP, "sha256:1"}


async def test_documents_are_what_was_fetched(memory: MemoryRuntime) -> None:
    image = memory.remote.add_image(APP)
    await memory.cri.pull(APP)
    manifest = json.loads(await memory.content.read(image.digest))
    assert manifest["config"]["digest"] == image.id
    assert await memory.content.read(image.layers[0].digest) == bytes(image.layers[0].size)


async def test_closed(memory: MemoryRuntime) -> None:
    told: list[bool] = []
    memory.on_change(lambda: told.append(memory.ready))
    await memory.close()
    assert not memory.ready
    with pytest.raises(RuntimeUnavailable):
        _ = memory.cri
    assert told == []
