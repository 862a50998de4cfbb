"""A coordinator that has just started: nodes are on their way back, and nothing is given up before they are."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from stoker.objects.cluster_images import ImagePullJob
from stoker.objects.cluster_nodes import Node
from stoker.objects.cluster_requests import Checkpoint, CheckpointSpec, CheckpointStatus, ContainerRecreateRequest
from stoker.objects.meta import LabelSelector
from stoker_coordinator.nodes.ports import RETURN_SECONDS
from tests.unit.coordinator.controllers.test_imagejobs import PULL, World, world
from tests.unit.coordinator.controllers.test_sharing import Desk, meta, recreate
from tests.unit.images.virtual import virtual


@virtual
async def test_a_coordinator_that_has_just_started_waits_for_nodes_to_come_back() -> None:
    """Long ago two requests were made, one of which has its node; no node is back yet, and what the store says of them
    is from before."""
    desk = Desk()
    await desk.node("n1")
    await recreate(desk)
    under_way = CheckpointStatus(phase="Creating", node_name="n1")
    spec = CheckpointSpec(pod_name="web-1")
    await desk.store.create(Checkpoint(metadata=meta("cp"), spec=spec, status=under_way))
    await asyncio.sleep(3600)
    async with desk.open(just_started=True):
        await asyncio.sleep(5)
        await desk.disconnect("n1")
        await asyncio.sleep(RETURN_SECONDS - 10)
        assert (await desk.store.get(ContainerRecreateRequest, "one", "ns")).status.phase == "Pending"
        assert (await desk.store.get(Checkpoint, "cp", "ns")).status.phase == "Creating"
        await asyncio.sleep(10)
        assert (await desk.store.get(ContainerRecreateRequest, "one", "ns")).status.message.startswith("no node has")
        assert (await desk.store.get(Checkpoint, "cp", "ns")).status.reason == "NodeSilent"


@virtual
async def test_nodes_are_not_silent_before_they_had_the_time_to_come_back() -> None:
    async with world(2) as here:
        here.stuck = {"n000"}
        async with here.coordinator():
            await here.job(parallelism=2)
            await here.until(lambda status: (status.active, status.succeeded) == (1, 1))
        await asyncio.sleep(3600)
        async with here.coordinator():

            def away(node: Node) -> Node:
                return replace(node, status=replace(node.status, connected=False))

            await here.store.change(Node, "n000", change=away, status=True)  # seen an hour ago
            await asyncio.sleep(RETURN_SECONDS - 5)
            assert (await here.store.get(ImagePullJob, "job", "ns")).status.completion_time is None
            assert here.pulling == {("n000", "reg/a:1")}
            await asyncio.sleep(7)
            status = await here.done()
            assert (status.succeeded, status.progress.nodes_silent) == (1, 1)


async def restarted_with_pods(here: World) -> None:
    """Leave a job behind that means two nodes by their pods and has one of them at work; what pods there are is
    forgotten."""
    here.pods = {"ns": frozenset({"n000", "n001"})}
    here.stuck = {"n000"}
    async with here.coordinator():
        await here.job(parallelism=1, pod_selector=LabelSelector())
        await here.until(lambda status: status.active == 1)
    here.untold = {"n000", "n001", "n002"}


@virtual
async def test_a_job_of_pods_is_not_over_before_nodes_have_told_of_theirs() -> None:
    async with world(3) as here:
        await restarted_with_pods(here)
        async with here.coordinator() as jobs:
            await asyncio.sleep(20)
            for name in ("n002", "n001"):  # the second is meant, and it is not its turn yet
                here.untold.discard(name)
                jobs.changed()
                await asyncio.sleep(5)
                assert (here.pulling, await here.wanted()) == ({("n000", "reg/a:1")}, {"n000"})
                assert (await here.store.get(ImagePullJob, "job", "ns")).status.completion_time is None
            here.untold.discard("n000")
            here.pods = {"ns": frozenset({"n001"})}  # the first has none any more
            jobs.changed()
            status = await here.done()
            assert (status.desired, status.succeeded, here.most) == (1, 1, 1)
            await here.settled()
            assert await here.wanted() == set()


@virtual
async def test_nodes_that_never_tell_of_their_pods_do_not_hold_a_job_up() -> None:
    async with world(3) as here:
        await restarted_with_pods(here)
        here.untold.discard("n001")
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with here.coordinator():
            await asyncio.sleep(5)
            await here.connect("n000", False)
            status = await here.done()
            assert (status.succeeded, status.progress.nodes_silent) == (1, 1)
            assert RETURN_SECONDS <= loop.time() - began < RETURN_SECONDS + 2 * PULL


@virtual
async def test_a_job_of_which_the_next_node_is_not_known_is_not_complete() -> None:
    async with world(3) as here:
        here.pods = {"ns": frozenset({"n000", "n001"})}
        async with here.coordinator():
            await here.job(parallelism=1, pod_selector=LabelSelector())
            await here.until(lambda status: status.succeeded == 1)
        here.untold = {"n000", "n001", "n002"}
        began = asyncio.get_running_loop().time()
        async with here.coordinator() as jobs:
            await asyncio.sleep(20)
            assert (await here.store.get(ImagePullJob, "job", "ns")).status.completion_time is None
            here.untold.clear()
            jobs.changed()
            status = await here.done()
            assert (status.desired, status.succeeded, here.most) == (2, 2, 1)
            assert asyncio.get_running_loop().time() - began < RETURN_SECONDS / 2
