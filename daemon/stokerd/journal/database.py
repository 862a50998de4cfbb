"""One SQLite database, one worker thread, one transaction at a time.

The database runs in WAL mode with ``synchronous=NORMAL``: a kill -9 of the daemon loses nothing that was committed, a
power cut may lose the last transactions but never the database; reconciliation against containerd covers the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import structlog

from stokerd.errors import AlreadyRunning, JournalError

T = TypeVar("T")
_log = structlog.get_logger("journal")

_MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, policy TEXT NOT NULL, priority INTEGER NOT NULL,
        attempts INTEGER NOT NULL, timeout REAL, pin_seconds REAL, state TEXT NOT NULL, created_at REAL NOT NULL,
        finished_at REAL, had_auths INTEGER NOT NULL) STRICT;
    CREATE TABLE items (
        job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, position INTEGER NOT NULL, image TEXT NOT NULL,
        reference TEXT NOT NULL, phase TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL, hint TEXT NOT NULL,
        attempt INTEGER NOT NULL, digest TEXT NOT NULL, previous_digest TEXT NOT NULL, pulled_bytes INTEGER NOT NULL,
        started_at REAL, finished_at REAL, PRIMARY KEY (job, position)) STRICT, WITHOUT ROWID;
    CREATE TABLE pins (
        reference TEXT PRIMARY KEY, digest TEXT NOT NULL, size INTEGER NOT NULL, created_at REAL NOT NULL,
        expires_at REAL, releasing INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE keeps (
        reference TEXT PRIMARY KEY, policy TEXT NOT NULL, priority INTEGER NOT NULL, created_at REAL NOT NULL,
        rewarmed INTEGER NOT NULL, last_rewarm_at REAL) STRICT, WITHOUT ROWID;
    CREATE TABLE attempts (
        id INTEGER PRIMARY KEY, reference TEXT NOT NULL, job TEXT NOT NULL, attempt INTEGER NOT NULL,
        started_at REAL NOT NULL, finished_at REAL NOT NULL, result TEXT NOT NULL, reason TEXT NOT NULL,
        message TEXT NOT NULL, digest TEXT NOT NULL, pulled_bytes INTEGER NOT NULL) STRICT;
    CREATE INDEX attempts_by_reference ON attempts (reference, id);
    CREATE TABLE layers (
        digest TEXT PRIMARY KEY, compression TEXT NOT NULL, compressed INTEGER NOT NULL, unpacked INTEGER NOT NULL,
        inodes INTEGER NOT NULL, seen INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE ratios (
        compression TEXT PRIMARY KEY, compressed INTEGER NOT NULL, unpacked INTEGER NOT NULL, inodes INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE recreates (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, pod_id TEXT NOT NULL,
        pod_uid TEXT NOT NULL, owner TEXT NOT NULL, spec TEXT NOT NULL, digest TEXT NOT NULL, created_at REAL NOT NULL,
        deadline_at REAL NOT NULL, phase TEXT NOT NULL, result TEXT NOT NULL, message TEXT NOT NULL,
        cancelled INTEGER NOT NULL, started_at REAL, finished_at REAL) STRICT;
    CREATE TABLE recreate_targets (
        request TEXT NOT NULL REFERENCES recreates(id) ON DELETE CASCADE, position INTEGER NOT NULL, name TEXT NOT NULL,
        old_id TEXT NOT NULL, old_attempt INTEGER NOT NULL, phase TEXT NOT NULL, reason TEXT NOT NULL,
        message TEXT NOT NULL, hint TEXT NOT NULL, forced INTEGER NOT NULL, committed_at REAL, killed INTEGER NOT NULL,
        stopped_at REAL, new_id TEXT NOT NULL, new_attempt INTEGER NOT NULL, running_at REAL, verdict TEXT NOT NULL,
        rolled_back INTEGER NOT NULL, clean INTEGER NOT NULL, started_at REAL, finished_at REAL,
        PRIMARY KEY (request, position)) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE operations (
        id TEXT PRIMARY KEY, request TEXT NOT NULL, digest TEXT NOT NULL, created_at REAL NOT NULL, finished_at REAL,
        operation TEXT NOT NULL) STRICT;
    """,
    """
    CREATE TABLE wishes (
        uid TEXT NOT NULL, generation INTEGER NOT NULL, kind TEXT NOT NULL, local TEXT NOT NULL,
        created_at REAL NOT NULL, phase TEXT NOT NULL, result BLOB NOT NULL, acknowledged INTEGER NOT NULL,
        PRIMARY KEY (uid, generation)) STRICT, WITHOUT ROWID;
    """,
)


class Database:
    """The daemon's database in a state directory that belongs to this process alone while it is open."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "journal.db"
        self._directory = state_dir
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._connection: sqlite3.Connection | None = None
        self._lock_fd: int | None = None
        self._closed = False

    async def open(self) -> None:
        """Take the directory, open the database and bring its schema up to date.

        A damaged database is moved aside, never deleted. Raises AlreadyRunning and JournalError; the directory is free
        again then.
        """
        await self._in_thread(self._open)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run *work* in one transaction on the database's thread; it is rolled back when *work* raises.

        A caller that is cancelled leaves the transaction to finish: it is never cut in two.
        """
        return await self._in_thread(lambda: self._transaction(work))

    async def close(self) -> None:
        """Return when everything that was asked for before is written. May be called again."""
        if not self._closed:
            self._closed = True
            await self._in_thread(self._close)
            self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            # Shielded, since cancelling the wait would also drop work that is still in the queue.
            return await asyncio.shield(asyncio.wrap_future(self._thread.submit(work)))
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} failed: {error}", hint=_hint(error)) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise JournalError(f"the journal {self.path} cannot hold this: {error}") from error
        except OSError as error:
            raise JournalError(f"the journal {self.path} failed: {error.strerror or error}") from error
        except RuntimeError as error:
            if not self._closed:
                raise
            raise JournalError(f"the journal {self.path} is closed") from error

    def _open(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = self._lock()
        try:
            self._connection = self._connect_or_move_aside()
        except BaseException:
            self._close()
            raise

    def _connect_or_move_aside(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:
            raise  # a full disk, a wrong mode: the database is not to blame
        except sqlite3.DatabaseError as error:
            aside = _unused(self.path.with_name(f"{self.path.name}.damaged-{int(time.time())}"))
            _log.error(
                "journal is damaged; starting a new one", path=str(self.path), moved_to=str(aside), why=str(error)
            )
            # The log first: beside a new database it would be played into that.
            for suffix in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
            return self._connect()

    def _lock(self) -> int:
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunning(
                f"another stokerd uses the state directory {self._directory}",
                hint="stop it first, or give this one its own daemon.state_dir",
            ) from None
        return descriptor

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            self.path.chmod(0o600)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA foreign_keys=ON")
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
            _migrate(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        if connection is None:
            raise JournalError(f"the journal {self.path} is not open")
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _hint(error: sqlite3.Error) -> str | None:
    if "locked" in str(error):
        return "another program has it open"
    return "is its file system full or read-only?" if isinstance(error, sqlite3.OperationalError) else None


def _unused(path: Path) -> Path:
    """Return *path*, or the first of *path*.1, *path*.2 and so on that is not there."""
    candidates = (path.with_name(f"{path.name}.{number}") if number else path for number in itertools.count())
    return next(candidate for candidate in candidates if not candidate.exists())


def _migrate(connection: sqlite3.Connection, name: str) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not 0 <= version <= len(_MIGRATIONS):
        raise JournalError(
            f"{name} was written by a newer stokerd (schema {version}, this one knows {len(_MIGRATIONS)})",
            hint="install the newer version again, or start with an empty daemon.state_dir",
        )
    for number, script in enumerate(_MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN; {script}; PRAGMA user_version={number}; COMMIT;")
