"""In-memory implementations of the ports, scripted by the tests, and a real server around them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from stoker.objects.images import (
    Attempt,
    Event,
    ImagePlan,
    ImageStatus,
    ItemEvent,
    ItemStatus,
    JobCounts,
    JobEvent,
    JobStatus,
    KeepRequest,
    KeepStatus,
    PinList,
    PinRequest,
    PinStatus,
    Plan,
    PlanRequest,
    Progress,
    RemoveResult,
    SpaceNeed,
    WarmRequest,
)
from stokerd.api.calls import Deadlines
from stokerd.api.server import ApiServer, ApiSettings
from stokerd.errors import NotFound
from tests.unit.api.fake_archives import FakeArchives
from tests.unit.api.fake_checkpoints import FakeCheckpoints
from tests.unit.api.fake_containers import FakeContainers
from tests.unit.api.fake_node import FakeNode
from tests.unit.api.fake_topology import FakeTopology
from tests.unit.api.feeds import Feed

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
GIB = 1024**3
MIB = 1024**2


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until *condition* holds, for states that have no event of their own."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def normal(image: str) -> str:
    """A rough stand-in for the real normaliser."""
    head = image.partition("/")[0]
    if "/" not in image or not ("." in head or ":" in head or head == "localhost"):
        image = f"docker.io/{'' if '/' in image else 'library/'}{image}"
    return image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"


def counts_of(items: list[ItemStatus]) -> JobCounts:
    phases = [item.phase for item in items]
    return JobCounts(
        desired=len(items),
        waiting=phases.count("Waiting"),
        pulling=phases.count("Pulling"),
        succeeded=phases.count("Succeeded"),
        failed=phases.count("Failed"),
        cancelled=phases.count("Cancelled"),
    )


class FakeImages:
    """ImagesPort with a dict for a node."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, Exception] = {}
        """Method name -> what it raises."""
        self.gates: dict[str, asyncio.Event] = {}
        """Method name -> what it waits for."""
        self.entered: dict[str, asyncio.Event] = {}
        self.finished: list[str] = []
        self.jobs_by_id: dict[str, JobStatus] = {}
        self.feeds: dict[str, list[Feed[Event]]] = {}
        self.watch_feeds: list[Feed[Event]] = []
        self.on_warm: Callable[[JobStatus], None] = lambda job: None
        self.on_follow: Callable[[JobStatus], None] = lambda job: None
        self.images: list[ImageStatus] = []
        self.pinned: dict[str, PinStatus] = {}
        self.kept: dict[str, KeepStatus] = {}
        self.attempts: list[Attempt] = []
        self.plan_result = Plan()

    async def _enter(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        self.entered.setdefault(name, asyncio.Event()).set()
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.failures:
            raise self.failures[name]
        self.finished.append(name)

    def entering(self, name: str) -> asyncio.Event:
        return self.entered.setdefault(name, asyncio.Event())

    # jobs

    async def warm(self, request: WarmRequest) -> JobStatus:
        await self._enter("warm", request)
        items = [
            ItemStatus(image=image, reference=normal(image), phase="Waiting") for image in dict.fromkeys(request.images)
        ]
        job = JobStatus(
            id=f"j{len(self.jobs_by_id) + 1:04d}",
            state="Active",
            name=request.name,
            policy=request.policy,
            priority=request.priority,
            created_at=NOW,
            counts=counts_of(items),
            items=items,
        )
        self.jobs_by_id[job.id] = job
        self.on_warm(job)
        return self.jobs_by_id[job.id]

    def jobs(self) -> list[JobStatus]:
        if "jobs" in self.failures:
            raise self.failures["jobs"]
        return [replace(job, items=[]) for job in reversed(self.jobs_by_id.values())]

    def job(self, job_id: str) -> JobStatus:
        found = [job for known, job in self.jobs_by_id.items() if known.startswith(job_id)]
        if len(found) != 1:
            raise NotFound(f"there is no job {job_id!r}", hint="stoker image jobs lists them")
        return found[0]

    async def cancel(self, job_id: str) -> JobStatus:
        await self._enter("cancel", job_id)
        job = self.job(job_id)
        items = [
            item
            if item.phase in {"Succeeded", "Failed"}
            else replace(item, phase="Cancelled", reason="Cancelled", message="the job was cancelled")
            for item in job.items
        ]
        self.update(job.id, *items)
        return self.jobs_by_id[job.id]

    def update(self, job_id: str, *items: ItemStatus) -> None:
        """Put the new state of items into the job and tell everybody who follows; ends the job with its last item."""
        job = self.jobs_by_id[job_id]
        state = {item.reference: item for item in job.items}
        for item in items:
            state[item.reference] = item
            counts = counts_of(list(state.values()))
            for feed in self.feeds.get(job_id, []):
                feed.put(ItemEvent(job=job_id, item=item, counts=counts))
        job = replace(job, items=list(state.values()), counts=counts_of(list(state.values())))
        done = job.counts.succeeded + job.counts.failed + job.counts.cancelled == job.counts.desired
        if done:
            end = "Failed" if job.counts.failed else "Cancelled" if job.counts.cancelled else "Succeeded"
            job = replace(job, state=end, finished_at=NOW)
        self.jobs_by_id[job_id] = job
        if done:
            for feed in self.feeds.pop(job_id, []):
                feed.put(JobEvent(job=job))
                feed.put(None)

    def succeed_all(self, job: JobStatus) -> None:
        self.update(
            job.id, *[replace(item, phase="Succeeded", reason="Pulled", pulled_bytes=MIB) for item in job.items]
        )

    def follow(self, job_id: str) -> AsyncIterator[Event]:
        job = self.job(job_id)
        feed = Feed[Event]([JobEvent(job=job)])
        if job.state == "Active":
            self.feeds.setdefault(job_id, []).append(feed)
            self.on_follow(job)
        else:
            feed.put(None)
        return feed()

    def watch(self) -> AsyncIterator[Event]:
        feed = Feed[Event]()
        self.watch_feeds.append(feed)
        self.entering("watch").set()
        return feed()

    # images

    async def plan(self, request: PlanRequest) -> Plan:
        await self._enter("plan", request)
        if self.plan_result.images:
            return self.plan_result
        return Plan(
            images=[ImagePlan(image=image, reference=normal(image), layers_total=3) for image in request.images],
            space=SpaceNeed(path="/var/lib/containerd", needed_bytes=GIB, free_bytes=10 * GIB, reserve_bytes=GIB),
        )

    async def remove(self, image: str, *, force: bool = False) -> RemoveResult:
        await self._enter("remove", (image, force))
        return RemoveResult(reference=normal(image), removed=[normal(image)], freed_bytes=512 * MIB)

    # pins and keeps

    async def pin(self, request: PinRequest) -> PinStatus:
        await self._enter("pin", request)
        pin = PinStatus(reference=normal(request.image), size=GIB, created_at=NOW, verified=True)
        self.pinned[pin.reference] = pin
        return pin

    async def unpin(self, image: str) -> PinStatus:
        await self._enter("unpin", image)
        if normal(image) not in self.pinned:
            raise NotFound(f"{image} is not pinned")
        return self.pinned.pop(normal(image))

    async def pins(self) -> PinList:
        await self._enter("pins", None)
        return PinList(pins=list(self.pinned.values()), total_bytes=GIB * len(self.pinned), limit_bytes=100 * GIB)

    async def keep(self, request: KeepRequest) -> KeepStatus:
        await self._enter("keep", request)
        keep = KeepStatus(reference=normal(request.image), policy=request.policy, priority=request.priority)
        self.kept[keep.reference] = keep
        return keep

    async def unkeep(self, image: str) -> KeepStatus:
        await self._enter("unkeep", image)
        if normal(image) not in self.kept:
            raise NotFound(f"{image} is not kept")
        return self.kept.pop(normal(image))

    async def keeps(self) -> list[KeepStatus]:
        await self._enter("keeps", None)
        return list(self.kept.values())

    async def history(self, image: str | None = None, *, limit: int = 100) -> list[Attempt]:
        await self._enter("history", (image, limit))
        return [attempt for attempt in self.attempts if image is None or attempt.reference == normal(image)][:limit]

    async def list(self) -> list[ImageStatus]:
        await self._enter("list", None)
        return self.images


@dataclass
class Api:
    """A running server, its fakes, and an HTTP session to it."""

    socket: Path
    images: FakeImages
    containers: FakeContainers
    checkpoints: FakeCheckpoints
    archives: FakeArchives
    topology: FakeTopology
    node: FakeNode
    registry: CollectorRegistry
    server: ApiServer
    http: aiohttp.ClientSession
    url: str = "http://stokerd"
    settings: ApiSettings = field(default_factory=ApiSettings)

    async def restart(self) -> None:
        """Stop the server and put a new one with the same fakes on the same socket."""
        await self.server.stop(1.0)
        self.registry = CollectorRegistry()
        self.server = ApiServer(
            self.settings,
            images=self.images,
            containers=self.containers,
            checkpoints=self.checkpoints,
            archives=self.archives,
            topology=self.topology,
            node=self.node,
            registry=self.registry,
        )
        await self.server.start()


@asynccontextmanager
async def running_api(
    *,
    heartbeat: float = 15.0,
    max_body: int = 16 << 20,
    group: str = "",
    max_streams: int = 128,
    deadlines: Deadlines | None = None,
) -> AsyncIterator[Api]:
    """Serve fakes on a socket in a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="stoker-api-"))
    settings = ApiSettings(socket=directory / "s.sock", group=group, max_body=max_body, heartbeat=heartbeat)
    images, containers, node, registry = FakeImages(), FakeContainers(), FakeNode(), CollectorRegistry()
    checkpoints, topology = FakeCheckpoints(), FakeTopology()
    archives = FakeArchives(checkpoints)
    server = ApiServer(
        settings,
        images=images,
        containers=containers,
        checkpoints=checkpoints,
        archives=archives,
        topology=topology,
        node=node,
        registry=registry,
        deadlines=deadlines,
        max_streams=max_streams,
    )
    await server.start()
    http = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(settings.socket)))
    api = Api(
        settings.socket,
        images,
        containers,
        checkpoints,
        archives,
        topology,
        node,
        registry,
        server,
        http,
        settings=settings,
    )
    try:
        yield api
    finally:
        await http.close()
        await api.server.stop(5.0)
        shutil.rmtree(directory)


def waiting(image: str) -> ItemStatus:
    """An image whose turn has not come."""
    return ItemStatus(image=image, reference=normal(image), phase="Waiting")


def pulling(image: str, done: int, total: int, *, unpacked: int = 0, layers: int = 7, attempt: int = 1) -> ItemStatus:
    """An image that is being pulled."""
    return ItemStatus(
        image=image,
        reference=normal(image),
        phase="Pulling",
        attempt=attempt,
        started_at=NOW,
        progress=Progress(
            bytes_total=total,
            bytes_done=done,
            layers_total=layers,
            layers_unpacked=unpacked,
            percent=round(100 * done / total, 1) if total else 0.0,
        ),
    )


def succeeded(image: str, size: int = GIB, reason: str = "Pulled") -> ItemStatus:
    """An image that is there."""
    return ItemStatus(
        image=image,
        reference=normal(image),
        phase="Succeeded",
        reason=reason,
        attempt=1,
        started_at=NOW,
        finished_at=NOW,
        pulled_bytes=size,
        progress=Progress(bytes_total=size, bytes_done=size, layers_total=7, layers_unpacked=7, percent=100.0),
    )


def failed(image: str, reason: str = "NotFound", message: str = "no such image", hint: str = "") -> ItemStatus:
    """An image that could not be pulled."""
    return ItemStatus(
        image=image, reference=normal(image), phase="Failed", reason=reason, message=message, hint=hint, attempt=3
    )
