"""Writing down what happens to jobs, in batches, and without letting a full disk stop the work.

Accepting a job is written before it is answered. Everything after that can be found out again from containerd, so it is
written soon, not at once, and kept in memory while the journal cannot be written.
"""

from __future__ import annotations

import asyncio

import structlog

from stokerd.errors import JournalError
from stokerd.images.jobs import Item, Job
from stokerd.journal.images import ImageJournal
from stokerd.journal.rows import AttemptRow

_log = structlog.get_logger("images")
_PAUSE = 0.2
_PAUSE_WHEN_FAILING = 5.0


class Ledger:
    """What of the jobs' state is not yet in the journal."""

    def __init__(self, journal: ImageJournal, *, history_limit: int) -> None:
        self._journal = journal
        self._history_limit = history_limit
        self._jobs: dict[str, Job] = {}
        self._items: dict[tuple[str, int], Item] = {}
        self._attempts: list[AttemptRow] = []
        self._changed = asyncio.Event()
        self._failing = False
        self._writing = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()

    def apply(self, *, history_limit: int) -> None:
        self._history_limit = history_limit

    async def accept(self, job: Job) -> None:
        """Write a new job whole. Raises JournalError: then it was not accepted."""
        await self._journal.save_jobs([job.row], [item.row for item in job.items])

    def note_item(self, item: Item) -> None:
        self._items[item.row.job, item.row.position] = item
        self._changed.set()

    def note_job(self, job: Job) -> None:
        self._jobs[job.row.id] = job
        self._changed.set()

    def note_attempt(self, row: AttemptRow) -> None:
        self._attempts.append(row)
        del self._attempts[: -self._history_limit]
        self._changed.set()

    def forget(self, job: Job) -> None:
        """Drop what is noted of a job that is being deleted."""
        self._jobs.pop(job.row.id, None)
        for item in job.items:
            self._items.pop((item.row.job, item.row.position), None)

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
        """Write all that is noted; keep it when that fails. A caller that is cancelled cuts nothing in two."""
        task = asyncio.create_task(self._flush(), name="images: flush")
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        await asyncio.shield(task)

    async def _flush(self) -> None:
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        jobs, items, attempts = self._jobs, self._items, self._attempts
        self._jobs, self._items, self._attempts = {}, {}, []
        try:
            if jobs or items:
                await self._journal.save_jobs([job.row for job in jobs.values()], [item.row for item in items.values()])
            while attempts:
                await self._journal.record_attempt(attempts[0], limit=self._history_limit)
                attempts.pop(0)
        except JournalError as error:
            self._jobs, self._items = {**jobs, **self._jobs}, {**items, **self._items}
            self._attempts[:0] = attempts
            self._changed.set()
            if not self._failing:
                _log.error("the journal cannot be written; work goes on, its record waits", why=error.message)
            self._failing = True
            return
        if self._failing:
            _log.info("the journal can be written again")
        self._failing = False
