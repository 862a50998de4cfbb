from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import pytest

from stokerd.errors import AlreadyRunning, JournalError
from stokerd.journal import database as module
from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal
from tests.unit.journal.rows import item, job

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


async def opened(directory: Path) -> Database:
    database = Database(directory)
    await database.open()
    return database


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


def adding(name: str) -> Callable[[sqlite3.Connection], None]:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO ratios VALUES (?, 1, 2, 3)", (name,))

    return work


def names(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT compression FROM ratios ORDER BY compression")]


def moved_aside(directory: Path) -> list[Path]:
    return sorted(directory.glob("journal.db.damaged-*"))


def pragma(path: Path, statement: str) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute(statement).fetchone())
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------- opening


async def test_a_new_journal_is_for_its_owner_alone(tmp_path: Path) -> None:
    database = await opened(tmp_path / "var/lib/stoker")
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(database.path.stat().st_mode) == 0o600
    await database.run(adding("x"))
    for beside in database.path.parent.glob("journal.db-*"):
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    await database.close()


async def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    database = await opened(tmp_path)
    assert await database.run(count) == 0
    await database.close()
    assert moved_aside(tmp_path) == []


async def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    for number in range(3):
        database = await opened(tmp_path)
        assert len(await database.run(names)) == number
        await database.run(adding(str(number)))
        await database.close()


async def test_a_journal_that_is_not_open_says_so(tmp_path: Path) -> None:
    database = Database(tmp_path)
    with pytest.raises(JournalError, match="is not open"):
        await database.run(count)
    await database.close()
    with pytest.raises(JournalError, match="is closed"):
        await database.run(count)
    await database.close()


async def test_a_directory_in_place_of_the_journal_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    with pytest.raises(JournalError, match="unable to open"):
        await opened(tmp_path)
    assert (tmp_path / "journal.db").is_dir()


async def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(JournalError, match=r"File exists|Not a directory"):
        await opened(tmp_path / "state")


# ---------------------------------------------------------------------------------------------- migrations

SECOND = "ALTER TABLE pins ADD COLUMN note TEXT NOT NULL DEFAULT 'old'"


async def test_an_older_journal_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await opened(tmp_path)
    await database.run(lambda c: c.execute("INSERT INTO pins VALUES ('app', 'sha256:aa', 1, 1.0, NULL, 0)"))
    await database.close()
    monkeypatch.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, SECOND))
    database = await opened(tmp_path)
    assert await database.run(lambda c: c.execute("SELECT reference, note FROM pins").fetchall()) == [("app", "old")]
    await database.close()
    assert pragma(database.path, "PRAGMA user_version") == f"({len(module._MIGRATIONS)},)"


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await opened(tmp_path)
    await database.run(adding("kept"))
    await database.close()
    first = module._MIGRATIONS
    monkeypatch.setattr(module, "_MIGRATIONS", (*first, f"{SECOND}; INSERT INTO nowhere VALUES (1)"))
    with pytest.raises(JournalError, match="nowhere"):
        await opened(tmp_path)
    assert pragma(database.path, "PRAGMA user_version") == f"({len(first)},)"
    monkeypatch.setattr(module, "_MIGRATIONS", (*first, SECOND))
    database = await opened(tmp_path)
    assert await database.run(names) == ["kept"]
    await database.close()


@pytest.mark.parametrize("version", [len(module._MIGRATIONS) + 1, 99, -1])
async def test_a_newer_journal_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    database = await opened(tmp_path)
    await database.run(adding("kept"))
    await database.close()
    pragma(database.path, f"PRAGMA user_version={version}")
    before = database.path.read_bytes()
    with pytest.raises(JournalError, match="written by a newer stokerd") as caught:
        await opened(tmp_path)
    assert caught.value.hint
    assert database.path.read_bytes() == before
    pragma(database.path, f"PRAGMA user_version={len(module._MIGRATIONS)}")
    database = await opened(tmp_path)  # and the directory is free
    assert await database.run(names) == ["kept"]
    await database.close()


# ---------------------------------------------------------------------------------------------- damage


async def filled(directory: Path) -> Path:
    database = await opened(directory)
    journal = ImageJournal(database)
    await journal.save_jobs([job("a")], [item("a", position) for position in range(2000)])
    await database.close()
    return database.path


def no_database(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 1000)


def cut(path: Path) -> None:
    os.truncate(path, 5000)


def scribbled(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(bytes(content))


def broken_schema(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE TABLE items", b"CREATE SPOON items", 1))


@pytest.mark.parametrize("damage", [no_database, cut, scribbled, broken_schema])
async def test_a_damaged_journal_is_moved_aside_and_kept(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = await filled(tmp_path)
    damage(path)
    before = path.read_bytes()
    database = await opened(tmp_path)
    assert await database.run(count) == 0
    await database.run(adding("new"))
    await database.close()
    (aside,) = moved_aside(tmp_path)
    assert aside.read_bytes() == before
    database = await opened(tmp_path)
    assert await database.run(names) == ["new"]
    await database.close()


async def test_damaged_journals_of_one_moment_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stokerd.journal.database.time.time", lambda: 1_000_000.5)
    for number in range(3):
        (tmp_path / "journal.db").write_bytes(b"damaged %d " % number * 1000)
        await (await opened(tmp_path)).close()
    assert [path.read_bytes()[:9] for path in moved_aside(tmp_path)] == [b"damaged 0", b"damaged 1", b"damaged 2"]


def headless(path: Path) -> None:
    path.write_bytes(b"\xff" * 4096 + path.read_bytes()[4096:])


@pytest.mark.parametrize("damage", [scribbled, headless])
async def test_the_log_of_a_damaged_journal_is_not_played_into_the_new_one(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    path = await filled(source)
    database = await opened(source)
    await database.run(adding("in the log"))
    target.mkdir()
    for name in ("journal.db", "journal.db-wal"):  # as a kill would leave them
        (target / name).write_bytes((source / name).read_bytes())
    await database.close()
    damage(target / path.name)
    database = await opened(target)
    assert await database.run(names) == []
    assert await database.run(count) == 0
    await database.close()
    kept = b"".join(path.read_bytes() for path in moved_aside(target))
    assert b"in the log" in kept


# ---------------------------------------------------------------------------------------------- one process


async def test_a_second_daemon_in_one_process_is_refused(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    second = Database(tmp_path)
    with pytest.raises(AlreadyRunning, match="another stokerd uses the state directory") as caught:
        await second.open()
    assert caught.value.hint
    await second.close()
    await first.run(adding("x"))  # the first does not mind
    with pytest.raises(AlreadyRunning):
        await opened(tmp_path)
    await first.close()
    await (await opened(tmp_path)).close()


HOLDER = """
import asyncio, sys
from pathlib import Path
from stokerd.journal.database import Database

async def main():
    database = Database(Path(sys.argv[1]))
    await database.open()
    print("open", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


async def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, str(tmp_path)), env=ENVIRONMENT, stdin=PIPE, stdout=PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"open\n"
    with pytest.raises(AlreadyRunning):
        await opened(tmp_path)
    holder.kill()
    await holder.communicate()
    await (await opened(tmp_path)).close()


# ---------------------------------------------------------------------------------------------- transactions


async def test_a_transaction_that_fails_is_rolled_back(database: Database) -> None:
    def work(connection: sqlite3.Connection) -> None:
        adding("lost")(connection)
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        await database.run(work)
    with pytest.raises(JournalError, match="no such table"):
        await database.run(lambda c: (adding("lost too")(c), c.execute("SELECT * FROM nowhere")))
    assert await database.run(names) == []
    await database.run(adding("kept"))
    assert await database.run(names) == ["kept"]


async def test_a_caller_that_is_cancelled_leaves_its_transaction_to_finish(database: Database) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        adding("begun")(connection)
        entered.set()
        assert go_on.wait(10)
        adding("finished")(connection)

    running = asyncio.create_task(database.run(slow))
    await asyncio.to_thread(entered.wait, 10)
    queued = asyncio.create_task(database.run(adding("queued")))
    await asyncio.sleep(0)
    for task in (running, queued):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    go_on.set()
    assert await database.run(names) == ["begun", "finished", "queued"]


async def test_closing_waits_for_what_was_asked_before(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        entered.set()
        assert go_on.wait(10)
        adding("slow")(connection)

    work = asyncio.create_task(database.run(slow))
    await asyncio.to_thread(entered.wait, 10)
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go_on.set()
    await asyncio.gather(work, closing)
    database = await opened(tmp_path)
    assert await database.run(names) == ["slow"]
    await database.close()


async def test_many_at_once_take_turns(database: Database) -> None:
    def increment(connection: sqlite3.Connection) -> None:
        value = connection.execute("SELECT coalesce(max(compressed), 0) FROM ratios").fetchone()[0]
        connection.execute("INSERT OR REPLACE INTO ratios VALUES ('x', ?, 0, 0)", (value + 1,))

    await asyncio.gather(*(database.run(increment) for _ in range(200)))
    assert await database.run(lambda c: c.execute("SELECT compressed FROM ratios").fetchone()) == (200,)


async def test_a_journal_that_another_program_has_locked_says_so(database: Database) -> None:
    await database.run(adding("x"))
    await database.run(lambda c: c.execute("PRAGMA busy_timeout=1"))
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="locked") as caught:
        await database.run(adding("y"))
    assert caught.value.hint == "another program has it open"
    other.execute("ROLLBACK")
    other.close()
    await database.run(adding("y"))


# ---------------------------------------------------------------------------------------------- sudden ends

WRITER = """
import asyncio, sys
from pathlib import Path
from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal
from tests.unit.journal.rows import item, job

async def main():
    database = Database(Path(sys.argv[1]))
    await database.open()
    journal = ImageJournal(database)
    for number in range(int(sys.argv[2]), 1_000_000):
        name = f"{number:06d}"
        await journal.save_jobs([job(name, float(number))], [item(name, position) for position in range(20)])
        print(number, flush=True)

asyncio.run(main())
"""


async def test_a_killed_daemon_leaves_exactly_what_was_committed(tmp_path: Path) -> None:
    chance = random.Random(20)
    saved = told = 0
    for _ in range(4):
        writer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITER, str(tmp_path), str(saved)), env=ENVIRONMENT, stdout=PIPE
        )
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            told = int(await writer.stdout.readline())
        writer.kill()
        rest, _ = await writer.communicate()
        told = max([told, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n"))])
        database = await opened(tmp_path)
        jobs = await ImageJournal(database).jobs()
        await database.close()
        assert [row.id for row, _ in jobs] == [f"{number:06d}" for number in range(len(jobs))]
        assert all([entry.position for entry in items] == list(range(20)) for _, items in jobs)
        assert told + 1 <= len(jobs) <= told + 2  # what it told, and at most the one that it had no time to tell
        saved = len(jobs)


FULL = """
import asyncio, os, sqlite3, sys
from pathlib import Path
from stokerd.errors import JournalError
from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal
from tests.unit.journal.rows import item, job

async def main():
    mount = Path(sys.argv[1])
    ballast = mount / "ballast"
    ballast.write_bytes(bytes(600_000))
    database = Database(mount / "state")
    await database.open()
    journal = ImageJournal(database)
    saved = 0
    while True:
        name = f"{saved:06d}"
        try:
            await journal.save_jobs([job(name, float(saved))], [item(name, position) for position in range(50)])
        except JournalError as error:
            assert "full" in str(error), error
            assert error.hint == "is its file system full or read-only?", error.hint
            break
        saved += 1
        assert saved < 10_000
    assert saved > 5, saved
    assert len(await journal.jobs()) == saved  # it can still be read
    other = Database(mount / "other")
    pins = [(str(number),) for number in range(50_000)]
    try:
        await other.open()
        await other.run(lambda c: c.executemany("INSERT INTO pins VALUES (?, 'x', 1, 1, 1, 1)", pins))
    except JournalError:
        pass
    else:
        raise AssertionError("there was room")
    await other.close()
    ballast.unlink()
    await journal.save_jobs([job("zz", 1e9)], [item("zz", position) for position in range(50)])  # and written again
    await database.close()
    await database.close()
    database = Database(mount / "state")
    await database.open()
    jobs = await ImageJournal(database).jobs()
    assert [row.id for row, _ in jobs] == [f"{number:06d}" for number in range(saved)] + ["zz"]
    assert all(len(items) == 50 for _, items in jobs)
    await database.close()
    os.system(f"mount -o remount,ro {mount}")
    try:
        await Database(mount / "state").open()
    except JournalError as error:
        assert "ead-only" in str(error), error
    else:
        raise AssertionError("it could be written to")
    print("well")

asyncio.run(main())
"""


def test_a_full_and_a_read_only_file_system(tmp_path: Path) -> None:
    """A file system of two MiB, in a mount namespace of its own, so that nothing is left behind."""
    script = 'mount -t tmpfs -o size=2m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", tmp_path, sys.executable, FULL],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
