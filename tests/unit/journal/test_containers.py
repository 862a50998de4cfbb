from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from stokerd.errors import JournalError
from stokerd.journal.containers import ContainerJournal
from stokerd.journal.database import Database
from stokerd.journal.rows import RecreateRow, TargetRow


def request(identity: str, created_at: float = 1.0) -> RecreateRow:
    return RecreateRow(
        identity, identity, "shop", "web", "pod-id", "uid", "other", "{}", "digest", created_at, created_at + 600
    )


def target(identity: str, position: int) -> TargetRow:
    return TargetRow(identity, position, f"c{position}", "old", 3)


@pytest.fixture
def book(database: Database) -> ContainerJournal:
    return ContainerJournal(database)


async def test_what_is_saved_is_there(book: ContainerJournal) -> None:
    later, first = request("a", 2.0), request("b", 1.0)
    targets = [
        target("a", 0),
        replace(target("a", 1), committed_at=5.5, killed=True, verdict="it fell", rolled_back=True, clean=True),
    ]
    await book.save([later, first], [*targets, target("b", 0)])
    assert await book.requests() == [(first, [target("b", 0)]), (later, targets)]


async def test_changes_replace_and_keep_the_rest(book: ContainerJournal) -> None:
    await book.save([request("a")], [target("a", 0), target("a", 1)])
    done = replace(request("a"), phase="Completed", result="Failed", cancelled=True, finished_at=9.0)
    await book.save([done], [replace(target("a", 1), phase="Failed", reason="Skipped")])
    ((row, targets),) = await book.requests()
    assert row == done
    assert [each.reason for each in targets] == ["", "Skipped"]


async def test_all_or_none(book: ContainerJournal) -> None:
    with pytest.raises(JournalError):
        await book.save([request("a")], [target("a", 0), target("nobody", 0)])
    assert await book.requests() == []


async def test_forgetting_takes_the_targets_too(book: ContainerJournal, database: Database) -> None:
    await book.save([request("a"), request("b", 2.0)], [target("a", 0), target("b", 0)])
    await book.forget(["a", "nobody"])
    assert [row.id for row, _ in await book.requests()] == ["b"]
    assert await database.run(count) == 1


def count(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT count(*) FROM recreate_targets").fetchone()[0]
    return found


async def test_it_outlives_the_daemon(tmp_path: Path) -> None:
    for expected in (0, 1):
        database = Database(tmp_path)
        await database.open()
        book = ContainerJournal(database)
        assert len(await book.requests()) == expected
        await book.save([request("a")], [target("a", 0)])
        await database.close()
