"""What must outlive the coordinator about who may be a node: join tokens, and which certificates hold.

A small SQLite database beside the certificate authority's key, in one thread of its own. It is not in the store of
objects: nobody who may read objects should find anything here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from stoker_coordinator.nodes.tokens import Token, Verdict, judge
from stoker_coordinator.store.one_thread import OneThread

T = TypeVar("T")
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS tokens (
        id TEXT PRIMARY KEY, digest BLOB NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL,
        uses_left INTEGER NOT NULL, node TEXT NOT NULL, revoked INTEGER NOT NULL, note TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS identities (
        node TEXT PRIMARY KEY, epoch INTEGER NOT NULL, revoked INTEGER NOT NULL, token TEXT NOT NULL,
        key BLOB NOT NULL) STRICT, WITHOUT ROWID;
"""


class Ledger:
    """`open` first. Every method is one transaction, durable when it returns. All raise StoreFailed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = OneThread(path, "ledger")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        await self._thread.call(self._open)

    async def close(self) -> None:
        await self._thread.call(self._close)
        self._thread.end()

    async def add(self, token: Token) -> None:
        await self._run(
            lambda db: db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)", structs.astuple(token))
        )

    async def tokens(self) -> list[Token]:
        """Return all tokens, newest first."""
        return await self._run(
            lambda db: [_token(row) for row in db.execute("SELECT * FROM tokens ORDER BY created_at DESC")]
        )

    async def revoke_token(self, identity: str) -> bool:
        """Return whether there was one."""
        return await self._run(
            lambda db: db.execute("UPDATE tokens SET revoked = 1 WHERE id = ?", (identity,)).rowcount > 0
        )

    async def forget_tokens(self, expired_before: float) -> None:
        await self._run(lambda db: db.execute("DELETE FROM tokens WHERE expires_at < ?", (expired_before,)))

    async def join(self, identity: str, secret: str, node: str, key: bytes, now: float) -> Verdict | int:
        """Use a token once for *node*: return the epoch of its new certificate, or why there is none.

        In one transaction, so that a token that is good for one node never serves two. Whoever asks again with the same
        token and the same *key* (a fingerprint) gets the same answer again: the first one may have been lost.
        """

        def work(db: sqlite3.Connection) -> Verdict | int:
            row = db.execute("SELECT * FROM tokens WHERE id = ?", (identity,)).fetchone()
            token = _token(row) if row else None
            held = db.execute("SELECT epoch, revoked, token, key FROM identities WHERE node = ?", (node,)).fetchone()
            if held is not None and (held[1], held[2], held[3]) == (0, identity, key):
                again = token and structs.replace(token, uses_left=1, node=node)
                return judge(again, secret, node, now, joined=True) or int(held[0])
            verdict = judge(token, secret, node, now, joined=held is not None)
            if verdict:
                return verdict
            epoch = (held[0] if held else 0) + 1
            db.execute("UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ?", (identity,))
            db.execute("INSERT OR REPLACE INTO identities VALUES (?, ?, 0, ?, ?)", (node, epoch, identity, key))
            return epoch

        return await self._run(work)

    async def epoch(self, node: str) -> int | None:
        """Return the epoch of the certificates of *node* that hold; None: none does."""
        row = await self._run(
            lambda db: db.execute("SELECT epoch FROM identities WHERE node = ? AND NOT revoked", (node,)).fetchone()
        )
        return int(row[0]) if row else None

    async def revoke_node(self, node: str) -> bool:
        """Let no certificate of *node* hold any more; return whether it had joined."""
        return await self._run(
            lambda db: db.execute("UPDATE identities SET revoked = 1 WHERE node = ?", (node,)).rowcount > 0
        )

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._thread.call(lambda: self._transaction(work))

    def _open(self) -> None:
        self._path.touch(mode=0o600)
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_SCHEMA)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            raise RuntimeError("not open")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return result


def _token(row: tuple[object, ...]) -> Token:
    identity, digest, created_at, expires_at, uses_left, node, revoked, note = row
    return Token(identity, digest, created_at, expires_at, uses_left, node, bool(revoked), note)  # type: ignore[arg-type]
