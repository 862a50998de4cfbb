from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stokerd.errors import JournalError
from stokerd.images.jobs import Item, Job
from stokerd.images.ledger import Ledger
from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal
from stokerd.journal.rows import AttemptRow, ItemRow, JobRow
from stokerd.registry.references import parse_reference
from tests.unit.images.virtual import Inline, at_every_step, virtual, virtual_loop

LIMIT = 50


class Books:
    """A ledger over a real journal whose file system can run full."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.journal = ImageJournal(database)
        self.ledger = Ledger(self.journal, history_limit=LIMIT)

    def full(self, full: bool) -> None:
        assert self.database._connection is not None
        self.database._connection.execute(f"PRAGMA query_only={int(full)}")

    async def job(self, count: int = 3) -> Job:
        job = Job(JobRow(f"job-{virtual_loop().steps}", "", "IfNotPresent", 0, 3, None, None, "Active", 1.0))
        for position in range(count):
            reference = parse_reference(f"image-{position}")
            job.add(ItemRow(job.row.id, position, str(reference), str(reference)), reference)
        await self.ledger.accept(job)
        return job

    def end(self, job: Job) -> None:
        for item in job.items:
            job.change(item, phase="Succeeded", reason="Pulled")
            self.ledger.note_item(item)
            self.ledger.note_attempt(attempt(item))
        job.close(2.0)
        self.ledger.note_job(job)

    async def history(self) -> list[str]:
        return [row.message for row in reversed(await self.journal.attempts(None, limit=1000))]


def attempt(item: Item, message: str = "") -> AttemptRow:
    row = item.row
    return AttemptRow(row.reference, row.job, 1, 1.0, 2.0, "Succeeded", "Pulled", message or row.reference, "", 0)


@asynccontextmanager
async def books(directory: Path) -> AsyncIterator[Books]:
    database = Database(directory)
    database._thread = Inline()  # type: ignore[assignment]
    await database.open()
    try:
        yield Books(database)
    finally:
        await database.close()


@asynccontextmanager
async def running(ledger: Ledger) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(ledger.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


@virtual
async def test_what_is_noted_is_written_soon(tmp_path: Path) -> None:
    async with books(tmp_path) as desk, running(desk.ledger):
        job = await desk.job()
        assert [row.state for row, _ in await desk.journal.jobs()] == ["Active"]
        desk.end(job)
        await asyncio.sleep(1)
        ((row, items),) = await desk.journal.jobs()
        assert row.state == "Succeeded"
        assert [item.phase for item in items] == ["Succeeded"] * 3
        assert await desk.history() == [item.row.reference for item in job.items]
        assert desk.ledger.problem == ""


@virtual
async def test_a_job_that_cannot_be_written_is_not_accepted(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        desk.full(True)
        with pytest.raises(JournalError):
            await desk.job()
        desk.full(False)
        assert await desk.journal.jobs() == []


@virtual
async def test_while_the_disk_is_full_the_record_waits_and_the_newest_state_is_written_then(tmp_path: Path) -> None:
    async with books(tmp_path) as desk, running(desk.ledger):
        job = await desk.job()
        desk.full(True)
        item = job.items[0]
        job.change(item, phase="Pulling")
        desk.ledger.note_item(item)
        desk.ledger.note_attempt(attempt(item, "first"))
        await asyncio.sleep(20)
        assert desk.ledger.problem
        desk.ledger.note_attempt(attempt(item, "second"))
        desk.end(job)
        await asyncio.sleep(20)
        desk.full(False)
        await asyncio.sleep(20)
        assert desk.ledger.problem == ""
        ((row, items),) = await desk.journal.jobs()
        assert (row.state, {item.phase for item in items}) == ("Succeeded", {"Succeeded"})
        assert (await desk.history())[:2] == ["first", "second"]
        assert len(await desk.history()) == 5


@virtual
async def test_a_database_that_cannot_grow_takes_all_when_it_can(tmp_path: Path) -> None:
    async with books(tmp_path) as desk, running(desk.ledger):
        job = await desk.job()
        connection = desk.database._connection
        assert connection is not None
        connection.execute("PRAGMA max_page_count=1")  # no more than there are
        for number in range(LIMIT):
            desk.ledger.note_attempt(attempt(job.items[0], f"{number} {'x' * 5000}"))
        await asyncio.sleep(20)
        assert desk.ledger.problem
        connection.execute("PRAGMA max_page_count=1000000")
        await asyncio.sleep(20)
        assert desk.ledger.problem == ""
        assert [line.split()[0] for line in await desk.history()] == [str(number) for number in range(LIMIT)]


@virtual
async def test_a_full_disk_is_not_asked_all_the_time(tmp_path: Path) -> None:
    async with books(tmp_path) as desk, running(desk.ledger):
        job = await desk.job()
        desk.full(True)
        desk.end(job)
        before = virtual_loop().steps
        await asyncio.sleep(600)
        assert virtual_loop().steps - before < 120 * 12


@virtual
async def test_the_history_that_waits_keeps_the_newest(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        job = await desk.job(1)
        for number in range(3 * LIMIT):
            desk.ledger.note_attempt(attempt(job.items[0], str(number)))
        assert len(desk.ledger._attempts) == LIMIT
        await desk.ledger.flush()
        assert await desk.history() == [str(number) for number in range(2 * LIMIT, 3 * LIMIT)]


@virtual
async def test_what_is_noted_of_a_job_that_goes_is_dropped(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        job = await desk.job()
        desk.end(job)
        await desk.journal.forget_jobs([job.row.id])
        desk.ledger.forget(job)
        await desk.ledger.flush()
        assert await desk.journal.jobs() == []
        assert desk.ledger.problem == ""
        assert len(await desk.history()) == 3  # the history stays


@pytest.mark.parametrize("flushes", [1, 3])
def test_stopped_at_any_step_all_is_written_once(tmp_path: Path, flushes: int) -> None:
    """The end of the daemon cancels the writing; what is left, and what was under way, is written last."""

    async def stopped(step: int) -> bool:
        async with books(tmp_path / str(step)) as desk:
            job = await desk.job()
            desk.end(job)
            task = asyncio.create_task(desk.ledger.run())
            others = [asyncio.create_task(desk.ledger.flush()) for _ in range(flushes - 1)]
            virtual_loop().at_step(step, task.cancel)
            await asyncio.wait({task}, timeout=1)
            disturbed = task.done()
            task.cancel()
            await asyncio.wait({task, *others})
            await desk.ledger.flush()
            ((row, items),) = await desk.journal.jobs()
            assert (row.state, {item.phase for item in items}) == ("Succeeded", {"Succeeded"})
            assert await desk.history() == [item.row.reference for item in job.items]
            return disturbed

    at_every_step(stopped)


@virtual
async def test_a_reader_of_the_history_who_goes_away_takes_nothing_along(tmp_path: Path) -> None:
    async with books(tmp_path) as desk:
        job = await desk.job()
        desk.end(job)
        reader = asyncio.create_task(desk.ledger.flush())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait({reader})
        await desk.ledger.flush()
        assert len(await desk.history()) == 3
