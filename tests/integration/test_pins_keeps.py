"""Pins, kept images and removal, as the runtime sees them."""

from __future__ import annotations

import pytest

from stoker.client import Client, ClientError
from stoker.objects.images import KeepRequest, PinRequest
from tests.conformance.subject import eventually
from tests.integration.conftest import MakeStokerd, Publish
from tests.rig.images import random_image
from tests.rig.node import Node
from tests.rig.push import Pushed
from tests.rig.stokerd import Stokerd, Store
from tests.rig.waiting import until

FIRST_WITH_PINS = "1.7"


def pins_of(node: Node, pushed: Pushed) -> set[str]:
    """The records of the image that carry the label."""
    return {name for name in Store.of(node).pinned if pushed.repository in name or pushed.config_digest in name}


async def test_a_pin_is_seen_by_the_runtime_and_unpin_clears_every_record(
    stokerd: Stokerd, clean_node: Node, publish: Publish, suite: str
) -> None:
    pushed = publish(random_image(seed="pinned"))
    await stokerd.warm(pushed.reference)
    async with stokerd.client() as client:
        await client.pin(PinRequest(image=pushed.reference))
        assert len(pins_of(clean_node, pushed)) == 3
        pin = (await client.pins()).pins[0]
        if suite == "bookworm":  # containerd 1.6 does not know pins, and that is said
            assert not pin.verified
            assert FIRST_WITH_PINS in pin.message
        else:
            assert pin.verified
        with pytest.raises(ClientError) as caught:
            await client.remove(pushed.reference)
        assert caught.value.status == 409
        await client.unpin(pushed.reference)
        assert not pins_of(clean_node, pushed)
        with pytest.raises(ClientError) as caught:
            await client.unpin(pushed.reference)
        assert caught.value.status == 404


async def test_pins_expire(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    pushed = publish(random_image(seed="expires"))
    await stokerd.warm(pushed.reference, pin_seconds=600)
    assert pins_of(clean_node, pushed)
    async with stokerd.client() as client:
        (pin,) = (await client.pins()).pins
        assert pin.expires_at is not None
        await client.pin(PinRequest(image=pushed.reference, seconds=0.5))
        until("the pin has expired", lambda: not pins_of(clean_node, pushed))
        assert (await client.pins()).pins == []


async def test_a_pin_of_somebody_else_is_left_alone(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    pushed = publish(random_image(seed="theirs"))
    await stokerd.warm(pushed.reference)
    clean_node.ctr("images", "label", pushed.reference, "io.cri-containerd.pinned=pinned")
    async with stokerd.client() as client:
        await client.pin(PinRequest(image=pushed.reference))
        await client.unpin(pushed.reference)
    assert pins_of(clean_node, pushed) == {pushed.reference}


async def test_two_names_of_one_image(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    one = publish(random_image(seed="names"), name="test/names", tag="one")
    two = publish(random_image(seed="names"), name="test/names", tag="two")
    await stokerd.warm(one.reference, two.reference, pin_seconds=0)
    async with stokerd.client() as client:
        listed = await client.pins()
        assert listed.total_bytes == listed.pins[0].size  # one image, counted once
        await client.unpin(one.reference)
        assert pins_of(clean_node, one)  # the other name still pins it
        removed = await client.remove(one.reference)
        assert removed.removed == [one.reference]
        assert two.reference in Store.of(clean_node).images
        await client.unpin(two.reference)
    assert not pins_of(clean_node, two)


async def test_the_pin_limit(make_stokerd: MakeStokerd, clean_node: Node, publish: Publish) -> None:
    stokerd = make_stokerd(clean_node, images={"pin_limit": 0})
    pushed = publish(random_image(seed="limit"))
    job = await stokerd.warm(pushed.reference, pin_seconds=0)
    assert job.items[0].phase == "Succeeded"
    assert "not pinned" in job.items[0].message
    async with stokerd.client() as client:
        with pytest.raises(ClientError) as caught:
            await client.pin(PinRequest(image=pushed.reference))
    assert caught.value.reason == "LimitExceeded"
    assert not pins_of(clean_node, pushed)


async def test_what_is_not_there_cannot_be_pinned(stokerd: Stokerd) -> None:
    async with stokerd.client() as client:
        with pytest.raises(ClientError) as caught:
            await client.pin(PinRequest(image="registry.invalid/nothing:v1"))
    assert caught.value.status == 404


async def warmed(client: Client, pushed: Pushed, times: int) -> None:
    """Wait until an image has been warmed so often. Its name is there before that, while its layers are unpacked."""

    async def told() -> bool:
        history = await client.history(pushed.reference)
        return sum(entry.result == "Succeeded" for entry in history) == times

    await eventually(f"{pushed.reference} to have been warmed {times} times", told)


async def test_a_kept_image_is_warmed_again(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    pushed = publish(random_image(seed="kept"))

    def there() -> bool:
        return pushed.reference in Store.of(clean_node).images

    async with stokerd.client() as client:
        await client.keep(KeepRequest(image=pushed.reference))
        await warmed(client, pushed, 1)
        clean_node.ctr("images", "rm", "--sync", *[n for n in Store.of(clean_node).images if pushed.repository in n])
        await warmed(client, pushed, 2)
        kept = (await client.keeps())[0]
        assert kept.rewarmed == 1
        with pytest.raises(ClientError) as caught:
            await client.remove(pushed.reference)
        assert caught.value.status == 409
        await client.unkeep(pushed.reference)
        await client.remove(pushed.reference)
    assert not there()


async def test_keeps_survive_a_restart(stokerd: Stokerd, clean_node: Node, publish: Publish) -> None:
    pushed = publish(random_image(seed="survives"))
    async with stokerd.client() as client:
        await client.keep(KeepRequest(image=pushed.reference))
        await warmed(client, pushed, 1)
    stokerd.kill()
    clean_node.ctr("images", "rm", "--sync", *[n for n in Store.of(clean_node).images if pushed.repository in n])
    stokerd.start()
    async with stokerd.client() as client:
        await warmed(client, pushed, 2)
        await client.unkeep(pushed.reference)
    assert pushed.reference in Store.of(clean_node).images
