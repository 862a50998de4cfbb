"""The database file: one thread that writes, and what is in it at the start.

Every change is one row with the object as it became; the newest row of an object is the object. Rows that a newer one
has replaced stay as long as the history knows of the change, and go with it. So a write is one insert at the end of one
table, and a restart knows the same history as before.

The database runs in WAL mode with ``synchronous=FULL``: what was committed survives kill -9 and a power cut. All
changes that wait while one commit is under way share the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from stoker_coordinator.errors import AlreadyRunning, StoreFailed

_SCHEMA = 1
_TABLES = """
    CREATE TABLE changes (
        revision INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        gone INTEGER NOT NULL, data BLOB NOT NULL) STRICT;
    CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""
_BATCH = 512
_CACHE_KIB = 4096
_WAL_BYTES = 16 << 20


class Row(Struct, frozen=True):
    """One change as it is written."""

    revision: int
    kind: str
    namespace: str
    name: str
    gone: bool
    data: bytes


class Write(Struct, frozen=True):
    """One thing for the thread to do: rows to add, rows to drop, and how far back the history goes then."""

    row: Row | None = None
    drop: tuple[int, ...] = ()
    floor: int = 0
    epoch: int = 0
    """Writes build on each other. After one of an epoch has failed, no other of it is done."""
    tag: Any = None
    """For whoever is told of the outcome."""


Outcome = tuple[Write, StoreFailed | None]


class Database:
    """The file, and the thread that owns it. Only `submit` and `close` are for other threads."""

    def __init__(self, directory: Path, report: Callable[[Sequence[Outcome]], None]) -> None:
        """*report*: called in the thread, in order, with writes that are durable or have failed."""
        self._report = report
        self.path = directory / "store.db"
        self._directory = directory
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._lock: int | None = None
        self._failed_epoch = -1

    def open(self) -> tuple[int, Iterator[Row]]:
        """Take the directory and open the file; return the history's floor and all rows in order. Blocks.

        AlreadyRunning, StoreFailed. A damaged file is left as it is: what people wished for is in it.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _take(self._directory)
        try:
            self._connection = self._connect()
            floor = self._connection.execute("SELECT value FROM marks WHERE name = 'floor'").fetchone()
            return (floor[0] if floor else 0), self._rows()
        except sqlite3.Error as error:
            self._release()
            raise _failed(self.path, error) from error
        except BaseException:
            self._release()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            self.path.chmod(0o600)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute(f"PRAGMA journal_size_limit={_WAL_BYTES}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > _SCHEMA:
                raise StoreFailed(
                    f"{self.path} was written by a newer version of the coordinator",
                    hint="run that version, or restore a backup from before the upgrade",
                )
            if not version:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={_SCHEMA}; COMMIT;")
            (sound,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if sound != "ok":
                raise sqlite3.DatabaseError(sound)
        except BaseException:
            connection.close()
            raise
        return connection

    def _rows(self) -> Iterator[Row]:
        assert self._connection is not None
        for row in self._connection.execute(
            "SELECT revision, kind, namespace, name, gone, data FROM changes ORDER BY revision"
        ):
            yield Row(row[0], row[1], row[2], row[3], bool(row[4]), row[5])

    def start(self) -> None:
        """Let the thread write."""
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> None:
        """Have *write* done, after all that were submitted before."""
        self._queue.put(write)

    def close(self) -> None:
        """Return when everything submitted is written, and the file is closed. Blocks."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._release()

    def _release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            while len(batch) < _BATCH:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                batch.append(more)
            self._write(batch)
            if last:
                return

    def _write(self, batch: Sequence[Write]) -> None:
        """Do a batch in one transaction, all or nothing."""
        alive = [write for write in batch if write.epoch != self._failed_epoch]
        failure: StoreFailed | None = None
        if alive:
            try:
                self._transaction(alive)
            except (sqlite3.Error, OSError) as error:
                failure = _failed(self.path, error)
                self._failed_epoch = alive[-1].epoch
        lost = StoreFailed("a change before this one could not be written", hint="try again")
        self._report([(write, failure if write.epoch != self._failed_epoch else failure or lost) for write in batch])

    def _transaction(self, writes: Sequence[Write]) -> None:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(
                "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (row.revision, row.kind, row.namespace, row.name, int(row.gone), row.data)
                    for write in writes
                    if (row := write.row) is not None
                ],
            )
            drop = [(revision,) for write in writes for revision in write.drop]
            if drop:
                connection.executemany("DELETE FROM changes WHERE revision = ?", drop)
                floor = max(write.floor for write in writes)
                connection.execute("INSERT OR REPLACE INTO marks VALUES ('floor', ?)", (floor,))
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


def copy(directory: Path, target: Path) -> None:
    """Write a copy of the store in *directory* to *target*, whether it is in use or not. Blocks; StoreFailed."""
    path = directory / "store.db"
    if not path.exists():
        raise StoreFailed(f"there is no store in {directory}")
    if target.exists():
        raise StoreFailed(f"{target} exists already")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with contextlib.closing(sqlite3.connect(target)) as destination:
                source.backup(destination)
    except (sqlite3.Error, OSError) as error:
        raise StoreFailed(f"the store cannot be copied to {target}: {error}") from error


def _take(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunning(
            f"another coordinator keeps its objects in {directory}", hint="one coordinator for each state directory"
        ) from None
    return descriptor


def _failed(path: Path, error: BaseException) -> StoreFailed:
    hint = None
    if isinstance(error, sqlite3.OperationalError):
        hint = "free some space" if "full" in str(error) else f"look at {path.parent} and its file system"
    elif isinstance(error, sqlite3.DatabaseError):
        hint = "the file is damaged: move it away and restore a backup (stoker-coordinator backup makes them)"
    return StoreFailed(f"the store {path} failed: {error}", hint=hint)
