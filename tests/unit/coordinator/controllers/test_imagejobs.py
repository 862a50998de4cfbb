"""Pull jobs over simulated nodes: parallelism, edits, silence, deadlines, restarts of the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from stoker.objects.cluster_images import (
    CompletionPolicy,
    ImageListPullJob,
    ImageListPullJobSpec,
    ImagePullJob,
    ImagePullJobSpec,
    ImageStatus,
    NodeImage,
    NodeImageStatus,
    NodeSelector,
    PullJobStatus,
    TagPhase,
    TagStatus,
)
from stoker.objects.cluster_nodes import Node, NodeStatus
from stoker.objects.meta import LabelSelector, Object, ObjectMeta
from stoker_coordinator.controllers import tags
from stoker_coordinator.controllers.imagejobs import KINDS, ImageJobs
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.store.memory import MemoryStore
from tests.unit.images.virtual import virtual

START = datetime(2026, 5, 1, tzinfo=UTC)
PULL = 10.0


class World:
    """A store, nodes that pull what their NodeImage says, and coordinators that come and go."""

    def __init__(self) -> None:
        self.store = MemoryStore(now=self.now, clock=lambda: asyncio.get_running_loop().time())
        self.shift = timedelta()
        """What the wall clock is wrong by."""
        self.leaves: dict[str, str] = {}
        self.pods: dict[str, frozenset[str]] = {}
        self.untold: set[str] = set()
        """Nodes that have not said which pods they have."""
        self.fails: set[str] = set()
        self.stuck: set[str] = set()
        self.pulling: set[tuple[str, str]] = set()
        self.most = 0
        self._pulls: dict[tuple[str, str, int], asyncio.Task[None]] = {}

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time()) + self.shift

    # What a Cluster has.

    def leaf_of(self, node: str) -> str:
        return self.leaves.get(node, "")

    def nodes_with_pods(self, namespace: str, selector: LabelSelector) -> frozenset[str]:
        return self.pods.get(namespace, frozenset()) - self.untold

    def has_told(self, node: str) -> bool:
        return node not in self.untold

    # Nodes.

    async def nodes(self, count: int, *, leaves: int = 1) -> None:
        for number in range(count):
            name = f"n{number:03}"
            self.leaves[name] = f"leaf{number % leaves}"
            meta = ObjectMeta(name=name, labels={"even": str(number % 2 == 0).lower()})
            await self.store.create(Node(metadata=meta, status=NodeStatus(connected=True, last_seen=self.now())))

    async def connect(self, name: str, connected: bool) -> None:
        status = NodeStatus(connected=connected, last_seen=self.now())
        await self.store.change(Node, name, change=lambda node: replace(node, status=status), status=True)

    def hear(self, old: Object | None, new: Object | None) -> None:
        """Do what nodes do: begin pulls that are new, break off those that nobody wants."""
        if not isinstance(new, NodeImage):
            return
        name = new.metadata.name
        wanted = {
            (name, tags.join(repository, tag.tag), tag.version)
            for repository, entry in new.spec.images.items()
            for tag in entry.tags
        }
        for key in [key for key in self._pulls if key[0] == name and key not in wanted]:
            self._pulls.pop(key).cancel()
        for key in wanted - self._pulls.keys():
            self._pulls[key] = asyncio.create_task(self._pull(*key), name=f"pull {key}")

    async def _pull(self, name: str, image: str, version: int) -> None:
        self.pulling.add((name, image))
        self.most = max(self.most, len({node for node, _ in self.pulling}))
        try:
            await self._report(name, image, version, "Pulling")
            await asyncio.sleep(PULL if name not in self.stuck else 10**9)
        finally:
            self.pulling.discard((name, image))
        await self._report(name, image, version, "Failed" if name in self.fails else "Succeeded")

    async def _report(self, name: str, image: str, version: int, phase: TagPhase) -> None:
        repository, tag = tags.split(image)
        mine = TagStatus(tag, phase, version=version, bytes_total=100, bytes_done=100 if phase == "Succeeded" else 50)

        def change(node: NodeImage) -> NodeImage:
            entries = dict(node.status.image_statuses)
            others = entries.get(repository, ImageStatus()).tags
            entries[repository] = ImageStatus((*(each for each in others if each.tag != tag), mine))
            return replace(node, status=NodeImageStatus(image_statuses=entries))

        await self.store.change(NodeImage, name, change=change, status=True)

    # Coordinators.

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[ImageJobs]:
        informer = Informer(self.store, KINDS)
        jobs = ImageJobs(self.store, informer, self, clock=self.now)
        informer.hear(self.hear)
        running = [asyncio.create_task(informer.run(), name="informer"), asyncio.create_task(jobs.run(), name="jobs")]
        try:
            yield jobs
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for task in running:
                assert task.cancelled(), task.exception()

    async def close(self) -> None:
        for task in self._pulls.values():
            task.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)
        await self.store.close()

    # Jobs.

    async def job(self, name: str = "job", **spec: Any) -> ImagePullJob:
        spec.setdefault("image", "reg/a:1")
        return await self.store.create(
            ImagePullJob(metadata=ObjectMeta(name=name, namespace="ns"), spec=ImagePullJobSpec(**spec))
        )

    async def until(self, holds: Callable[[PullJobStatus], object], name: str = "job") -> PullJobStatus:
        async for status in self.statuses(name):
            if holds(status):
                return status
        raise AssertionError("the watch has ended")

    async def statuses(self, name: str) -> AsyncIterator[PullJobStatus]:
        revision = self.store.revision
        yield (await self.store.get(ImagePullJob, name, "ns")).status
        async for event in self.store.watch([ImagePullJob], since=revision):
            if event.object is not None and event.object.metadata.name == name and event.type != "DELETED":
                yield event.object.status

    async def done(self, name: str = "job") -> PullJobStatus:
        return await self.until(lambda status: status.completion_time is not None, name)

    async def wanted(self) -> set[str]:
        """Return the nodes of which anything is wanted."""
        return {each.metadata.name for each in (await self.store.list(NodeImage)).items if each.spec.images}

    async def settled(self) -> None:
        await asyncio.sleep(5)


@asynccontextmanager
async def world(count: int = 0, *, leaves: int = 1) -> AsyncIterator[World]:
    made = World()
    await made.nodes(count, leaves=leaves)
    try:
        yield made
    finally:
        await made.close()


@virtual
async def test_a_job_runs_over_all_nodes_and_leaves_nothing_behind() -> None:
    async with world(12, leaves=3) as here, here.coordinator():
        await here.job(parallelism=4)
        status = await here.done()
        assert (status.desired, status.succeeded, status.failed, status.active) == (12, 12, 0, 0)
        assert status.message == "12 of 12 nodes have it"
        assert (status.progress.bytes_done, status.progress.bytes_total) == (1200, 1200)
        assert here.most == 4
        assert status.completion_time is not None
        assert status.start_time is not None
        assert status.completion_time - status.start_time < timedelta(seconds=3 * PULL + 5)
        await here.settled()
        assert await here.wanted() == set()


@virtual
async def test_parallelism_counts_nodes_over_the_whole_list() -> None:
    async with world(10) as here, here.coordinator():
        spec = ImageListPullJobSpec(images=("reg/a:1", "reg/b:1", "reg/c:1"), parallelism="20%")
        await here.store.create(ImageListPullJob(metadata=ObjectMeta(name="list", namespace="ns"), spec=spec))
        await asyncio.sleep(5 * PULL + 5)
        status = (await here.store.get(ImageListPullJob, "list", "ns")).status
        assert (status.desired, status.completed, status.succeeded) == (3, 3, 3)
        assert here.most == 2


@virtual
async def test_a_percentage_and_a_pause_change_at_once() -> None:
    async with world(20) as here, here.coordinator():
        await here.job(parallelism=0)
        await here.settled()
        assert here.most == 0
        await here.store.patch(ImagePullJob, "job", "ns", patch={"spec": {"parallelism": "30%"}})
        await here.done()
        assert here.most == 6


@virtual
async def test_another_image_is_pulled_instead_by_those_who_had_begun() -> None:
    async with world(6) as here, here.coordinator():
        await here.job(parallelism=2)
        await here.until(lambda status: status.succeeded == 2)
        await here.store.patch(ImagePullJob, "job", "ns", patch={"spec": {"image": "reg/a:2"}})
        await here.settled()
        assert {image for _, image in here.pulling} == {"reg/a:2"}
        status = await here.done()
        assert (status.succeeded, here.most) == (6, 2)


@virtual
async def test_failures_are_told_and_hold_nobody_up() -> None:
    async with world(5) as here, here.coordinator():
        here.fails = {"n001"}
        await here.job(parallelism=1)
        status = await here.done()
        assert (status.succeeded, status.failed, status.failed_nodes) == (4, 1, ("n001",))
        assert status.troubles[0].node == "n001"


@virtual
async def test_a_node_that_falls_silent_gives_its_turn_away_and_is_reported() -> None:
    async with world(3) as here, here.coordinator():
        here.stuck = {"n000"}
        await here.job(parallelism=1)
        await here.until(lambda status: status.active == 1)
        await here.connect("n000", False)
        status = await here.done()
        assert (status.succeeded, status.failed, status.progress.nodes_silent) == (2, 1, 1)
        assert "NodeSilent" in {trouble.reason for trouble in status.troubles}
        assert here.most == 1
        await here.settled()
        assert await here.wanted() == set()


@virtual
async def test_nodes_that_never_answered_do_not_hold_a_job_up() -> None:
    async with world(3) as here, here.coordinator():
        await here.connect("n002", False)
        await asyncio.sleep(500)
        await here.job(parallelism=3)
        status = await here.done()
        assert (status.succeeded, status.progress.nodes_silent) == (2, 1)


@virtual
async def test_a_node_that_is_back_gets_its_turn() -> None:
    async with world(2) as here, here.coordinator():
        await here.connect("n001", False)
        await here.job(parallelism=1, completion_policy=CompletionPolicy(type="Never"))
        await here.until(lambda status: status.progress.nodes_silent == 1)
        await here.connect("n001", True)
        assert (await here.until(lambda status: status.succeeded == 2)).failed == 0


@virtual
async def test_a_lasting_job_serves_nodes_that_come_later_and_looks_again_each_day() -> None:
    async with world(1) as here, here.coordinator():
        await here.job(parallelism=5, completion_policy=CompletionPolicy(type="Never"))
        await here.until(lambda status: status.succeeded == 1)
        await here.store.create(
            Node(metadata=ObjectMeta(name="new"), status=NodeStatus(connected=True, last_seen=here.now()))
        )
        await here.until(lambda status: status.succeeded == 2)
        await asyncio.sleep(86_400 + 700)
        image = await here.store.get(NodeImage, "new")
        assert image.spec.images["reg/a"].tags[0].version == 2
        assert (await here.until(lambda status: status.succeeded == 2)).completion_time is None


@virtual
async def test_a_deadline_ends_the_job_and_its_pulls() -> None:
    async with world(4) as here, here.coordinator():
        here.stuck = {"n000"}
        await here.job(parallelism=1, completion_policy=CompletionPolicy(active_deadline_seconds=60))
        status = await here.done()
        assert "not complete within 60 s of work" in status.message
        assert 60 <= status.worked_seconds < 62
        await here.settled()
        assert (here.pulling, await here.wanted()) == (set(), set())


@virtual
async def test_selected_nodes_alone_and_those_of_pods() -> None:
    async with world(6) as here, here.coordinator() as jobs:
        await here.job("even", selector=NodeSelector(match_labels={"even": "true"}))
        assert (await here.done("even")).desired == 3
        here.pods = {"ns": frozenset({"n001"})}
        await here.job("pods", pod_selector=LabelSelector(), completion_policy=CompletionPolicy(type="Never"))
        await here.until(lambda status: status.succeeded == 1, "pods")
        here.pods = {"ns": frozenset({"n002"})}
        jobs.changed()
        await here.settled()
        assert await here.wanted() == {"n002"}


@virtual
async def test_a_job_that_is_deleted_breaks_its_pulls_off_and_spares_those_of_others() -> None:
    async with world(2) as here, here.coordinator():
        here.stuck = {"n000", "n001"}
        await here.job("one", parallelism=2)
        await here.job("two", parallelism=2)
        await here.until(lambda status: status.active == 2, "two")
        await here.store.delete(ImagePullJob, "one", "ns")
        await here.settled()
        assert len(here.pulling) == 2
        await here.store.delete(ImagePullJob, "two", "ns")
        await here.settled()
        assert (here.pulling, await here.wanted()) == (set(), set())


@virtual
async def test_a_job_goes_in_time_when_it_is_over() -> None:
    async with world(1) as here, here.coordinator():
        await here.job(completion_policy=CompletionPolicy(ttl_seconds_after_finished=30))
        await here.done()
        await asyncio.sleep(29)
        assert await here.store.find(ImagePullJob, "job", "ns") is not None
        await asyncio.sleep(3)
        assert await here.store.find(ImagePullJob, "job", "ns") is None


@virtual
async def test_a_deadline_does_not_go_by_a_clock_that_is_set() -> None:
    loop = asyncio.get_running_loop()
    for shift in (timedelta(days=2), timedelta(hours=-5)):
        async with world(4) as here, here.coordinator():
            here.stuck = {"n000", "n001", "n002", "n003"}
            began = loop.time()
            await here.job(completion_policy=CompletionPolicy(active_deadline_seconds=60))
            await here.until(lambda status: status.active > 0)
            here.shift = shift
            ended = await here.done()
            assert (59 <= loop.time() - began <= 65, 59 <= ended.worked_seconds <= 65) == (True, True), shift


@virtual
async def test_coordinators_come_and_go_and_nothing_is_lost() -> None:
    async with world(30, leaves=4) as here:
        await here.job(parallelism=5)
        for _ in range(12):
            async with here.coordinator():
                await asyncio.sleep(6.5)
        async with here.coordinator():
            status = await here.done()
            assert status.succeeded == 30
            assert here.most == 5
            await here.settled()
            assert await here.wanted() == set()


@virtual
async def test_what_was_deleted_while_no_coordinator_was_there_is_let_go() -> None:
    async with world(2) as here:
        here.stuck = {"n000", "n001"}
        async with here.coordinator():
            await here.job(parallelism=2)
            await here.until(lambda status: status.active == 2)
        await here.store.delete(ImagePullJob, "job", "ns")
        async with here.coordinator():
            await here.settled()
            assert await here.wanted() == set()
