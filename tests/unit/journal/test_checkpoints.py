from __future__ import annotations

import pytest
from msgspec.structs import replace

from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.journal.database import Database
from stokerd.journal.rows import OperationRow


def row(identity: str, created_at: float = 1.0) -> OperationRow:
    return OperationRow(identity, identity, "digest", created_at, None, '{"id": "x"}')


@pytest.fixture
def book(database: Database) -> CheckpointJournal:
    return CheckpointJournal(database)


async def test_from_the_beginning_to_the_end(book: CheckpointJournal) -> None:
    assert not await book.unfinished()
    first, later = row("op-b"), row("op-a", 2.0)
    await book.save(later)
    await book.save(first)
    assert await book.operations() == [first, later]
    assert await book.unfinished()
    ended = replace(first, finished_at=3.5, operation="{}")
    await book.save(ended)
    await book.save(replace(later, finished_at=4.0))
    assert (await book.operations())[0] == ended
    assert not await book.unfinished()
    await book.forget(["op-a", "nobody"])
    assert await book.operations() == [ended]
