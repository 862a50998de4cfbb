"""Many who want the same, one who changes his mind, and requests of unusual size."""

from __future__ import annotations

import asyncio

import pytest

from stoker.client import Client, ClientError
from stoker.objects.images import ItemEvent, WarmRequest
from tests.integration.conftest import MakeStokerd, Publish
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Gate, Hold
from tests.rig.images import ImageSpec, random_image
from tests.rig.layers import LayerSpec
from tests.rig.node import Node
from tests.rig.push import Pushed
from tests.rig.stokerd import Stokerd, Store, ended, settle
from tests.rig.waiting import until


def through(proxy: FaultProxy, pushed: Pushed) -> str:
    return f"{proxy.address}/{pushed.repository}:{pushed.tag}"


async def pulling(client: Client, job: str) -> None:
    """Return once an item of the job shows bytes."""
    async for event in client.follow(job):
        if isinstance(event, ItemEvent) and event.item.progress.bytes_done:
            return


async def test_ten_callers_share_one_pull(stokerd: Stokerd, proxy: FaultProxy, publish: Publish) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=4 << 20, seed="ten"),)))
    image, layer = through(proxy, pushed), pushed.layers[0]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stokerd.warm(image)) for _ in range(10)]
    jobs = [task.result() for task in tasks]
    assert [job.state for job in jobs] == ["Succeeded"] * 10
    assert len(proxy.matching(layer.digest, "GET")) == 1
    assert proxy.bytes_sent(layer.digest) == layer.size
    assert {job.items[0].reason for job in jobs} <= {"Pulled", "AlreadyPresent"}


async def test_one_who_cancels_leaves_the_pull_to_the_others(
    stokerd: Stokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=4 << 20, seed="cancel"),)))
    image, gate = through(proxy, pushed), Gate()
    proxy.rule(Hold(gate, after=2 << 20), path=pushed.layers[0].digest, method="GET")
    before = Store.of(clean_node)
    async with stokerd.client() as client:
        first = await client.warm(WarmRequest(images=[image]))
        second = await client.warm(WarmRequest(images=[image]))
        await pulling(client, first.id)
        cancelled = await client.cancel(first.id)
        assert (cancelled.state, cancelled.items[0].phase) == ("Cancelled", "Cancelled")
        assert (await client.job(second.id)).items[0].phase == "Pulling"
        gate.release()
        assert (await ended(client, second.id)).state == "Succeeded"
        assert proxy.bytes_sent(pushed.layers[0].digest) == pushed.layers[0].size
        await client.remove(image)
    settle(clean_node, before)


async def test_cancel_leaves_nothing_when_it_returns(
    stokerd: Stokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    pushed = publish(random_image(layers=3, size=12 << 20, seed="nothing"))
    gate = Gate()
    proxy.rule(Hold(gate, after=2 << 20), path=pushed.layers[-1].digest, method="GET")
    before = Store.of(clean_node)
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[through(proxy, pushed)]))
        await pulling(client, job.id)
        await client.cancel(job.id)
        assert Store.of(clean_node) == before
        gate.release()
        again = await stokerd.warm(through(proxy, pushed))
        assert again.state == "Succeeded"


async def test_priority_goes_first(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    stokerd = make_stokerd(clean_node, images={"max_parallel": 1})
    blocker, low, high = (publish(random_image(seed=name)) for name in ("blocker", "low", "high"))
    gate = Gate()
    proxy.rule(Hold(gate), path=blocker.layers[0].digest)
    async with stokerd.client() as client:
        await client.warm(WarmRequest(images=[through(proxy, blocker)]))
        await proxy.seen(blocker.layers[0].digest)
        late = await client.warm(WarmRequest(images=[through(proxy, low)], priority=-5))
        soon = await client.warm(WarmRequest(images=[through(proxy, high)], priority=5))
        gate.release()
        done = [await ended(client, job.id) for job in (soon, late)]
    started = [job.items[0].started_at for job in done]
    assert started[0] is not None
    assert started[1] is not None
    assert started[0] < started[1]


async def test_a_client_that_goes_away_stops_nothing(stokerd: Stokerd, proxy: FaultProxy, publish: Publish) -> None:
    pushed = publish(ImageSpec(layers=(LayerSpec(size=4 << 20, seed="away"),)))
    gate = Gate()
    proxy.rule(Hold(gate, after=1 << 20), path=pushed.layers[0].digest, method="GET")
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[through(proxy, pushed)]))
        await pulling(client, job.id)
    gate.release()
    async with stokerd.client() as client:
        assert (await ended(client, job.id)).state == "Succeeded"


async def test_ten_thousand_references_in_one_request(stokerd: Stokerd, publish: Publish, proxy: FaultProxy) -> None:
    present = publish(random_image(seed="one of many"))
    await stokerd.warm(present.reference)
    base = f"{proxy.address}/{present.repository}"
    async with stokerd.client() as client:
        names = [present.reference, *(f"{base}:missing-{number}" for number in range(9_999))]
        job = await client.warm(WarmRequest(images=names, attempts=1))
        assert job.counts.desired == 10_000
        assert stokerd.curl("/healthz") == "200"
        cancelled = await client.cancel(job.id)
        assert cancelled.counts.waiting == cancelled.counts.pulling == 0
        assert sum((cancelled.counts.succeeded, cancelled.counts.failed, cancelled.counts.cancelled)) == 10_000


async def test_all_wrong_references_are_named_and_nothing_is_done(stokerd: Stokerd, publish: Publish) -> None:
    pushed = publish(random_image(seed="innocent"))
    async with stokerd.client() as client:
        with pytest.raises(ClientError) as caught:
            await client.warm(WarmRequest(images=[pushed.reference, "team/UPPER", "a b", "x:"]))
        assert caught.value.reason == "InvalidInput" or caught.value.reason == "InvalidReference"
        for wrong in ("UPPER", "a b", "x:"):
            assert wrong in caught.value.message
        assert await client.jobs() == []


async def test_a_second_stokerd_is_refused(make_stokerd: MakeStokerd, clean_node: Node) -> None:
    first = make_stokerd(clean_node)
    second = make_stokerd(clean_node, start=False, api={"socket": str(first.socket)})
    second.spawn()
    until("the second one ends", lambda: not second.running)
    assert second.stop() == 1
    assert str(first.socket) in second.log()
    same_state = make_stokerd(clean_node, start=False, daemon={"state_dir": str(first.directory / "state")})
    same_state.spawn()
    until("the third one ends", lambda: not same_state.running)
    assert same_state.stop() == 1
    assert "state directory" in same_state.log()
    assert first.curl("/readyz") == "200"


async def test_check_config_prints_all_errors(make_stokerd: MakeStokerd, clean_node: Node) -> None:
    daemon = make_stokerd(
        clean_node,
        start=False,
        images={"max_parallel": 0, "attempts": "many", "stall_timeout": "soon", "no_such": 1, "disk_reserve": -1},
    )
    daemon.spawn()
    until("it ends", lambda: not daemon.running)
    assert daemon.stop() == 2
    for place in ("max_parallel", "attempts", "stall_timeout", "no_such", "disk_reserve"):
        assert f"images.{place}" in daemon.log()
