"""All requests that are known, what of them is in the journal, and who is told of their changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

import msgspec
import structlog
from msgspec.structs import replace

from stoker.objects.containers import RecreateEvent
from stokerd.containers.clock import Clock
from stokerd.containers.feed import Hub
from stokerd.containers.job import Job
from stokerd.containers.metrics import ContainerMetrics
from stokerd.containers.model import Spec
from stokerd.errors import Conflict, JournalError, NotFound
from stokerd.ids import begins
from stokerd.journal.containers import ContainerJournal
from stokerd.journal.rows import RecreateResult, RecreateRow, TargetRow

_log = structlog.get_logger("containers")
_PAUSE, _PAUSE_WHEN_FAILING = 0.1, 5.0
_DAY = 86_400.0


class Book:
    def __init__(
        self,
        journal: ContainerJournal,
        clock: Clock,
        metrics: ContainerMetrics,
        waits_for: Callable[[Job], str],
    ) -> None:
        """*waits_for* says which request goes right before one that waits."""
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._waits_for = waits_for
        self._hub = Hub()
        self._jobs: dict[str, Job] = {}
        self._dirty: dict[str, Job] = {}
        self._changed = asyncio.Event()
        self._failing = False

    # ------------------------------------------------------------------------------------------ requests

    async def load(self) -> list[Job]:
        """Return what the journal has, oldest first."""
        for row, targets in await self._journal.requests():
            if row.id in self._jobs:
                continue
            try:
                spec = msgspec.json.decode(row.spec, type=Spec)
                job = Job(row, spec, targets)
            except (msgspec.DecodeError, KeyError) as error:
                _log.error(
                    "a request in the journal cannot be understood, and is left aside", id=row.id, why=str(error)
                )
                continue
            job.accepted.set()
            self._jobs[row.id] = job
        return list(self._jobs.values())

    def reserve(self, job: Job) -> None:
        """Let a new request be known, so that the same one is not taken up twice; `accept` comes next."""
        self._jobs[job.id] = job

    async def accept(self, job: Job) -> None:
        """Write a new request. Raises JournalError: then it was not accepted."""
        try:
            await self._journal.save([job.row], [each.row for each in job.targets])
        except BaseException:
            self._jobs.pop(job.id, None)
            raise
        finally:
            job.accepted.set()

    @property
    def jobs(self) -> list[Job]:
        """All requests, oldest first."""
        return list(self._jobs.values())

    def unfinished(self) -> list[Job]:
        return [job for job in self._jobs.values() if not job.finished]

    def named(self, name: str, namespace: str) -> list[Job]:
        """Return the requests of a name; in any namespace when none is given."""
        return [job for job in self._jobs.values() if job.row.name == name and namespace in {"", job.row.namespace}]

    def find(self, name: str) -> Job:
        """Return a request by id, name, ``namespace/name`` or an unambiguous beginning of the id, its word
        left out or not."""
        if name in self._jobs:
            return self._jobs[name]
        jobs = list(self._jobs.values())
        for found in (
            [job for job in jobs if f"{job.row.namespace}/{job.row.name}" == name],
            [job for job in jobs if job.row.name == name],
            [job for job in jobs if begins(job.id, name)],
        ):
            if len(found) == 1:
                return found[0]
            if found:
                shown = ", ".join(f"{job.row.namespace}/{job.row.name} ({job.id})" for job in found[:8])
                raise Conflict(f"{name!r} may be any of {len(found)} requests: {shown}", hint="give the id")
        raise NotFound(f"there is no request {name!r}", hint="`stoker recreate ls` lists those that are known")

    def heirs(self, job: Job) -> frozenset[str]:
        """Return the containers that other requests on the pod have brought about."""
        return frozenset(
            each.row.new_id
            for other in self._jobs.values()
            if other is not job and other.row.pod_id == job.row.pod_id
            for each in other.targets
            if each.final and each.row.new_id and each.row.committed_at is not None
        )

    # ------------------------------------------------------------------------------------------ changes

    def changed(self, job: Job) -> None:
        self._hub.tell(job.id)

    def note(self, job: Job) -> None:
        """Have the request written soon."""
        self._dirty[job.id] = job
        self._changed.set()

    async def write(self, job: Job, row: TargetRow) -> None:
        """Write one target at once; when that fails, soon."""
        try:
            await self._journal.save([job.row], [row])
        except JournalError as error:
            self._blame(error)
            self.note(job)

    async def cancel(self, job: Job) -> None:
        """Write down that the request is cancelled. Raises JournalError: then it is not."""
        await self._journal.save([replace(job.row, cancelled=True)], [])
        job.row = replace(job.row, cancelled=True)

    async def finish(self, job: Job) -> None:
        """Close a request whose containers have all come to their end: first in the journal, then for all to see."""
        now = self._clock.time()
        result, message = _result(job)
        row = replace(job.row, phase="Completed", result=result, message=message, finished_at=now)
        self._dirty.pop(job.id, None)
        try:
            await self._journal.save([row], [each.row for each in job.targets])
        except JournalError as error:
            self._blame(error)
            self.note(job)
        job.row = replace(row, cancelled=job.row.cancelled)
        job.steps.clear()
        self._metrics.completed(row)
        for each in job.targets:
            self._metrics.settled(each.row)
        self.changed(job)
        _report(job)

    def follow(self, job: Job) -> AsyncGenerator[RecreateEvent, None]:
        return self._hub.follow(job.id, lambda: job.status(waiting_for=self._waits_for(job)))

    async def expire(self) -> None:
        """Forget requests that ended long enough ago. Raises JournalError."""
        now = self._clock.time()
        old = [job for job in self._jobs.values() if _expired(job, now)]
        if old:
            await self._journal.forget(job.id for job in old)
        for job in old:
            self._jobs.pop(job.id, None)
            self._dirty.pop(job.id, None)

    # ------------------------------------------------------------------------------------------ writing

    @property
    def problem(self) -> str:
        return "the journal cannot be written" if self._failing else ""

    async def run(self) -> None:
        """Write what is noted until cancelled; what is left then is written by `flush`."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.flush()
            await asyncio.sleep(_PAUSE_WHEN_FAILING if self._failing else _PAUSE)

    async def flush(self) -> None:
        """Write all that is noted; keep it when that fails."""
        dirty, self._dirty = self._dirty, {}
        if not dirty:
            return
        jobs = list(dirty.values())
        try:
            await self._journal.save([job.row for job in jobs], _rows(jobs))
        except JournalError as error:
            self._dirty = {**dirty, **self._dirty}
            self._changed.set()
            self._blame(error)
            return
        if self._failing:
            _log.info("the journal can be written again")
        self._failing = False

    def _blame(self, error: JournalError) -> None:
        if not self._failing:
            _log.error("the journal cannot be written; work goes on, its record waits", why=error.message)
        self._failing = True


def _rows(jobs: Iterable[Job]) -> list[TargetRow]:
    return [each.row for job in jobs for each in job.targets]


def _expired(job: Job, now: float) -> bool:
    finished = job.row.finished_at
    if finished is None or now < finished + job.spec.ttl:
        return False
    return job.clean or now > finished + job.spec.ttl + _DAY  # what it left is still to be removed


def _result(job: Job) -> tuple[RecreateResult, str]:
    good = [each for each in job.targets if each.row.phase == "Succeeded"]
    bad = [each for each in job.targets if each.row.phase != "Succeeded"]
    if not bad:
        return "Succeeded", ""
    names = ", ".join(each.name for each in bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
    message = f"{len(good)} of {len(job.targets)} containers are done; not done: {names}"
    if job.row.cancelled and all(each.row.reason == "Cancelled" for each in bad):
        return "Cancelled", message
    return "Failed", message


def _report(job: Job) -> None:
    row: RecreateRow = job.row
    say = _log.info if row.result != "Failed" else _log.warning
    say(
        "recreated" if row.result == "Succeeded" else "recreate ended",
        request=row.id,
        pod=f"{row.namespace}/{row.pod}",
        result=row.result,
        containers={each.name: each.row.reason for each in job.targets},
    )
