"""Warm images: what the rest of the daemon may ask for (`api.ports.ImagesPort`), and the tasks behind it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import structlog

from stoker.objects import images as api
from stokerd.errors import InvalidInput, JournalError, LimitExceeded, RuntimeFailure, RuntimeUnavailable, StokerError
from stokerd.images import views
from stokerd.images.book import JobBook
from stokerd.images.budget import DiskBudget
from stokerd.images.clock import Clock
from stokerd.images.feed import Hub
from stokerd.images.jobs import Job, unique
from stokerd.images.ledger import Ledger
from stokerd.images.metrics import ImageMetrics
from stokerd.images.planning import Planner
from stokerd.images.policies import margins_of, policy_of, timing_of
from stokerd.images.presence import Presence
from stokerd.images.pull import Puller
from stokerd.images.reconcile import drop_orphans
from stokerd.images.removal import remove_image
from stokerd.images.scheduler import Scheduler, Warm
from stokerd.images.tender import Tender
from stokerd.journal.images import ImageJournal
from stokerd.journal.rows import ItemRow, JobRow, KeepRow
from stokerd.registry.credentials import Credential
from stokerd.registry.references import InvalidReference, Reference, parse_reference
from stokerd.runtime.protocol import Runtime
from stokerd.settings import ImageSettings

_log = structlog.get_logger("images")
_T = TypeVar("_T")
# `list` is a method of the service, and hides the type inside its class.
_Keeps = list[api.KeepStatus]
_Attempts = list[api.Attempt]
_CHECKED_AT_ONCE = 64
"""Up to so many images are looked up before a warm request is answered, so that what is warm is answered as such."""
_TTL_INTERVAL = 60.0
_RECONCILE_RETRY = 5.0
_RUNTIME_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service is made of; main.py puts it together."""

    runtime: Runtime
    journal: ImageJournal
    presence: Presence
    budget: DiskBudget
    puller: Puller
    planner: Planner
    clock: Clock
    pressure: Callable[[], Awaitable[float | None]]
    metrics: ImageMetrics
    daemon: str
    """This daemon's identity, which marks its leases."""


class ImageService:
    """One per daemon. `load` first, then `run` in the task group; the rest may be called any time."""

    def __init__(self, parts: Parts, settings: ImageSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._clock = parts.clock
        self._hub = Hub()
        self._ledger = Ledger(parts.journal, history_limit=settings.history_limit)
        self._reconciled = asyncio.Event()
        self._came_or_went = asyncio.Event()
        parts.runtime.on_change(self._came_or_went.set)
        self._tender = Tender(
            parts.runtime,
            parts.presence,
            parts.budget,
            parts.journal,
            self._hub,
            parts.clock,
            pin_limit=settings.pin_limit,
            interval=settings.keep_interval,
            pause_limit=settings.keep_backoff_max,
            busy=lambda: self._scheduler.keys,
            rewarm=self._rewarm,
        )
        self._book = JobBook(self._ledger, self._hub, parts.clock, parts.metrics, self._tender)
        self._scheduler = Scheduler(
            parts.runtime, parts.puller, parts.presence, policy_of(settings), parts.clock, parts.pressure, self._book
        )
        parts.metrics.running.set_function(lambda: self._scheduler.running)
        parts.metrics.waiting.set_function(lambda: self._scheduler.waiting)

    # ------------------------------------------------------------------------------------------ life

    async def load(self) -> None:
        """Take up what the journal says: unfinished jobs go back into the queue."""
        await self._parts.budget.load()
        await self._tender.load()
        for row, items in await self._parts.journal.jobs():
            for item in self._book.restore(row, items):
                self._scheduler.want(item)

    def apply(self, settings: ImageSettings) -> None:
        """Let new settings hold, without losing any work."""
        self._settings = settings
        self._scheduler.apply(policy_of(settings))
        self._parts.budget.apply(margins_of(settings))
        self._parts.puller.apply(timing_of(settings))
        self._ledger.apply(history_limit=settings.history_limit)
        self._tender.apply(
            pin_limit=settings.pin_limit, interval=settings.keep_interval, pause_limit=settings.keep_backoff_max
        )

    async def run(self) -> None:
        """Do the work until cancelled; running pulls are then left so that the next start goes on with them.

        May run again after it has failed.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._scheduler.run(), name="images: scheduler")
                group.create_task(self._tender.run(), name="images: pins and keeps")
                group.create_task(self._ledger.run(), name="images: ledger")
                group.create_task(self._reconcile(), name="images: reconcile")
                group.create_task(self._heed_events(), name="images: events")
                group.create_task(self._expire_jobs(), name="images: expire jobs")
        finally:
            await self._ledger.flush()

    async def _reconcile(self) -> None:
        """Go through containerd's leases at the start and whenever it comes back."""
        ready, failing = self._came_or_went, False
        while True:
            await self._parts.runtime.wait_ready()
            ready.clear()
            try:
                await drop_orphans(self._parts.runtime, self._parts.daemon, self._scheduler)
            except RuntimeFailure as error:
                gone = isinstance(error, RuntimeUnavailable)  # the connection's supervision will notice, too
                if not gone and not failing:
                    failing = True
                    _log.warning("leases could not be gone through; trying again", why=error.message)
                await asyncio.sleep(_RECONCILE_RETRY if not gone else _RUNTIME_PAUSE)
                continue
            if failing:
                failing = False
                _log.info("leases have been gone through")
            if ready.is_set():  # containerd went, or came, meanwhile
                continue
            self._reconciled.set()
            self._tender.poke()
            await ready.wait()

    @property
    def reconciled(self) -> bool:
        return self._reconciled.is_set()

    @property
    def problem(self) -> str:
        """What is wrong with the service, empty when nothing is."""
        return self._ledger.problem

    async def _heed_events(self) -> None:
        while True:
            await self._parts.runtime.wait_ready()
            try:
                async for event in self._parts.runtime.events.images():
                    change = api.ImageChange(kind=event.kind, reference=event.name)
                    self._hub.tell_node(lambda change=change: change)  # type: ignore[misc]
                    self._tender.heed(event)
            except RuntimeFailure as error:
                _log.debug("event stream broke", why=error.message)
                await asyncio.sleep(1.0)
            self._tender.poke()

    async def _expire_jobs(self) -> None:
        failing = False
        while True:
            gone = self._book.finished_before(self._clock.time() - self._settings.job_ttl)
            try:
                await self._parts.journal.forget_jobs(job.row.id for job in gone)
                self._book.forget(gone)
                failing = False
            except StokerError as error:
                if not failing:  # that the journal can be written again is said by the ledger
                    _log.warning("old jobs could not be removed from the journal", why=error.message)
                failing = True
            await asyncio.sleep(min(_TTL_INTERVAL, max(self._settings.job_ttl, 1.0)))

    # ------------------------------------------------------------------------------------------ warming

    async def warm(self, request: api.WarmRequest) -> api.JobStatus:
        """Accept a request: it is in the journal when this returns. All its references are checked first."""
        images = self._checked(request)
        auths = tuple(_credential(auth) for auth in request.auths)
        row = JobRow(
            id=f"warm-{secrets.token_hex(5)}",
            name=request.name,
            policy=request.policy,
            priority=request.priority,
            attempts=request.attempts or self._settings.attempts,
            timeout=request.timeout_seconds,
            pin_seconds=request.pin_seconds,
            state="Active",
            created_at=self._clock.time(),
            had_auths=bool(auths),
        )
        job = await self._accept(row, images, auths)
        _log.info("warming images", job=row.id, images=len(images), policy=row.policy, priority=row.priority)
        return views.job(job)

    async def _accept(self, row: JobRow, images: list[tuple[str, Reference]], auths: tuple[Credential, ...]) -> Job:
        job = Job(row, auths)
        for position, (image, reference) in enumerate(images):
            job.add(ItemRow(row.id, position, image, str(reference)), reference)
        await self._book.accept(job)
        await self._settle_present(job)
        for item in job.items:
            if not item.finished:
                self._scheduler.want(item)
        return job

    def _checked(self, request: api.WarmRequest) -> list[tuple[str, Reference]]:
        """Return the references, each pull once; InvalidInput names every one that is wrong."""
        if not request.images:
            raise InvalidInput("no images were named")
        limit = self._settings.max_images_per_request
        if len(request.images) > limit:
            raise LimitExceeded(f"{len(request.images)} images in one request, more than the {limit} allowed")
        if not -1000 <= request.priority <= 1000:
            raise InvalidInput(f"priority {request.priority} is not between -1000 and 1000")
        for name, value in (("attempts", request.attempts), ("timeoutSeconds", request.timeout_seconds)):
            if value is not None and not 0 < value < 1e9:
                raise InvalidInput(f"{name}: {value} is not a positive number")
        if request.pin_seconds is not None and not 0 <= request.pin_seconds < 1e10:
            raise InvalidInput(f"pinSeconds: {request.pin_seconds} is not a duration")
        parsed: list[tuple[str, Reference]] = []
        problems: list[InvalidReference] = []
        for image in request.images:
            try:
                parsed.append((image, parse_reference(image)))
            except InvalidReference as error:
                problems.append(error)
        if len(problems) == 1:
            raise problems[0]
        if problems:
            shown = "; ".join(problem.message for problem in problems[:20])
            raise InvalidInput(f"{len(problems)} references are not valid: {shown}", hint=problems[0].hint)
        return unique(parsed)

    async def _settle_present(self, job: Job) -> None:
        """Answer at once for images that are warm already."""
        if job.row.policy != "IfNotPresent" or len(job.items) > _CHECKED_AT_ONCE or not self._parts.runtime.ready:
            return
        try:
            found = await asyncio.gather(*(self._parts.presence.find(item.reference) for item in job.items))
        except RuntimeFailure:
            return  # the queue will see to it
        for item, present in zip(job.items, found, strict=True):
            if present is not None and not item.finished:  # it may be cancelled while it is looked at, or pinned
                await self._book.warmed(item)
            if present is not None and not item.finished:
                self._book.succeeded(item, Warm(present, None))

    async def _rewarm(self, keep: KeepRow) -> None:
        """Warm a kept image again, as a job of its own that people can see."""
        reference = parse_reference(keep.reference)
        row = JobRow(
            id=f"keep-{secrets.token_hex(5)}",
            name=f"keep {reference.familiar}",
            policy=keep.policy,
            priority=keep.priority,
            attempts=self._settings.attempts,
            timeout=None,
            pin_seconds=None,
            state="Active",
            created_at=self._clock.time(),
        )
        await self._accept(row, [(keep.reference, reference)], ())

    # ------------------------------------------------------------------------------------------ jobs

    def jobs(self) -> list[api.JobStatus]:
        """Return all jobs known, newest first, without their items."""
        return [views.job(job, items=False) for job in self._book.newest_first()]

    def job(self, job_id: str) -> api.JobStatus:
        """Return one job by its id or an unambiguous beginning of it."""
        return views.job(self._book.find(job_id), hold=lambda item: self._scheduler.hold(item.key))

    async def cancel(self, job_id: str) -> api.JobStatus:
        """Cancel what of a job is not finished. Returns once pulls that nobody else wants have left nothing behind."""
        job = self._book.find(job_id)
        gone: list[asyncio.Event] = []
        for item in job.items:
            if item.row.phase == "Cancelled":  # by another call, which may still wait
                pull = self._scheduler.abandoned(item.key)
            elif item.finished:
                continue
            else:
                pull = self._scheduler.drop(item)
                self._book.cancelled(item)
            if pull is not None:
                gone.append(pull.gone)
        self._book.settle(job)
        for event in gone:
            await event.wait()
        return views.job(job)

    def follow(self, job_id: str) -> AsyncGenerator[api.Event, None]:
        """Yield the job, then its items as they change, then the job as it ended."""
        return self._book.follow(self._book.find(job_id))

    def watch(self) -> AsyncGenerator[api.Event, None]:
        """Yield everything that happens to images on this node, until the caller stops."""
        return self._hub.watch()

    # ------------------------------------------------------------------------------------------ the rest of the port

    async def plan(self, request: api.PlanRequest) -> api.Plan:
        checked = self._checked(api.WarmRequest(images=request.images))
        auths = tuple(_credential(auth) for auth in request.auths)
        return await self._parts.planner.plan(checked, auths)

    async def list(self) -> list[api.ImageStatus]:
        """Return the images on the node, by their first name."""
        last = await self._last_warmed()
        pins = _by_name(self._tender.pinned)
        keeps = _by_name(self._tender.kept)
        found = []
        for image in await self._parts.runtime.cri.list():
            names = [*image.repo_tags, *image.repo_digests]
            expiries = [pin.expires_at for name in names for pin in pins.get(name, ())]
            found.append(
                api.ImageStatus(
                    id=image.id,
                    references=list(image.repo_tags),
                    digests=list(image.repo_digests),
                    size=image.size,
                    pinned=image.pinned,
                    pin_expires_at=views.time_of(_latest(expiries)),
                    kept=any(name in keeps for name in names),
                    last_warmed_at=views.time_of(max((last[name] for name in names if name in last), default=None)),
                )
            )
        return sorted(found, key=lambda image: (image.references or image.digests or [image.id])[0])

    async def _last_warmed(self) -> dict[str, float]:
        """Return when images were last warmed, by the runtime's names; nothing when the journal cannot be read."""
        try:
            rows = await self._parts.journal.last_warmed()
        except JournalError as error:
            _log.warning("the journal cannot be read", why=error.message)
            return {}
        return {name: max(times) for name, times in _by_name(rows).items()}

    async def remove(self, image: str, *, force: bool = False) -> api.RemoveResult:
        """Remove an image; Conflict when it is pinned, kept or used and *force* is not given."""
        return await remove_image(self._parts.runtime, self._tender, parse_reference(image), force=force)

    async def pin(self, request: api.PinRequest) -> api.PinStatus:
        return await self._tender.pin(parse_reference(request.image), request.seconds)

    async def unpin(self, image: str) -> api.PinStatus:
        return await self._tender.unpin(parse_reference(image))

    async def pins(self) -> api.PinList:
        return await self._tender.pin_list()

    async def keep(self, request: api.KeepRequest) -> api.KeepStatus:
        return await self._tender.keep(parse_reference(request.image), request.policy, request.priority)

    async def unkeep(self, image: str) -> api.KeepStatus:
        return await self._tender.unkeep(parse_reference(image))

    async def keeps(self) -> _Keeps:
        return await self._tender.keep_list()

    async def history(self, image: str | None = None, *, limit: int = 100) -> _Attempts:
        await self._ledger.flush()
        name = str(parse_reference(image)) if image else None
        return [views.attempt(row) for row in await self._parts.journal.attempts(name, limit=limit)]


def _by_name(rows: Mapping[str, _T]) -> dict[str, list[_T]]:
    """Sort what is filed under references by the names under which the runtime knows images."""
    found: dict[str, list[_T]] = {}
    for name, row in rows.items():
        spec = parse_reference(name).pull_spec if "@" in name else name  # a tag beside a digest is not in it
        found.setdefault(spec, []).append(row)
    return found


def _latest(expiries: Collection[float | None]) -> float | None:
    """Return when the last of some pins ends; None when one has no end."""
    ends = [when for when in expiries if when is not None]
    return max(ends, default=None) if len(ends) == len(expiries) else None


def _credential(auth: api.InlineAuth) -> Credential:
    return Credential(
        username=auth.username,
        password=auth.password,
        identity_token=auth.identity_token,
        registry_token=auth.registry_token,
        source="request",
        server=auth.registry,
    )
