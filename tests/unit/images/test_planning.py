from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stoker.objects.images import ImagePlan, InlineAuth, PlanRequest
from stokerd.errors import InvalidInput, RuntimeTimeout
from stokerd.images.budget import DiskUnreadable
from stokerd.runtime.memory import MemoryOptions
from stokerd.runtime.memory_artifacts import Layer
from tests.unit.images.node import MIB, Node, full
from tests.unit.images.virtual import virtual

GIB = 1 << 30


async def plan(node: Node, *names: str) -> list[ImagePlan]:
    return (await node.service.plan(PlanRequest(images=[full(name) for name in names]))).images


@virtual
async def test_a_plan_fetches_manifests_alone_and_keeps_nothing(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        image = node.image(layers=[Layer.of(10 * MIB), Layer.of(MIB, "b")])
        (entry,) = await plan(node, "app:v1")
        assert (entry.digest, entry.platform) == (image.digest, node.runtime.options.platform)
        assert (entry.layers_total, entry.layers_missing, entry.download_bytes) == (2, 2, 11 * MIB)
        assert (entry.unpack_bytes, entry.unpack_estimated, entry.present) == (22 * MIB, True, False)
        assert not node.runtime.store.blobs
        assert not node.runtime.store.leases


@virtual
async def test_what_is_there_needs_nothing(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1")
        (entry,) = await plan(node, "app:v1")
        assert (entry.present, entry.layers_missing, entry.download_bytes, entry.unpack_bytes) == (True, 0, 0, 0)


@virtual
async def test_a_tag_that_has_moved_needs_what_the_new_image_does_not_share(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        base = Layer.of(4 * MIB, "base")
        node.image(layers=[base, MIB], seed="old")
        await node.warmed("app:v1")
        node.image(layers=[base, 2 * MIB], seed="new")
        (entry,) = await plan(node, "app:v1")
        assert (entry.present, entry.layers_missing, entry.download_bytes) == (False, 1, 2 * MIB)


@virtual
async def test_sizes_of_layers_that_were_unpacked_here_are_exact(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image(layers=[Layer.of(MIB, unpacked=50 * MIB, inodes=123)])
        await node.warmed("app:v1")
        await node.service.remove(full("app:v1"))
        (entry,) = await plan(node, "app:v1")
        assert (entry.unpack_bytes, entry.unpack_inodes, entry.unpack_estimated) == (50 * MIB + 4096, 124, False)


@virtual
async def test_shared_layers_count_once_against_the_disk(tmp_path: Path) -> None:
    async with Node(tmp_path, options=MemoryOptions(disk_bytes=2 * GIB)) as node:
        base = Layer.of(200 * MIB, "base")
        for name in ("one:v1", "two:v1", "three:v1"):
            node.image(name, layers=[base, MIB])
        whole = await node.service.plan(PlanRequest(images=[full(f"{n}:v1") for n in ("one", "two", "three")]))
        assert sum(entry.download_bytes for entry in whole.images) == 603 * MIB
        assert whole.space.needed_bytes == (200 + 3) * MIB * 3
        assert whole.space.fits
        node.image("four:v1", layers=[300 * MIB])
        whole = await node.service.plan(PlanRequest(images=[full(f"{n}:v1") for n in ("one", "four")]))
        assert not whole.space.fits
        assert whole.space.free_bytes == 2 * GIB


@virtual
async def test_what_cannot_be_resolved_is_part_of_the_plan(tmp_path: Path) -> None:
    async with Node(tmp_path, options=MemoryOptions(platform="linux/amd64")) as node:
        node.image("good:v1")
        node.image("foreign:v1", platforms=["linux/s390x"], index=True)
        entries = await plan(node, "good:v1", "missing:v1", "foreign:v1")
        assert [entry.reason for entry in entries] == ["", "NotFound", "NoMatchingPlatform"]
        assert entries[1].message
        assert "linux/s390x" in entries[2].message
        with pytest.raises(InvalidInput):
            await plan(node, "good:v1", "Bad Name")


@virtual
async def test_an_index_is_followed_to_this_machines_manifest(tmp_path: Path) -> None:
    async with Node(tmp_path, options=MemoryOptions(platform="linux/amd64")) as node:
        image = node.image(layers=[3 * MIB], platforms=["linux/arm64", "linux/amd64"], attested=True)
        (entry,) = await plan(node, "app:v1")
        assert (entry.digest, entry.platform) == (image.digest, "linux/amd64")
        assert entry.download_bytes == 3 * MIB


@virtual
async def test_a_runtime_that_fails_costs_one_image(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image("one:v1")
        node.image("two:v1")
        node.runtime.fail("snapshots.Stat", RuntimeTimeout("slow"))
        entries = await plan(node, "one:v1", "two:v1")
        assert sorted(entry.reason for entry in entries) == ["", "RuntimeTimeout"]


@virtual
async def test_without_a_journal_sizes_are_estimates_and_without_a_disk_there_is_no_plan(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1")
        await node.service.remove(full("app:v1"))
        connection, node.database._connection = node.database._connection, None
        (entry,) = await plan(node, "app:v1")
        assert entry.unpack_estimated
        node.database._connection = connection
        node.disk_error = OSError(errno.ENOENT, "No such file or directory", "/proc/1/root/x")
        with pytest.raises(DiskUnreadable):
            await plan(node, "app:v1")


@virtual
async def test_a_plan_takes_credentials(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        auth = InlineAuth(registry="registry.test", username="me", password="secret")
        request = PlanRequest(images=[full("app:v1")], auths=[auth])
        assert [entry.reason for entry in (await node.service.plan(request)).images] == [""]
