"""The book of jobs: their state, who is told of it, and what of it is written down. The scheduler reports to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

import structlog

from stoker.objects import images as api
from stokerd.errors import InvalidInput, NotFound, StokerError
from stokerd.ids import begins
from stokerd.images import views
from stokerd.images.clock import Clock
from stokerd.images.failures import Failure
from stokerd.images.feed import Hub
from stokerd.images.jobs import Item, Job, Pull
from stokerd.images.ledger import Ledger
from stokerd.images.metrics import ImageMetrics
from stokerd.images.progress import PullProgress, advance, complete
from stokerd.images.scheduler import Outcome, Warm
from stokerd.journal.rows import AttemptResult, AttemptRow, ItemRow, JobRow
from stokerd.registry.references import Reference, parse_reference

_log = structlog.get_logger("images")


class Pinner(Protocol):
    """What is needed of `tender.Tender`."""

    async def pin(self, reference: Reference, seconds: float) -> api.PinStatus: ...


class JobBook:
    """All jobs, and the `scheduler.Listener` that keeps them true."""

    def __init__(self, ledger: Ledger, hub: Hub, clock: Clock, metrics: ImageMetrics, pinner: Pinner) -> None:
        self._ledger = ledger
        self._hub = hub
        self._clock = clock
        self._metrics = metrics
        self._pinner = pinner
        self._jobs: dict[str, Job] = {}

    # ------------------------------------------------------------------------------------------ jobs

    def restore(self, row: JobRow, items: Iterable[ItemRow]) -> list[Item]:
        """Take a job up from the journal; return its items that are to be done."""
        job = self._jobs[row.id] = Job(row)
        unfinished = []
        for item_row in items:
            item = job.add(item_row, parse_reference(item_row.reference))
            if item_row.phase == "Succeeded":
                item.progress = complete(item.progress)
            if row.state == "Active" and not item.finished:
                unfinished.append(item)
        if row.state != "Active":
            job.done.set()
            return []
        for item in unfinished:
            if item.row.phase == "Pulling":
                self._interrupted(item)
        self.settle(job)
        return unfinished

    def _interrupted(self, item: Item) -> None:
        item.attempt_since = item.row.started_at or self._clock.time()
        self._note(item, "Interrupted", "Restarted", "stokerd was stopped during the pull; it goes on where it was")
        item.job.change(item, phase="Waiting", reason="Resuming", message="stokerd was restarted")
        self._ledger.note_item(item)

    async def accept(self, job: Job) -> None:
        """Write a new job down; it exists once this has returned. Raises JournalError."""
        await self._ledger.accept(job)
        self._jobs[job.row.id] = job

    def find(self, job_id: str) -> Job:
        """Return a job by its id or an unambiguous beginning of it, the word before the hyphen left out or not."""
        job = self._jobs.get(job_id)
        if job is not None:
            return job
        matching = [job for key, job in self._jobs.items() if begins(key, job_id)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            names = ", ".join(sorted(job.row.id for job in matching)[:5])
            raise InvalidInput(f"{job_id!r} is the beginning of {len(matching)} jobs: {names}")
        raise NotFound(f"there is no job {job_id!r}", hint="stoker image jobs lists them")

    def newest_first(self) -> list[Job]:
        return sorted(self._jobs.values(), key=lambda job: job.row.created_at, reverse=True)

    def finished_before(self, moment: float) -> list[Job]:
        jobs = self._jobs.values()
        return [job for job in jobs if job.row.finished_at is not None and job.row.finished_at < moment]

    def forget(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._ledger.forget(job)
            self._jobs.pop(job.row.id, None)

    def follow(self, job: Job) -> AsyncGenerator[api.Event, None]:
        """Yield the job, then its items as they change, then the job as it ended."""
        return self._hub.follow(job.row.id, lambda: api.JobEvent(job=views.job(job)), job.done.is_set)

    def settle(self, job: Job) -> None:
        """Close a job with its last item."""
        if job.unfinished or job.done.is_set():
            return
        job.close(self._clock.time())
        self._ledger.note_job(job)
        self._hub.end_job(job.row.id, lambda: api.JobEvent(job=views.job(job)))
        counts = {phase.lower(): count for phase, count in job.counts.items() if count}
        _log.info("job ended", job=job.row.id, state=job.row.state, **counts)

    def cancelled(self, item: Item) -> None:
        """An item was taken out of the queue on request."""
        now = self._clock.time()
        self._note(item, "Cancelled", "Cancelled")
        item.job.change(item, phase="Cancelled", reason="Cancelled", message="cancelled on request", finished_at=now)
        self._changed(item)

    # ------------------------------------------------------------------------------------------ scheduler.Listener

    def started(self, item: Item, pull: Pull) -> None:
        now = self._clock.time()
        item.attempt_since = now
        item.job.change(
            item,
            phase="Pulling",
            reason="Pulling",
            message="",
            hint="",
            attempt=item.row.attempt + 1,
            started_at=item.row.started_at or now,
        )
        item.progress = advance(item.progress, pull.progress)
        self._changed(item)

    def progressed(self, item: Item, progress: PullProgress) -> None:
        item.progress = advance(item.progress, progress)
        self._tell(item)

    def waits(self, item: Item, failure: Failure, delay: float) -> None:
        _log.info("attempt failed; it will be tried again", image=item.key, reason=failure.reason, why=failure.message)
        self._note(item, "Failed", failure.reason, failure.message)
        item.next_attempt_at = self._clock.time() + delay
        item.job.change(item, phase="Waiting", reason=failure.reason, message=failure.message, hint=failure.hint)
        self._changed(item)

    async def warmed(self, item: Item) -> None:
        """The image is there: pin it, when its job asks for that, before the item counts as done."""
        seconds = item.job.row.pin_seconds
        if seconds is None:
            return
        try:
            await self._pinner.pin(item.reference, seconds)
        except StokerError as error:
            _log.warning("image is warm but could not be pinned", image=item.key, why=error.message)
            item.remark = f"warm, but not pinned: {error.message}"

    def succeeded(self, item: Item, outcome: Warm) -> None:
        pulled = outcome.pulled
        reason = "Pulled" if pulled else "AlreadyPresent"
        fetched = pulled.fetched if pulled else 0
        self._note(item, "Succeeded", reason, digest=outcome.present.digest, pulled_bytes=fetched)
        message = "; ".join(part for part in (item.remark, pulled.remark if pulled else "") if part)
        if outcome.previous_digest:
            moved = f"the tag moved from {outcome.previous_digest} to {outcome.present.digest}"
            message = f"{moved}; {message}" if message else moved
        item.progress = advance(item.progress, pulled.progress) if pulled else complete(item.progress)
        item.job.change(
            item,
            phase="Succeeded",
            reason="Moved" if outcome.previous_digest else reason,
            message=message,
            hint="",
            digest=outcome.present.digest,
            previous_digest=outcome.previous_digest,
            pulled_bytes=fetched,
            finished_at=self._clock.time(),
        )
        if pulled:
            _log.info("image is warm", image=item.key, digest=outcome.present.digest, fetched=pulled.fetched)
        self._changed(item)
        self.settle(item.job)

    def failed(self, item: Item, failure: Failure) -> None:
        _log.warning("image could not be warmed", image=item.key, reason=failure.reason, why=failure.message)
        self._note(item, "Failed", failure.reason, failure.message)
        item.job.change(
            item,
            phase="Failed",
            reason=failure.reason,
            message=failure.message,
            hint=failure.hint,
            finished_at=self._clock.time(),
        )
        self._changed(item)
        self.settle(item.job)

    def attempted(self, started: float, outcome: Outcome | None) -> None:
        self._metrics.attempted(outcome, self._clock.time() - started)

    def _note(
        self,
        item: Item,
        result: AttemptResult,
        reason: str,
        message: str = "",
        *,
        digest: str = "",
        pulled_bytes: int = 0,
    ) -> None:
        """Write the attempt into the history that ends for *item* here; nothing when none was made for it."""
        started, item.attempt_since = item.attempt_since, None
        if started is None:
            return
        row, now = item.row, self._clock.time()
        self._ledger.note_attempt(
            AttemptRow(row.reference, row.job, row.attempt, started, now, result, reason, message, digest, pulled_bytes)
        )

    # ------------------------------------------------------------------------------------------ telling

    def _changed(self, item: Item) -> None:
        self._ledger.note_item(item)
        self._tell(item)

    def _tell(self, item: Item) -> None:
        job = item.job
        self._hub.tell_job(
            job.row.id,
            item.row.position,
            lambda: api.ItemEvent(job=job.row.id, item=views.item(item), counts=views.counts(job)),
        )
