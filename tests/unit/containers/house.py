"""A node for tests: containerd in memory with pods, a journal in a directory, and the containers room between them.

    async with House(tmp_path) as house:
        pod = house.pod("web", "app", "side")
        done = await house.recreated(pod, "app")
        assert done.result == "Succeeded"

stokerd can be stopped, killed and started again on it as often as a test likes. Everything that it does to containers
is watched: see `Watch`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from stoker.objects import containers as api
from stoker.objects.images import InlineAuth
from stokerd.containers.metrics import ContainerMetrics
from stokerd.containers.model import REQUEST_LABEL
from stokerd.containers.service import ContainersService, Parts
from stokerd.journal.containers import ContainerJournal
from stokerd.journal.database import Database
from stokerd.runtime.memory import MemoryRuntime
from stokerd.runtime.memory_pods import MemoryContainer
from stokerd.runtime.pod_types import Blueprint, Container, ContainerStatus, ExecResult, PodBlueprint
from stokerd.runtime.protocol import (
    Runtime,
)
from stokerd.settings import ContainerSettings
from tests.unit.mortal import Link, Mortal

APP, NEXT, BAD = "registry.test/app:v1", "registry.test/app:v2", "registry.test/bad:v1"
MISSING = "registry.test/missing:v1"
SALT = b"salt of this node"
KUBELET_ANNOTATION = {"kubernetes.io/config.source": "api"}
_AT_ONCE = 0.001
"""Seconds in which nobody can know yet what somebody else has done."""


class HouseClock:
    """`containers.clock.Clock` on the loop's time, beginning now."""

    def __init__(self) -> None:
        self._epoch = time.time() - asyncio.get_running_loop().time()

    def time(self) -> float:
        return self._epoch + asyncio.get_running_loop().time()


class Watch:
    """Everything that stokerd does to containers, checked when it is done. ``calls`` are those that change something;
    ``before`` and ``after`` are called around each."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        self._runtime = runtime
        self.calls: list[tuple[str, str]] = []
        self.asked: set[str] = set()
        """Containers that may be stopped: targets of requests."""
        self.forbidden: list[str] = []
        self.wanted: Callable[[], set[str]] = set
        """Those of requests that the daemon knows, should whoever asked have hung up."""
        self.before: Callable[[str], None] = lambda call: None
        self.after: Callable[[str], None] = lambda call: None

    def note(self, call: str, identity: str) -> None:
        self.calls.append((call, identity))
        container = self._runtime.node.containers.get(identity)
        if container is None:
            return
        problem = getattr(self, f"_check_{call}", lambda _container: "")(container)
        if problem:
            self.forbidden.append(f"{call} of {container.name}/{container.attempt}: {problem}")

    def _ours(self, container: MemoryContainer) -> bool:
        return REQUEST_LABEL in (container.config.get("labels") or {})

    def _others(self, container: MemoryContainer) -> list[MemoryContainer]:
        everything = self._runtime.node.containers.values()
        return [
            each
            for each in everything
            if each.pod is container.pod and each.name == container.name and each is not container
        ]

    def _check_start(self, container: MemoryContainer) -> str:
        if not self._ours(container):
            return "it is not ours"
        now = self._runtime.node.clock()
        for other in self._others(container):
            if other.state != "running" or other.started_at is None:
                continue
            if (now - other.started_at).total_seconds() > _AT_ONCE:
                return f"attempt {other.attempt} runs beside it"
        return ""

    def _check_stop(self, container: MemoryContainer) -> str:
        return "" if self._ours(container) or self._asked(container) else "nobody asked for it"

    def _asked(self, container: MemoryContainer) -> bool:
        return container.id in self.asked or container.id in self.wanted()

    def _check_remove(self, container: MemoryContainer) -> str:
        if container.state not in {"created", "exited"}:
            return f"it is {container.state}"
        if not self._ours(container) and not self._asked(container):
            return "nobody asked for it"
        if container.state == "created":
            return "" if self._ours(container) else "it is not ours"
        newer = [each for each in self._others(container) if each.attempt > container.attempt]
        proven = [each for each in newer if each.state in {"running", "exited"}]
        return "" if proven or self._ours(container) else "no other has proven itself"


class WatchedContainers:
    """`protocol.CriContainers` of a link."""

    def __init__(self, link: WatchedLink) -> None:
        self._link = link

    async def list(self, *, pod_id: str | None = None) -> tuple[Container, ...]:
        return await self._link.there().containers.list(pod_id=pod_id)

    async def status(self, container_id: str) -> ContainerStatus | None:
        return await self._link.there().containers.status(container_id)

    async def create(self, pod_id: str, container: Blueprint, pod: PodBlueprint) -> str:
        self._link.begin("create", "")
        made = await self._link.there().containers.create(pod_id, container, pod)
        self._link.end("create")
        return made

    async def start(self, container_id: str) -> None:
        self._link.begin("start", container_id)
        await self._link.there().containers.start(container_id)
        self._link.end("start")

    async def stop(self, container_id: str, grace: float) -> None:
        self._link.begin("stop", container_id)
        await self._link.there().containers.stop(container_id, grace)
        self._link.end("stop")

    async def remove(self, container_id: str) -> None:
        self._link.begin("remove", container_id)
        await self._link.there().containers.remove(container_id)
        self._link.end("remove")

    async def exec(self, container_id: str, argv: Sequence[str], *, timeout: float) -> ExecResult:
        self._link.begin("exec", container_id)
        result = await self._link.there().containers.exec(container_id, argv, timeout=timeout)
        self._link.end("exec")
        return result


class WatchedLink(Link):
    """A link whose calls that change containers are watched."""

    def __init__(self, runtime: MemoryRuntime, watch: Watch) -> None:
        super().__init__(runtime)
        self._watch = watch
        self._containers = WatchedContainers(self)

    @property
    def containers(self) -> WatchedContainers:
        _ = self.there().containers  # raises while there is no connection
        return self._containers

    def begin(self, call: str, identity: str) -> None:
        self.there()
        self._watch.before(call)
        self.there()
        self._watch.note(call, identity)

    def end(self, call: str) -> None:
        if not self.cut:
            self._watch.after(call)
        self.there()


class PullWarmer:
    """`hands.Warmer` that pulls; ``warmed`` is what it was asked for, and with which credentials."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.warmed: list[tuple[str, tuple[InlineAuth, ...]]] = []
        self.hold: asyncio.Event | None = None

    async def warm(self, image: str, auths: Sequence[InlineAuth]) -> None:
        self.warmed.append((image, tuple(auths)))
        if self.hold is not None:
            await self.hold.wait()
        if await self._link.cri.status(image) is None:
            await self._link.cri.pull(image)


class House(Mortal):
    """The node. ``service`` is the daemon that runs on it now."""

    def __init__(self, directory: Path, *, threads: bool = False, **settings: Any) -> None:
        self.directory = directory
        self.settings = ContainerSettings(**settings)
        self.clock = HouseClock()
        self.runtime = MemoryRuntime(clock=lambda: datetime.fromtimestamp(self.clock.time(), UTC))
        for image in (APP, NEXT, BAD):
            self.runtime.remote.add_image(image)
        self.watch = Watch(self.runtime)
        self._threads = threads

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        assert not self.watch.forbidden, self.watch.forbidden

    # ------------------------------------------------------------------------------------------ life

    async def start(self, *, run: bool = True) -> ContainersService:
        """Start a daemon on what the last one left."""
        self.link = WatchedLink(self.runtime, self.watch)
        await self.open_journal(Database(self.directory), threads=self._threads).open()
        self.journal = ContainerJournal(self.database)
        self.registry = CollectorRegistry()
        self.warmer = PullWarmer(self.link)
        parts = Parts(self.link, self.journal, self.warmer, self.clock, ContainerMetrics(self.registry), SALT)
        self.service = ContainersService(parts, self.settings)
        self.watch.wanted = self._wanted
        await self.service.load()
        if run:
            self.run()
        return self.service

    def _wanted(self) -> set[str]:
        return {each.row.old_id for job in self.service._book.jobs for each in job.targets}

    @property
    def room(self) -> ContainersService:
        return self.service

    # ------------------------------------------------------------------------------------------ the node

    def pod(self, name: str, *containers: str, kubelet: bool = False, **more: Any) -> str:
        """Make a pod whose containers run; return its id."""
        labels, annotations = {}, {}
        if kubelet:
            annotations = dict(KUBELET_ANNOTATION)
            labels = {f"io.kubernetes.pod.{key}": name for key in ("name", "namespace", "uid")}
        pod = self.runtime.add_pod(name, labels=labels, annotations=annotations, **more)
        for container in containers:
            self.runtime.add_container(pod, container, APP)
        return pod

    def of(self, pod: str, name: str = "") -> list[MemoryContainer]:
        """Return the containers of a pod, of one name or of all, by attempt."""
        found = [each for each in self.runtime.node.containers.values() if each.pod.id == pod]
        return sorted((each for each in found if name in {"", each.name}), key=lambda each: (each.attempt, each.name))

    def running(self, pod: str, name: str) -> MemoryContainer:
        """Return the one container of the name that runs."""
        found = [each for each in self.of(pod, name) if each.state == "running"]
        assert len(found) == 1, [(each.name, each.attempt, each.state) for each in self.of(pod)]
        return found[0]

    def states(self, pod: str, name: str = "") -> list[tuple[int, str]]:
        return [(each.attempt, each.state) for each in self.of(pod, name)]

    # ------------------------------------------------------------------------------------------ what tests do

    async def ask(self, pod: str, *containers: str | api.RecreateTarget, **how: Any) -> api.RecreateStatus:
        """Send a request; options of the strategy are told by their names."""
        strategy = {key: how.pop(key) for key in list(how) if key in api.RecreateStrategy.__struct_fields__}
        targets = [api.RecreateTarget(name=each) if isinstance(each, str) else each for each in containers]
        request = api.RecreateRequest(
            pod=pod, containers=targets, strategy=api.RecreateStrategy(**strategy), all=not targets, **how
        )
        status = await self.service.recreate(request)
        self.watch.asked |= {each.old_id for each in status.containers}
        return status

    async def ended(self, request: str, limit: float = 100_000.0) -> api.RecreateStatus:
        """Return the request once it has ended; the limit is in seconds of the loop's time."""
        async with asyncio.timeout(limit):
            async for event in self.service.follow_recreate(request):
                self.watch.asked |= {each.old_id for each in event.recreate.containers}
        return self.service.recreate_status(request)

    async def recreated(self, pod: str, *containers: str | api.RecreateTarget, **how: Any) -> api.RecreateStatus:
        return await self.ended((await self.ask(pod, *containers, **how)).id)

    async def quiet(self, limit: float = 100_000.0) -> None:
        """Return once no request is under way, and what they left is gone."""
        async with asyncio.timeout(limit):
            while (  # noqa: ASYNC110 - costs no real time
                self.service._book.unfinished() or self.service._sweeper.pending or not self.service.reconciled
            ):
                await asyncio.sleep(0.05)

    async def swept(self, pod: str) -> None:
        """Return once what the requests left is gone."""
        await self.quiet()
        leftover = [each for each in self.of(pod) if each.state == "created"]
        assert not leftover, leftover


def only(status: api.RecreateStatus) -> api.TargetStatus:
    assert len(status.containers) == 1
    return status.containers[0]


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Kubelet:
    """Starts the next attempt of containers that have exited, of pods that are its own."""

    def __init__(self, house: House, *pods: str, delay: float = 0.5) -> None:
        self._house = house
        self._pods = pods
        self._delay = delay
        self._task: asyncio.Task[None] | None = None
        self.restarts: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="kubelet")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._delay)
            for pod in self._pods:
                for name in {each.name for each in self._house.of(pod)}:
                    self._look_after(pod, name)

    def _look_after(self, pod: str, name: str) -> None:
        seen = self._house.of(pod, name)
        if any(each.state == "running" for each in seen):
            return
        newest = seen[-1]
        self.restarts[name] += 1
        more = {key: value for key, value in newest.config.items() if key in {"annotations", "labels"}}
        self._house.runtime.add_container(pod, name, APP, attempt=newest.attempt + 1, **more)


async def events_of(stream: AsyncIterator[api.RecreateEvent]) -> list[api.RecreateStatus]:
    return [event.recreate async for event in stream]


_checked: type[Runtime] = Link
