"""Warming images on a real containerd: what a user asks for is there, and nothing else is."""

from __future__ import annotations

from stoker.objects.images import ItemEvent, JobEvent, WarmRequest
from tests.integration.conftest import Publish
from tests.rig.images import ImageSpec, Platform, build, index, random_image
from tests.rig.layers import Compression, LayerSpec
from tests.rig.node import Node
from tests.rig.registry import Registry
from tests.rig.stokerd import Stokerd, Store, settle


async def test_an_image_is_pulled_unpacked_and_visible(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    pushed = publish(random_image(layers=3, size=3 << 20, files=30, seed="basic"))
    before = Store.of(clean_node)
    job = await stokerd.warm(pushed.reference)
    assert job.state == "Succeeded", job.items
    item = job.items[0]
    assert (item.phase, item.reason, item.digest) == ("Succeeded", "Pulled", pushed.digest)
    assert item.progress.percent == 100
    assert item.progress.layers_unpacked == item.progress.layers_total == 3
    assert item.pulled_bytes == pushed.compressed_size
    after = Store.of(clean_node)
    assert after.leases == before.leases
    assert after.ingests == before.ingests
    assert len(after.snapshots - before.snapshots) == 3
    assert pushed.reference in after.images


async def test_a_second_warm_finds_it_there(stokerd: Stokerd, publish: Publish) -> None:
    pushed = publish(random_image(seed="second"))
    await stokerd.warm(pushed.reference)
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[pushed.reference]))
    assert job.state == "Succeeded"  # in the very answer
    assert job.items[0].reason == "AlreadyPresent"
    assert job.items[0].pulled_bytes == 0


async def test_always_sees_a_tag_that_moved(stokerd: Stokerd, publish: Publish) -> None:
    old = publish(random_image(seed="old"), name="test/moving")
    await stokerd.warm(old.reference)
    new = publish(random_image(seed="new"), name="test/moving")
    still = await stokerd.warm(old.reference)
    assert still.items[0].digest == old.digest
    moved = await stokerd.warm(old.reference, policy="Always")
    item = moved.items[0]
    assert (item.reason, item.digest, item.previous_digest) == ("Moved", new.digest, old.digest)
    assert old.digest in item.message
    again = await stokerd.warm(old.reference, policy="Always")
    assert (again.items[0].reason, again.items[0].previous_digest) == ("Pulled", "")


async def test_presence_by_digest(stokerd: Stokerd, publish: Publish) -> None:
    pushed = publish(random_image(seed="digest"))
    by_digest = f"{pushed.reference.rpartition(':')[0]}@{pushed.digest}"
    first = await stokerd.warm(by_digest)
    assert first.items[0].reason == "Pulled"
    second = await stokerd.warm(by_digest)
    assert second.items[0].reason == "AlreadyPresent"
    both = await stokerd.warm(f"{pushed.reference}@{pushed.digest}")
    assert both.items[0].reason == "AlreadyPresent"


async def test_an_index_with_attestations(stokerd: Stokerd, registry: Registry) -> None:
    own, foreign = build(random_image(seed="own")), build(ImageSpec(platform=Platform.foreign()))
    pushed = registry.push("test/multi", index([foreign, own], attested=True))
    job = await stokerd.warm(pushed.reference)
    assert job.items[0].reason == "Pulled", job.items[0].message
    assert job.items[0].digest == pushed.digest
    assert job.items[0].progress.layers_total == len(own.layers)


async def test_all_compressions_and_no_layers_at_all(stokerd: Stokerd, publish: Publish) -> None:
    kinds: tuple[Compression, ...] = ("gzip", "zstd", "none")
    references = [
        publish(ImageSpec(layers=(LayerSpec(size=200_000, seed=kind, compression=kind),))).reference for kind in kinds
    ]
    references.append(publish(ImageSpec(layers=())).reference)
    job = await stokerd.warm(*references)
    assert [item.phase for item in job.items] == ["Succeeded"] * 4, [item.message for item in job.items]
    assert [item.progress.percent for item in job.items] == [100.0] * 4


async def test_shared_layers_are_shown_as_present(stokerd: Stokerd, publish: Publish) -> None:
    base = LayerSpec(size=500_000, seed="base")
    one = publish(ImageSpec(layers=(base, LayerSpec(size=10_000, seed="one", directory="x"))))
    two = publish(ImageSpec(layers=(base, LayerSpec(size=10_000, seed="two", directory="x"))))
    await stokerd.warm(one.reference)
    job = await stokerd.warm(two.reference)
    progress = job.items[0].progress
    assert [layer.state for layer in progress.layers] == ["present", "done"]
    assert progress.bytes_present == two.layers[0].size
    assert job.items[0].pulled_bytes == two.layers[1].size


async def test_progress_only_moves_forward(stokerd: Stokerd, publish: Publish) -> None:
    pushed = publish(random_image(layers=4, size=60 << 20, files=400, seed="progress"))
    seen: list[tuple[float, int, int]] = []
    states: set[str] = set()
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[pushed.reference]))
        async for event in client.follow(job.id):
            items = event.job.items if isinstance(event, JobEvent) else []
            for item in [event.item] if isinstance(event, ItemEvent) else items:
                progress = item.progress
                seen.append((progress.percent, progress.bytes_done, progress.layers_unpacked))
                states |= {layer.state for layer in progress.layers}
    assert seen == sorted(seen)
    assert seen[-1] == (100.0, pushed.compressed_size, 4)
    assert any(0 < percent < 100 for percent, _, _ in seen)
    assert "downloading" in states


async def test_removal_brings_the_store_back(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    before = Store.of(clean_node)
    pushed = publish(random_image(layers=2, size=1 << 20, seed="removal"))
    await stokerd.warm(pushed.reference)
    async with stokerd.client() as client:
        result = await client.remove(pushed.reference)
    assert pushed.reference in result.removed
    settle(clean_node, before)
