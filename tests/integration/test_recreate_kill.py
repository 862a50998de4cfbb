"""kill -9 of stokerd and of containerd at any moment of a recreation: exactly one container of each name runs.

A fixed, small number of kills, unless STOKER_SOAK_SECONDS says for how long to go on (`make soak`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator

import pytest

from stoker.objects.containers import RecreateTarget
from tests.conformance.subject import eventually
from tests.integration.conftest import MakeStokerd
from tests.integration.pods import completed, request, tidy, whole
from tests.integration.test_recreate import publish_app
from tests.rig.fixtures import MakeNode
from tests.rig.kubelet import FakeKubelet
from tests.rig.node import Node
from tests.rig.pods import BareCri, RigPod
from tests.rig.registry import Registry
from tests.rig.stokerd import Stokerd
from tests.rig.waiting import until

SOAK = float(os.environ.get("STOKER_SOAK_SECONDS", "0"))
KILLS_OF_STOKERD, KILLS_OF_CONTAINERD = 8, 4
NAMES = ("main", "one", "two", "three")
SIBLINGS = NAMES[1:]


def rounds(count: int) -> Iterator[int]:
    """Count to *count*, or for as long as the soak lasts."""
    if not SOAK:
        yield from range(count)
        return
    until, number = time.monotonic() + SOAK / 3, 0  # three tests share the time
    while time.monotonic() < until:
        yield number
        number += 1


async def pids(bare: BareCri, pod: RigPod) -> dict[str, int]:
    running = await whole(bare, pod, *NAMES)
    return {name: (await bare.info(running[name].id))["pid"] for name in SIBLINGS}


async def make_pod(bare: BareCri, name: str) -> RigPod:
    pod = await bare.run_pod(name)
    for each in NAMES:
        await bare.run(pod, each)
    return pod


@pytest.mark.timeout(300 + SOAK)
async def test_stokerd_killed_at_random_moments_of_a_recreation(
    make_stokerd: MakeStokerd, node: Node, registry: Registry
) -> None:
    chance = random.Random(11)
    images = [publish_app(registry, f"k{number}").reference for number in range(2)]
    stokerd = make_stokerd(node)
    async with BareCri(node) as bare:
        pod = await make_pod(bare, "killed")
        before = await pids(bare, pod)
        attempt = 0
        for number in rounds(KILLS_OF_STOKERD):
            target = RecreateTarget(name="main", image=images[number % 2] if number % 3 == 0 else "")
            async with stokerd.client() as client:
                asked = await client.recreate(request(pod, containers=[target], min_started_seconds=0.1))
                await asyncio.sleep(chance.uniform(0, 0.35))
            await asyncio.to_thread(stokerd.kill)
            await asyncio.to_thread(stokerd.start)
            async with stokerd.client() as client:
                done = await completed(client, asked.id)
            assert done.result == "Succeeded", done.containers[0].message
            running = await whole(bare, pod, *NAMES)
            assert running["main"].attempt > attempt
            attempt = running["main"].attempt
        assert await pids(bare, pod) == before
        await tidy(bare, pod, *NAMES)


@pytest.mark.timeout(300 + SOAK)
async def test_containerd_killed_at_random_moments_of_a_recreation(
    make_node: MakeNode, make_stokerd: MakeStokerd
) -> None:
    chance = random.Random(13)
    node = make_node()
    stokerd = make_stokerd(node)
    async with BareCri(node) as bare, stokerd.client() as client:
        pod = await make_pod(bare, "crashed")
        before = await pids(bare, pod)
        for _ in rounds(KILLS_OF_CONTAINERD):
            await asyncio.to_thread(until, "stokerd is connected", lambda: stokerd.curl("/readyz") == "200")
            asked = await client.recreate(request(pod, "main"))
            await asyncio.sleep(chance.uniform(0, 0.25))
            await asyncio.to_thread(node.kill_containerd)
            await asyncio.to_thread(node.start_containerd)
            done = await completed(client, asked.id)
            assert done.result == "Succeeded", done.containers[0].message
            await whole(bare, pod, *NAMES)
        assert await pids(bare, pod) == before
        await tidy(bare, pod, *NAMES)


@pytest.mark.timeout(300 + SOAK)
async def test_stokerd_killed_beside_a_kubelet(make_stokerd: MakeStokerd, node: Node) -> None:
    chance = random.Random(17)
    stokerd: Stokerd = make_stokerd(node)
    async with BareCri(node) as bare:
        kubelet = FakeKubelet(bare)
        pod = await kubelet.pod("killed")
        for name in NAMES:
            await kubelet.container(pod, name)
        before = await pids(bare, pod)
        count = 0
        async with kubelet.running():
            for _ in rounds(KILLS_OF_CONTAINERD):
                async with stokerd.client() as client:
                    asked = await client.recreate(request(pod, "main"))
                    await asyncio.sleep(chance.uniform(0, 0.3))
                await asyncio.to_thread(stokerd.kill)
                await asyncio.to_thread(stokerd.start)
                async with stokerd.client() as client:
                    done = await completed(client, asked.id)
                assert done.result == "Succeeded", done
                await whole(bare, pod, *NAMES)
                count += 1

            async def counted() -> bool:
                return kubelet.restarts == {"main": count}

            await eventually("the kubelet has counted its last restart", counted)
        assert kubelet.restarts == {"main": count}  # once for each request, never twice
        assert await pids(bare, pod) == before
