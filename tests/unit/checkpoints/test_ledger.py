"""What is in the journal is the newest that is known, whatever failed and came late."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from stoker.objects.checkpoints import CloneInfo, Operation
from stokerd.checkpoints import ledger as ledgers
from stokerd.checkpoints import operations
from stokerd.checkpoints.ledger import Ledger
from stokerd.errors import JournalError
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.journal.rows import OperationRow

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

ONE = CloneInfo(id="clone-1", checkpoint="cp-1", phase="Running")


class Journal:
    """Writes in the order in which it is asked, as the real one does, and answers when it is ``free``."""

    def __init__(self) -> None:
        self.rows: dict[str, OperationRow] = {}
        self.failing = False
        self.asked = 0
        self.free, self.reached = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def save(self, row: OperationRow) -> None:
        if self.failing:
            raise JournalError("no space left")
        self.asked += 1
        self.rows[row.id] = row
        self.reached.set()
        await self.free.wait()

    async def forget(self, ids: list[str]) -> None:
        self.asked += 1
        for each in ids:
            self.rows.pop(each, None)
        self.reached.set()
        await self.free.wait()


def begun() -> Operation:
    made = operations.new("op-1", "Clone", request="", subject="web", now=NOW, desired=2)
    return operations.begun(made, NOW)


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
async def ledger(journal: Journal) -> Ledger:
    """One operation is in it, and what has been reached of it could not be written yet."""
    made = Ledger(cast(CheckpointJournal, journal), lambda: NOW + timedelta(hours=2))
    await made.accept(begun(), "digest")
    journal.failing = True
    await made.record(operations.with_clone(made.get("op-1"), ONE))
    journal.failing = False
    assert made.problem
    journal.reached.clear()
    return made


async def both(journal: Journal, first: asyncio.Task[None], second: asyncio.Task[None]) -> None:
    """Let the journal answer, and both end."""
    journal.free.set()
    await asyncio.gather(first, second)


async def later(journal: Journal) -> None:
    """Wait until the journal is at it, and give others the chance to ask it meanwhile."""
    await journal.reached.wait()
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_late_is_not_written_over_the_end(journal: Journal, ledger: Ledger) -> None:
    end = operations.succeeded(ledger.get("op-1"), NOW)
    journal.free.clear()
    ending = asyncio.create_task(ledger.finish(end))
    await later(journal)
    flushing = asyncio.create_task(ledger.flush())
    await later(journal)
    await both(journal, ending, flushing)
    assert journal.rows["op-1"].finished_at == NOW.timestamp()
    assert ledger.get("op-1") == end
    assert not ledger.problem


async def test_an_end_that_comes_meanwhile_is_written_last(journal: Journal, ledger: Ledger) -> None:
    end = operations.succeeded(ledger.get("op-1"), NOW)
    journal.free.clear()
    flushing = asyncio.create_task(ledger.flush())
    await later(journal)
    ending = asyncio.create_task(ledger.finish(end))
    await later(journal)
    await both(journal, flushing, ending)
    assert journal.rows["op-1"].finished_at == NOW.timestamp()
    assert ledger.get("op-1") == end


async def test_what_was_forgotten_is_not_written_again(journal: Journal, ledger: Ledger) -> None:
    journal.failing = True
    await ledger.finish(operations.succeeded(ledger.get("op-1"), NOW))
    journal.failing = False
    journal.free.clear()
    expiring = asyncio.create_task(ledger.expire(60.0))
    await later(journal)
    flushing = asyncio.create_task(ledger.flush())
    await later(journal)
    await both(journal, expiring, flushing)
    assert journal.rows == {}
    assert ledger.operations == []


@pytest.mark.parametrize("how", ["fails", "is broken off"])
async def test_an_end_is_written_later(
    journal: Journal, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(ledgers, "_RETRY_PAUSE", 0.0)
    end = operations.succeeded(ledger.get("op-1"), NOW)
    journal.failing = how == "fails"
    journal.free.clear()
    ending = asyncio.create_task(ledger.finish(end))
    if how == "is broken off":
        await later(journal)
        ending.cancel()
    await asyncio.wait({ending})
    assert ledger.get("op-1") == end
    journal.failing = False
    journal.rows.clear()
    journal.free.set()
    running = asyncio.create_task(ledger.run())
    async with asyncio.timeout(10):
        while ledger.problem or "op-1" not in journal.rows:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert journal.rows["op-1"].finished_at == NOW.timestamp()
    running.cancel()
    await asyncio.wait({running})
