"""Pull jobs over nodes: hears of nodes and of what they have done, and has the next ones begin.

All that matters is in the store. What is kept here (whose turn it is, how much is done) is made from it at a start; a
coordinator that was killed goes on where the store says it stood.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Protocol

import structlog

from stoker.objects.cluster_images import ImageListPullJob, ImagePullJob, NodeImage
from stoker.objects.cluster_nodes import Node
from stoker.objects.meta import LabelSelector, Object, ObjectMeta, OwnerReference
from stoker_coordinator.controllers import pulljobs, tags
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.controllers.jobrun import JobRun
from stoker_coordinator.controllers.pulljobs import PullJob
from stoker_coordinator.controllers.returning import Returning
from stoker_coordinator.controllers.writing import Writer
from stoker_coordinator.errors import AlreadyExists, NotFound
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("controllers")
_STATUS_PAUSE = 1.0
_LONGEST_SLEEP = 60.0

KINDS = (Node, NodeImage, ImagePullJob, ImageListPullJob)
"""What the informer must follow, in this order: a job finds its nodes when it is heard of."""


class Cluster(Protocol):
    """What is known of nodes beside their objects. Whoever has it calls `ImageJobs.changed` when it is different."""

    def leaf_of(self, node: str) -> str:
        """Return the switch domain nearest the node, "" where nobody knows."""
        ...

    def nodes_with_pods(self, namespace: str, selector: LabelSelector) -> frozenset[str]:
        """Return the nodes on which such pods are."""
        ...

    def has_told(self, node: str) -> bool:
        """Whether the node has said which pods it has, since the coordinator started."""
        ...


def utc_now() -> datetime:
    return datetime.now(UTC)


class ImageJobs:
    """`run` belongs to the coordinator's task group."""

    def __init__(
        self, store: Store, informer: Informer, cluster: Cluster, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._store, self._informer, self._cluster, self._clock = store, informer, cluster, clock
        self._returning = Returning()
        self._writer = Writer()
        self._nodes: dict[str, Node] = {}
        self._images: dict[str, NodeImage] = {}
        self._runs: dict[str, JobRun] = {}
        self._over: dict[str, PullJob] = {}
        """Jobs that are over; some are to be removed in time."""
        self._absent: set[str] = set()
        """Nodes that do not answer, of which some job does not know yet that they are silent."""
        self._silence_at = 0.0
        self._dirty: set[str] = set()
        self._told: dict[str, float] = {}
        """When the status of a job was written last, on the loop's clock."""
        self._moved, self._move_at = False, 0.0
        """Pods or topology are others than those by which jobs have their nodes; and when to look again."""
        self._all_told = False
        """All nodes that were there have told of their pods since the start."""
        self._wake = asyncio.Event()
        informer.hear(self._hear)

    # ------------------------------------------------------------------------------------------ life

    async def run(self) -> None:
        """Steer all jobs until cancelled."""
        await self._informer.synced.wait()
        self._sweep()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writer.run(), name="image jobs: writes")
            group.create_task(self._steer(), name="image jobs: steer")

    async def _steer(self) -> None:
        while True:
            self._wake.clear()
            now, at = self._clock(), asyncio.get_running_loop().time()
            self._move(at)
            self._grow_silent(now)
            dirty, self._dirty = self._dirty, set()
            for run in list(self._runs.values()):
                if run.uid in dirty or (run.due is not None and run.due <= at):
                    self._advance(run, now)
            for job in list(self._over.values()):
                expires = pulljobs.expires_at(job)
                if expires is not None and expires <= now:
                    self._remove(job)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(now, at)):
                    await self._wake.wait()

    def _pause(self, now: datetime, at: float) -> float:
        """Return for how many seconds nothing is to do if nothing happens."""
        if self._dirty or self._absent or self._moved:
            return _STATUS_PAUSE
        ends = [pulljobs.expires_at(job) for job in self._over.values()]
        ahead = [(each - now).total_seconds() for each in ends if each is not None]
        ahead += [run.due - at for run in self._runs.values() if run.due is not None]
        return max(0.01, min([_LONGEST_SLEEP, *ahead]))

    def changed(self) -> None:
        """Pods or topology are others than they were: look at every job again, once a second when they come fast, as
        after a start, when all nodes tell of their pods."""
        self._moved = True
        self._wake.set()

    def _move(self, at: float) -> None:
        if not self._moved or at < self._move_at:
            return
        self._moved, self._move_at = False, at + _STATUS_PAUSE
        for run in self._runs.values():
            self._place_all(run)
            self._dirty.add(run.uid)

    # ------------------------------------------------------------------------------------------ hearing

    def _hear(self, old: Object | None, new: Object | None) -> None:
        match new if new is not None else old:
            case ImagePullJob() | ImageListPullJob() as job:
                self._hear_job(job, gone=new is None)
            case Node() as node:
                self._hear_node(node, gone=new is None)
            case NodeImage() as image:
                concerned = {*_owners(old), *_owners(new)}
                self._hear_image(image, concerned, gone=new is None)
            case _:
                return
        self._wake.set()

    def _hear_job(self, job: PullJob, *, gone: bool) -> None:
        uid = job.metadata.uid
        over = job.status.completion_time is not None
        if gone or over:
            self._over.pop(uid, None)
            if over and not gone:
                self._over[uid] = job
            self._end(uid)
            return
        run = self._runs.get(uid)
        if run is None:
            run = self._runs[uid] = JobRun(job, self._clock(), asyncio.get_running_loop().time())
            self._place_all(run)
            self._absent.update(name for name, node in self._nodes.items() if not node.status.connected)
        elif run.job.spec != job.spec or run.job.deleting != job.deleting:
            for name in run.edit(job):
                self._ask(run, name)
            self._place_all(run)
            for name, image in self._images.items():
                run.tell(name, image)
        else:
            run.edit(job)
            return
        self._dirty.add(uid)

    def _end(self, uid: str) -> None:
        run = self._runs.pop(uid, None)
        self._told.pop(uid, None)
        if run is not None:
            self._release(uid, run.asked())

    def _hear_node(self, node: Node, *, gone: bool) -> None:
        name = node.metadata.name
        if gone:
            self._nodes.pop(name, None)
            self._absent.discard(name)
            for run in self._runs.values():
                if run.rollout.node(name) is not None:
                    run.rollout.drop(name)
                    self._dirty.add(run.uid)
            return
        self._nodes[name] = node
        if node.status.connected:
            self._absent.discard(name)
        else:
            self._absent.add(name)
        for run in self._runs.values():
            self._place(run, node)

    def _hear_image(self, image: NodeImage, concerned: Collection[str], *, gone: bool) -> None:
        name = image.metadata.name
        if gone:
            self._images.pop(name, None)
        else:
            self._images[name] = image
        for uid in concerned:
            run = self._runs.get(uid)
            if run is not None and run.tell(name, None if gone else image):
                self._dirty.add(uid)

    # ------------------------------------------------------------------------------------------ places

    def _place_all(self, run: JobRun) -> None:
        pods = self._pod_nodes(run)
        for node in self._nodes.values():
            self._place(run, node, pods)

    def _pod_nodes(self, run: JobRun) -> frozenset[str] | None:
        selector = run.job.spec.pod_selector
        return None if selector is None else self._cluster.nodes_with_pods(run.job.metadata.namespace, selector)

    def _place(self, run: JobRun, node: Node, pods: frozenset[str] | None = None) -> None:
        """Have the job know of the node as it is now."""
        name = node.metadata.name
        if pods is None:
            pods = self._pod_nodes(run)
        before = run.rollout.node(name)
        if not pulljobs.is_meant(run.job.spec, node, pods) and not self._keeps(run, node, pods):
            if before is not None:
                run.rollout.drop(name)
                self._release(run.uid, [name])
                self._dirty.add(run.uid)
            return
        leaf, returning = self._cluster.leaf_of(name), not self._returning.over
        place = pulljobs.place(node, leaf, run.began, self._clock(), returning=returning)
        if before is None or before.place != place:
            if run.place(place, self._images.get(name)):
                self._release(run.uid, [name])
            self._dirty.add(run.uid)

    def _keeps(self, run: JobRun, node: Node, pods: frozenset[str] | None) -> bool:
        """Whether the job goes on at a node of whose pods nothing is known since the coordinator started."""
        name = node.metadata.name
        if pods is None or node.deleting or self._cluster.has_told(name):
            return False
        image = self._images.get(name)
        return run.rollout.node(name) is not None or (image is not None and run.uid in tags.owners(image))

    def _awaits_pods(self) -> bool:
        """Whether nodes that a podSelector means may not be known yet, so that such a job cannot be complete."""
        if self._moved:
            return True
        if self._all_told or self._returning.over:
            return False
        there = (name for name, node in self._nodes.items() if node.status.connected)
        self._all_told = all(map(self._cluster.has_told, there))
        return not self._all_told

    def _grow_silent(self, now: datetime) -> None:
        """Tell jobs of nodes that have not answered for too long by now."""
        loop = asyncio.get_running_loop()
        if not self._absent or not self._returning.over or loop.time() < self._silence_at:
            return
        self._silence_at = loop.time() + _STATUS_PAUSE
        for name in list(self._absent):
            node = self._nodes[name]
            last = None
            for run in self._runs.values():
                silent = pulljobs.silent_at(node, run.began)
                if silent is not None and silent <= now:
                    self._place(run, node)
                elif silent is not None:
                    last = silent
            if last is None:
                self._absent.discard(name)

    # ------------------------------------------------------------------------------------------ acting

    def _advance(self, run: JobRun, now: datetime) -> None:
        """Have the next nodes begin, and tell how the job is doing."""
        run.unsure = run.job.spec.pod_selector is not None and self._awaits_pods()
        run.look(now, asyncio.get_running_loop().time())
        for name in run.begin():
            self._ask(run, name)
        loop = asyncio.get_running_loop()
        told = self._told.get(run.uid)
        if run.end or told is None or loop.time() - told >= _STATUS_PAUSE:
            self._told[run.uid] = loop.time()
            self._writer.put(("status", run.uid), lambda: self._write_status(run))
        else:
            self._dirty.add(run.uid)
        if run.unsure:
            self._dirty.add(run.uid)

    def _ask(self, run: JobRun, name: str) -> None:
        """Have the node's NodeImage say what the job wants."""
        again, order = run.again(name), run.order
        kept: list[NodeImage] = []

        async def write() -> None:
            kept.extend(await self._change(name, lambda image: tags.assign(image, order, self._clock(), again=again)))

        def done(problem: str) -> None:
            known = [*kept[-1:], *filter(None, [self._images.get(name)])]
            run.written(name, max(known, key=lambda each: each.revision, default=None), problem)
            self._dirty.add(run.uid)
            self._wake.set()

        self._writer.put(("ask", name, run.uid), write, done)
        run.writing(name)

    def _release(self, uid: str, names: Iterable[str]) -> None:
        for name in names:
            image = self._images.get(name)
            if self._writer.pending(("ask", name, uid)) or (image is not None and uid in tags.owners(image)):
                self._writer.put(("ask", name, uid), lambda name=name: self._let_go(name, uid))  # type: ignore[misc]

    async def _let_go(self, name: str, uid: str) -> None:
        try:
            await self._store.change(NodeImage, name, change=lambda image: tags.release(image, uid))
        except NotFound:
            return

    async def _change(self, name: str, change: Callable[[NodeImage], NodeImage]) -> list[NodeImage]:
        """Change a node's NodeImage, which is made with the first change and goes with the node; return what it is."""
        node = self._nodes.get(name)
        if node is None:
            return []
        try:
            return [await self._store.change(NodeImage, name, change=change)]
        except NotFound:
            owner = OwnerReference(node.api_version, node.kind, name, node.metadata.uid)
            fresh = NodeImage(metadata=ObjectMeta(name=name, owner_references=(owner,)))
            try:
                return [await self._store.create(change(fresh))]
            except AlreadyExists:
                return [await self._store.change(NodeImage, name, change=change)]

    async def _write_status(self, run: JobRun) -> None:
        meta, now = run.job.metadata, self._clock()
        try:
            await self._store.change(
                type(run.job), meta.name, meta.namespace, change=lambda kept: run.with_status(kept, now), status=True
            )
        except NotFound:
            return

    def _remove(self, job: PullJob) -> None:
        meta = job.metadata
        self._over.pop(meta.uid, None)

        async def remove() -> None:
            try:
                await self._store.delete(type(job), meta.name, meta.namespace, uid=meta.uid)
            except NotFound:
                return

        self._writer.put(("remove", meta.uid), remove)

    def _sweep(self) -> None:
        """Have nodes forget what jobs wanted that are over or gone: a coordinator may have died before it did."""
        for name, image in self._images.items():
            for uid in {*tags.owners(image)} - self._runs.keys():
                self._release(uid, [name])


def _owners(image: Object | None) -> Collection[str]:
    return set(tags.owners(image)) if isinstance(image, NodeImage) else ()
