"""The disk budget on file systems that are really too small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.client import Client
from stoker.objects.images import ItemEvent, PlanRequest, WarmRequest
from tests.conformance.subject import eventually
from tests.integration.conftest import MakeStokerd, Publish
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Gate, Hold
from tests.rig.fixtures import MakeNode
from tests.rig.images import ImageSpec, random_image
from tests.rig.layers import LayerSpec
from tests.rig.stokerd import Store, ended, settle

MIB = 1 << 20


@contextmanager
def filler(directory: Path, size: int) -> Iterator[None]:
    """Take *size* bytes of a file system away."""
    path = directory / "filler"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    try:
        yield
    finally:
        path.unlink()


async def test_an_image_larger_than_the_disk_is_refused_before_the_download(
    make_node: MakeNode, make_stokerd: MakeStokerd, publish: Publish, proxy: FaultProxy
) -> None:
    node = make_node(disk_bytes=120 * MIB)
    stokerd = make_stokerd(node)
    pushed = publish(random_image(layers=3, size=150 * MIB, files=3, seed="too big"))
    image = f"{proxy.address}/{pushed.repository}:{pushed.tag}"
    before, free = Store.of(node), os.statvfs(node.root_dir).f_bavail
    gates = [Gate() for _ in pushed.layers]
    for gate, layer in zip(gates, pushed.layers, strict=True):
        proxy.rule(Hold(gate, after=MIB), path=layer.digest, method="GET")
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[image]))
        await proxy.seen("/blobs/")
        done = await ended(client, job.id)
    for gate in gates:
        gate.release()
    item = done.items[0]
    assert (item.reason, item.attempt) == ("DiskTooSmall", 1)
    assert "needed" in item.message
    assert "available" in item.message
    assert str(node.root_dir) in item.message
    sent = sum(proxy.bytes_sent(layer.digest) for layer in pushed.layers)
    assert sent < pushed.compressed_size / 10
    settle(node, before)
    assert abs(os.statvfs(node.root_dir).f_bavail - free) * 4096 < 2 * MIB


async def test_free_space_that_vanishes_stops_a_running_pull(
    make_node: MakeNode, make_stokerd: MakeStokerd, publish: Publish, proxy: FaultProxy
) -> None:
    node = make_node(disk_bytes=200 * MIB)
    stokerd = make_stokerd(node, images={"disk_reserve": "20MiB", "disk_floor": "16MiB"})
    pushed = publish(ImageSpec(layers=(LayerSpec(size=8 * MIB, seed="vanish"),)))
    image = f"{proxy.address}/{pushed.repository}:{pushed.tag}"
    before = Store.of(node)
    gate = Gate()
    proxy.rule(Hold(gate, after=4 * MIB), path=pushed.layers[0].digest, method="GET")
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[image], attempts=1))
        async for event in client.follow(job.id):
            if isinstance(event, ItemEvent) and event.item.progress.bytes_done >= MIB:
                break
        await eventually("space is promised to the pull", lambda: promised(client))
        state = os.statvfs(node.root_dir)
        with filler(node.root_dir, state.f_bavail * state.f_frsize - 10 * MIB):
            done = await ended(client, job.id)
    gate.release()
    assert done.items[0].reason == "DiskTooSmall"
    assert "floor" in done.items[0].message
    settle(node, before)


async def promised(client: Client) -> int:
    """Return the bytes that are promised to pulls that run: from then on the floor alone stops them."""
    return (await client.node()).space.needed_bytes


async def test_too_few_inodes(make_node: MakeNode, make_stokerd: MakeStokerd, publish: Publish) -> None:
    node = make_node(disk_bytes=200 * MIB, inodes=2000)
    stokerd = make_stokerd(node)
    small = publish(random_image(size=64 << 10, files=2, seed="few"))
    assert (await stokerd.warm(small.reference)).state == "Succeeded"
    before = Store.of(node)
    many = publish(random_image(size=4 * MIB, files=4000, seed="many"))
    job = await stokerd.warm(many.reference, attempts=1)
    assert job.items[0].reason in {"DiskTooSmall", "DiskFull"}, job.items[0].message
    settle(node, before)


async def test_plan_says_the_same_without_pulling(
    make_node: MakeNode, make_stokerd: MakeStokerd, publish: Publish, proxy: FaultProxy
) -> None:
    node = make_node(disk_bytes=120 * MIB)
    stokerd = make_stokerd(node)
    base = LayerSpec(size=40 * MIB, seed="plan base")
    one = publish(ImageSpec(layers=(base, LayerSpec(size=20 * MIB, seed="plan one", directory="own"))))
    two = publish(ImageSpec(layers=(base, LayerSpec(size=30 * MIB, seed="plan two", directory="own"))))
    names = [f"{proxy.address}/{each.repository}:{each.tag}" for each in (one, two)]
    before = Store.of(node)
    async with stokerd.client() as client:
        plan = await client.plan(PlanRequest(images=[*names, "registry.invalid/x:v1"]))
    assert [entry.download_bytes for entry in plan.images[:2]] == [one.compressed_size, two.compressed_size]
    assert plan.images[0].digest == one.digest
    assert plan.images[2].reason == "UnknownHost" or plan.images[2].reason == "RegistryUnreachable"
    shared = one.compressed_size + two.layers[1].size
    assert plan.space.needed_bytes > shared
    assert plan.space.needed_bytes < plan.images[0].unpack_bytes + plan.images[1].unpack_bytes + shared
    assert not plan.space.fits
    assert Store.of(node) == before
    layers = {layer.digest for layer in (*one.layers, *two.layers)}
    assert not [record for record in proxy.requests if any(digest in record.path for digest in layers)]


async def test_learned_sizes_make_plans_exact(make_stokerd: MakeStokerd, make_node: MakeNode, publish: Publish) -> None:
    node = make_node()
    stokerd = make_stokerd(node)
    pushed = publish(random_image(layers=2, size=4 * MIB, files=50, compressible=0.9, seed="learned"))
    async with stokerd.client() as client:
        before = (await client.plan(PlanRequest(images=[pushed.reference]))).images[0]
        assert before.unpack_estimated
        await stokerd.warm(pushed.reference)
        present = (await client.plan(PlanRequest(images=[pushed.reference]))).images[0]
        assert present.present
        assert present.download_bytes == present.unpack_bytes == 0
        await client.remove(pushed.reference)
        after = (await client.plan(PlanRequest(images=[pushed.reference]))).images[0]
    assert not after.unpack_estimated
    assert after.unpack_bytes > before.unpack_bytes  # it grows more than the default ratio supposes
    assert after.unpack_inodes >= 50
