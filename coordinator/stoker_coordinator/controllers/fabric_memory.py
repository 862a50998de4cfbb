"""What of the fabrics must outlive the coordinator: what was known of each node, names that were given, sources' words.

Without it a coordinator that starts anew would take away the place of every node that is down at that moment. A small
SQLite database of its own, in one thread; losing it costs no more than that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct, field

from stoker_coordinator.hypernodes.model import Memory, NodeFacts, SourceState
from stoker_coordinator.store.one_thread import OneThread

_log = structlog.get_logger("fabrics")
_SCHEMA = "CREATE TABLE IF NOT EXISTS kept (kind TEXT, name TEXT, body BLOB, PRIMARY KEY (kind, name)) WITHOUT ROWID"
_TYPES: Mapping[str, type[Any]] = {"node": NodeFacts, "source": SourceState, "memory": Memory}
_encode = msgspec.msgpack.Encoder().encode


class Kept(Struct):
    """What a start finds."""

    nodes: list[NodeFacts] = field(default_factory=list)
    sources: list[SourceState] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)


class FabricMemory:
    """`open` first. All raise StoreFailed."""

    def __init__(self, path: Path, thread: Executor | None = None) -> None:
        """*thread*: where SQLite is called, one call after another; None: a thread of its own."""
        self._path = path
        self._thread = OneThread(path, "fabrics", thread)
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> Kept:
        """Return what was kept; what cannot be read any more, after an upgrade, counts as not kept."""
        return await self._thread.call(self._open)

    async def close(self) -> None:
        await self._thread.call(self._close)
        self._thread.end()

    async def keep(
        self,
        nodes: Iterable[NodeFacts] = (),
        gone: Iterable[str] = (),
        sources: Iterable[SourceState] = (),
        memory: Memory | None = None,
    ) -> None:
        """Write all of it, or nothing."""
        rows: list[tuple[str, str, Any]] = [("node", facts.name, facts) for facts in nodes]
        rows += [("source", source.name, source) for source in sources]
        rows += [("memory", "", memory)] if memory is not None else []
        names = [("node", name) for name in gone]
        if rows or names:
            await self._thread.call(lambda: self._write(rows, names))

    def _open(self) -> Kept:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        connection = self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(_SCHEMA)
        kept = Kept()
        for kind, name, body in connection.execute("SELECT kind, name, body FROM kept"):
            try:
                found = msgspec.msgpack.decode(body, type=_TYPES[kind])
            except (msgspec.DecodeError, KeyError) as error:
                _log.warning("what was kept of a fabric cannot be read", what=kind, name=name, why=str(error))
                continue
            if kind == "node":
                kept.nodes.append(found)
            elif kind == "source":
                kept.sources.append(found)
            else:
                kept.memory = found
        return kept

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write(self, rows: Iterable[tuple[str, str, Any]], gone: Iterable[tuple[str, str]]) -> None:
        if self._connection is None:
            raise RuntimeError("not open")
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM kept WHERE kind = ? AND name = ?", gone)
            encoded = [(kind, name, _encode(value)) for kind, name, value in rows]
            connection.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", encoded)
