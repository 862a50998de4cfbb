"""kill -9 of stokerd and of containerd at any moment: nothing is lost, nothing is left over."""

from __future__ import annotations

import random

import pytest

from stoker.objects.images import ItemEvent, JobEvent, WarmRequest
from tests.integration.conftest import MakeStokerd, Publish
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Gate, Hold, Trickle
from tests.rig.fixtures import MakeNode
from tests.rig.images import ImageSpec, random_image
from tests.rig.layers import LayerSpec
from tests.rig.node import Node
from tests.rig.stokerd import Store, ended, settle
from tests.rig.waiting import until

KILLS = 20


async def test_stokerd_killed_mid_pull_goes_on_where_it_was(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=40 << 20, seed="resume"),)))
    layer = pushed.layers[0]
    image = f"{proxy.address}/{pushed.repository}:{pushed.tag}"
    gate = Gate()
    rule = proxy.rule(Hold(gate, after=30 << 20), path=layer.digest, method="GET")
    before = Store.of(clean_node)
    stokerd = make_stokerd(clean_node)
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[image]))
        async for event in client.follow(job.id):
            if isinstance(event, ItemEvent) and event.item.progress.bytes_done >= 28 << 20:
                break
    stokerd.kill()
    proxy.remove(rule)
    gate.release()
    stokerd.start()
    async with stokerd.client() as client:
        done = await ended(client, job.id)
        history = await client.history(image)
    assert done.state == "Succeeded", done.items[0].message
    assert [entry.result for entry in history] == ["Succeeded", "Interrupted"]
    assert proxy.bytes_sent(layer.digest) < layer.size + (12 << 20)  # what stood in buffers on the way
    after = Store.of(clean_node)
    assert after.leases == before.leases
    assert after.ingests == before.ingests


@pytest.mark.timeout(400)
async def test_stokerd_killed_at_random_moments(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    chance = random.Random(7)
    stokerd = make_stokerd(clean_node, start=False)
    before = Store.of(clean_node)
    proxy.rule(Trickle(12 << 20), path="/blobs/")
    for number in range(KILLS):
        pushed = publish(random_image(layers=3, size=3 << 20, files=60, seed=f"kill {number}"))
        image = f"{proxy.address}/{pushed.repository}:{pushed.tag}"
        stokerd.start()
        async with stokerd.client() as client:
            job = await client.warm(WarmRequest(images=[image]))
            percent = chance.uniform(0, 99)
            async for event in client.follow(job.id):
                items = [event.item] if isinstance(event, ItemEvent) else []
                items = event.job.items if isinstance(event, JobEvent) else items
                if any(item.progress.percent >= percent or item.phase == "Succeeded" for item in items):
                    break
        stokerd.kill()
        stokerd.start()
        async with stokerd.client() as client:
            done = await ended(client, job.id)
            assert done.state == "Succeeded", done.items[0].message
            assert (await client.warm(WarmRequest(images=[image]))).items[0].reason == "AlreadyPresent"
            await client.remove(image)
        stokerd.stop()
    settle(clean_node, before)


async def test_what_a_dead_daemon_left_is_removed(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    """The job is cancelled while nobody runs: its journal is gone. Its leases are found by their label."""
    pushed = publish(ImageSpec(layers=(LayerSpec(size=4 << 20, seed="orphan"),)))
    gate = Gate()
    proxy.rule(Hold(gate, after=2 << 20), path=pushed.layers[0].digest, method="GET")
    before = Store.of(clean_node)
    clean_node.ctr("leases", "create", "--id", "somebody-elses", "x=y")
    stokerd = make_stokerd(clean_node)
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[f"{proxy.address}/{pushed.repository}:{pushed.tag}"]))
        async for event in client.follow(job.id):
            if isinstance(event, ItemEvent) and event.item.progress.bytes_done:
                break
    stokerd.kill()
    gate.release()
    assert Store.of(clean_node).leases - before.leases - {"somebody-elses"}
    for path in (stokerd.directory / "state").glob("journal.db*"):
        path.unlink()
    stokerd.start()
    assert "somebody-elses" in Store.of(clean_node).leases
    clean_node.ctr("leases", "rm", "somebody-elses")
    settle(clean_node, before)


async def test_containerd_killed_mid_pull(
    make_node: MakeNode, make_stokerd: MakeStokerd, proxy: FaultProxy, publish: Publish
) -> None:
    node = make_node()
    stokerd = make_stokerd(node)
    before = Store.of(node)
    pushed = publish(ImageSpec(layers=(LayerSpec(size=16 << 20, seed="ctrd"),)))
    layer = pushed.layers[0]
    gate = Gate()
    rule = proxy.rule(Hold(gate, after=10 << 20), path=layer.digest, method="GET")
    image = f"{proxy.address}/{pushed.repository}:{pushed.tag}"
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[image], attempts=1))
        async for event in client.follow(job.id):
            if isinstance(event, ItemEvent) and event.item.progress.bytes_done >= 9 << 20:
                break
        node.kill_containerd()
        until("stokerd notices", lambda: stokerd.curl("/healthz") == "503")
        info = await client.node()
        assert not info.runtime_ready
        assert str(node.endpoint) in " ".join(info.endpoint_tried) + info.runtime_message
        proxy.remove(rule)
        gate.release()
        node.start_containerd()
        done = await ended(client, job.id)
        assert done.state == "Succeeded", done.items[0].message  # its absence cost no attempt
        assert proxy.bytes_sent(layer.digest) < layer.size + (8 << 20)
        await client.remove(image)
    settle(node, before)


async def test_stokerd_starts_before_containerd(
    make_node: MakeNode, make_stokerd: MakeStokerd, publish: Publish
) -> None:
    node = make_node()
    node.stop_containerd()
    pushed = publish(random_image(seed="early"))
    stokerd = make_stokerd(node, start=False)
    stokerd.start(ready=False)
    assert stokerd.curl("/readyz") == "503"
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[pushed.reference]))
        assert job.items[0].phase == "Waiting"
        node.start_containerd()
        done = await ended(client, job.id)
    assert done.state == "Succeeded"


async def test_pins_survive_everything(make_node: MakeNode, make_stokerd: MakeStokerd, publish: Publish) -> None:
    node = make_node()
    stokerd = make_stokerd(node)
    pushed = publish(random_image(seed="pins"))
    await stokerd.warm(pushed.reference, pin_seconds=0)

    def labelled() -> bool:
        return any(name == pushed.reference for name in Store.of(node).pinned)

    assert labelled()
    await stokerd.warm(pushed.reference, policy="Always")
    until("the pin is back after a pull", labelled)
    node.restart_containerd()
    until("the pin is there after a restart of containerd", labelled)
    stokerd.kill()
    stokerd.start()
    assert labelled()
    async with stokerd.client() as client:
        pins = await client.pins()
        assert [pin.reference for pin in pins.pins] == [pushed.reference]
        assert pins.total_bytes > 0
        await client.unpin(pushed.reference)
    assert not {name for name in Store.of(node).pinned if pushed.repository in name or pushed.config_digest in name}
