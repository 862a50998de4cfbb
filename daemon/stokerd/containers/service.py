"""Pods, containers and their recreation: what the rest of the daemon may ask for (`api.ports.ContainersPort`)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
import structlog

from stoker.objects import containers as api
from stokerd.containers import checks, preview, views
from stokerd.containers.book import Book
from stokerd.containers.cancelling import heed_cancellation
from stokerd.containers.clock import Clock
from stokerd.containers.hands import Hands, Warmer, detailed
from stokerd.containers.intake import Desk, Intake
from stokerd.containers.inventory import Inventory
from stokerd.containers.job import Environment, Job, Material
from stokerd.containers.lanes import Lanes
from stokerd.containers.metrics import ContainerMetrics
from stokerd.containers.model import TargetSpec
from stokerd.containers.preview import Subject
from stokerd.containers.sweeper import Sweeper
from stokerd.errors import Conflict, JournalError, LimitExceeded, NotFound, RuntimeFailure
from stokerd.journal.containers import ContainerJournal
from stokerd.journal.rows import RecreateRow, TargetRow
from stokerd.runtime.protocol import Runtime
from stokerd.settings import ContainerSettings

_log = structlog.get_logger("containers")
_MOST_OPEN = 5000
_RECONCILE_RETRY, _RUNTIME_PAUSE = 5.0, 0.5
_EXPIRY_INTERVAL = 30.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service is made of; main.py puts it together."""

    runtime: Runtime
    journal: ContainerJournal
    warmer: Warmer
    clock: Clock
    metrics: ContainerMetrics
    salt: bytes
    """Random, kept beside the journal: what tells requests apart in the journal says nothing without it."""


class ContainersService:
    """One per daemon. `load` first, then `run` in the task group; the rest may be called any time."""

    def __init__(self, parts: Parts, settings: ContainerSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._inventory = Inventory(parts.runtime, interval=settings.resync_interval)
        self._hands = Hands(parts.runtime, parts.warmer, parts.clock, grace=settings.grace)
        self._desk = Desk(parts.runtime, self._inventory, self._hands, parts.clock)
        self._book = Book(parts.journal, parts.clock, parts.metrics, self._ahead)
        self._sweeper = Sweeper(parts.runtime, self._book)
        self._lanes = Lanes(
            parts.runtime, self._hands, parts.clock, self._book, self._sweeper, limit=settings.max_parallel
        )
        self._inventory.on_event(self._lanes.heed)
        self._came_or_went = asyncio.Event()
        self._reconciled = asyncio.Event()
        self._admissions: set[asyncio.Task[None]] = set()
        parts.runtime.on_change(self._on_change)
        parts.metrics.running.set_function(lambda: self._lanes.running)
        parts.metrics.waiting.set_function(lambda: self._lanes.waiting)

    # ------------------------------------------------------------------------------------------ life

    async def load(self) -> None:
        """Take up what the journal says: unfinished requests go on, in their order."""
        for job in await self._book.load():
            if not job.finished:
                self._lanes.enter(job)

    def apply(self, settings: ContainerSettings) -> None:
        """Let new settings hold, without losing any work."""
        self._settings = settings
        self._inventory.apply(interval=settings.resync_interval)
        self._hands.apply(grace=settings.grace)
        self._lanes.apply(limit=settings.max_parallel)

    async def run(self) -> None:
        """Do the work until cancelled. May run again after it has failed.

        Whatever is cut off in the middle is gone on with by the next run; `park` before avoids that containers wait for
        that.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._inventory.run(), name="containers: inventory")
                group.create_task(self._book.run(), name="containers: ledger")
                group.create_task(self._reconcile(), name="containers: reconcile")
                group.create_task(self._expire(), name="containers: expire requests")
                group.create_task(self._lanes.run(), name="containers: requests")
        finally:
            await self._book.flush()

    async def park(self, limit: float) -> None:
        """Begin nothing more, and return when no container is stopped whose successor does not run yet, or after
        *limit* seconds."""
        await self._lanes.park(limit)

    def _on_change(self) -> None:
        self._came_or_went.set()
        self._lanes.poke()

    async def _reconcile(self) -> None:
        """Go through what earlier requests left, at the start and whenever the runtime comes back."""
        failing = False
        while True:
            await self._parts.runtime.wait_ready()
            self._came_or_went.clear()
            try:
                await self._sweeper.sweep_all()
            except RuntimeFailure as error:
                heed_cancellation()
                if self._parts.runtime.ready and not failing:
                    failing = True
                    _log.warning("leftovers of requests could not be gone through; trying again", why=error.message)
                await asyncio.sleep(_RECONCILE_RETRY if self._parts.runtime.ready else _RUNTIME_PAUSE)
                continue
            if failing:
                failing = False
                _log.info("leftovers of requests have been gone through")
            self._reconciled.set()
            await self._until_needed()

    async def _until_needed(self) -> None:
        """Return when the runtime comes or goes, or when something that could not be removed is due again."""
        while not self._came_or_went.is_set():
            try:
                async with asyncio.timeout(self._settings.resync_interval):
                    await self._came_or_went.wait()
            except TimeoutError:
                if self._sweeper.pending:
                    return

    @property
    def reconciled(self) -> bool:
        return self._reconciled.is_set()

    @property
    def problem(self) -> str:
        """What is wrong with the service, empty when nothing is."""
        return self._book.problem

    async def _expire(self) -> None:
        while True:
            try:
                await self._book.expire()
            except JournalError as error:
                _log.warning("old requests could not be removed from the journal", why=error.message)
            await asyncio.sleep(_EXPIRY_INTERVAL)

    # ------------------------------------------------------------------------------------------ inventory

    async def pods(self) -> list[api.PodInfo]:
        """Return all pods with their containers, by namespace and name."""
        picture = await self._inventory.picture()
        return [views.pod(picture, each) for each in picture.pods]

    async def pod(self, name: str) -> api.PodDetail:
        found, _ = await self._inventory.find_pod(name)
        picture = await self._inventory.picture()
        status = await self._parts.runtime.pods.status(found.id)
        if status is None:
            raise NotFound(f"the pod {name!r} went away this moment", hint="`stoker pods` lists those that are there")
        return views.pod_detail(picture, status)

    async def containers(self) -> list[api.ContainerInfo]:
        picture = await self._inventory.picture()
        return [views.container(picture, each) for each in picture.containers]

    async def container(self, name: str) -> api.ContainerDetail:
        found, picture = await self._inventory.find_container(name)
        status = await self._parts.runtime.containers.status(found.id)
        if status is None:
            raise NotFound(
                f"the container {name!r} went away this moment", hint="`stoker containers` lists those that are there"
            )
        return views.container_detail(picture, status)

    # ------------------------------------------------------------------------------------------ recreating

    async def recreate(self, request: api.RecreateRequest) -> api.RecreateStatus:
        """Take a request up: it is in the journal when this returns. The same again is the one that is there."""
        checks.check(request)
        digest = checks.digest_of(request, self._parts.salt)
        same = await self._same(request.name, request.namespace, digest, resolved=False)
        if same is not None:
            return self._status(same)
        if len(self._book.unfinished()) >= _MOST_OPEN:
            raise LimitExceeded(f"{_MOST_OPEN} requests are not finished yet", hint="wait for some, or cancel them")
        serial = self._lanes.serial
        intake = await self._desk.take(request, self._settings)
        namespace = request.namespace or intake.pod.pod.namespace
        same = await self._same(request.name, namespace, digest, resolved=True)
        if same is not None:
            return self._status(same)
        job = self._job(intake, namespace, digest)
        job.equip(intake.sight, intake.pod, intake.materials, serial)
        self._book.reserve(job)
        # Whoever asked may hang up now: what is in the journal is carried out all the same.
        task = asyncio.create_task(self._admit(job), name=f"containers: admit {job.id}")
        self._admissions.add(task)
        task.add_done_callback(self._admitted)
        await asyncio.shield(task)
        _log.info(
            "recreating", request=job.id, pod=f"{job.row.namespace}/{job.row.pod}", containers=list(intake.current)
        )
        return self._status(job)

    async def _admit(self, job: Job) -> None:
        await self._book.accept(job)
        self._lanes.enter(job)

    def _admitted(self, task: asyncio.Task[None]) -> None:
        self._admissions.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.debug("a request was not taken up", why=str(task.exception()))

    async def _same(self, name: str, namespace: str, digest: str, *, resolved: bool) -> Job | None:
        """Return the request of that name and content, None when there is none; Conflict: of another content."""
        while name:
            found = self._book.named(name, namespace)
            same = next((job for job in found if job.row.digest == digest), None)
            if same is None:
                if found and (resolved or namespace):
                    raise Conflict(
                        f"there is a request {found[0].row.namespace}/{name} of another content",
                        hint="give the new one another name, or none",
                    )
                return None
            await same.accepted.wait()
            if same in self._book.jobs:
                return same
        return None

    def _job(self, intake: Intake, namespace: str, digest: str) -> Job:
        now = self._parts.clock.time()
        request, pod = intake.request, intake.pod.pod
        identity = f"recreate-{secrets.token_hex(5)}"
        deadline = request.active_deadline_seconds
        row = RecreateRow(
            id=identity,
            name=request.name or identity,
            namespace=namespace,
            pod=pod.name,
            pod_id=pod.id,
            pod_uid=pod.uid,
            owner=intake.owner,
            spec=msgspec.json.encode(intake.spec).decode(),
            digest=digest,
            created_at=now,
            deadline_at=now + (self._settings.active_deadline if deadline is None else deadline),
        )
        rows = [
            TargetRow(identity, position, name, status.container.id, status.container.attempt)
            for position, (name, status) in enumerate(intake.current.items())
        ]
        return Job(row, intake.spec, rows, env=_environment(request), auths=tuple(request.auths))

    async def plan(self, request: api.RecreateRequest) -> api.RecreatePlan:
        """Say what would be done; nothing is."""
        checks.check(request)
        intake = await self._desk.take(request, self._settings)
        pod = intake.pod.pod
        subjects = [_subject(spec, intake.materials[spec.name]) for spec in intake.spec.targets]
        waits_for = self._lanes.last_on(pod.id)
        return api.RecreatePlan(
            pod=pod.name,
            namespace=pod.namespace,
            pod_id=pod.id,
            owner=intake.owner,
            steps=preview.steps(intake.spec, intake.owner, subjects),
            warnings=preview.warnings(intake.owner, intake.sight.sandbox == "ready", waits_for, subjects),
        )

    def recreates(self) -> list[api.RecreateStatus]:
        """Return all requests known, newest first."""
        return [self._status(job) for job in reversed(self._book.jobs)]

    def recreate_status(self, request_id: str) -> api.RecreateStatus:
        return self._status(self._book.find(request_id))

    async def cancel_recreate(self, request_id: str) -> api.RecreateStatus:
        """Begin with no further container. What is under way is brought to an end; what was recreated stays."""
        job = self._book.find(request_id)
        if not job.finished and not job.row.cancelled:
            await self._book.cancel(job)
            self._lanes.poke()
            _log.info("cancelled", request=job.id)
        return self._status(job)

    def follow_recreate(self, request_id: str) -> AsyncGenerator[api.RecreateEvent, None]:
        return self._book.follow(self._book.find(request_id))

    def _ahead(self, job: Job) -> str:
        return self._lanes.ahead(job)

    def _status(self, job: Job) -> api.RecreateStatus:
        return job.status(waiting_for=self._lanes.ahead(job))


def _environment(request: api.RecreateRequest) -> Environment:
    return {target.name: {each.name: each.value for each in target.env} for target in request.containers if target.env}


def _subject(spec: TargetSpec, material: Material) -> Subject:
    hook = type(material.hook).__name__.removesuffix("Hook").lower() if material.hook is not None else ""
    return Subject(spec, detailed(material.status), material.grace, hook, material.hook_problem)
