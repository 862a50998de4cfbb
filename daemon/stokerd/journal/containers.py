"""The journal's tables about containers that are recreated in place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec.structs import astuple, fields

from stokerd.journal.database import Database
from stokerd.journal.rows import RecreateRow, TargetRow

Row = TypeVar("Row", RecreateRow, TargetRow)

_TABLES: dict[type[Any], tuple[str, tuple[str, ...]]] = {
    RecreateRow: ("recreates", ("id",)),
    TargetRow: ("recreate_targets", ("request", "position")),
}
_COLUMNS = {kind: tuple(entry.name for entry in fields(kind)) for kind in _TABLES}
_BOOLEANS = {kind: [n for n, entry in enumerate(fields(kind)) if entry.type is bool] for kind in _TABLES}
"""Where the columns are that SQLite keeps as numbers."""


def _upsert(kind: type[Any]) -> str:
    """A real upsert: REPLACE would delete the request first, and with it its targets."""
    table, key = _TABLES[kind]
    names = _COLUMNS[kind]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
    )


def _select(connection: sqlite3.Connection, kind: type[Row], order: str) -> list[Row]:
    rows = []
    query = f"SELECT {', '.join(_COLUMNS[kind])} FROM {_TABLES[kind][0]} ORDER BY {order}"  # noqa: S608
    for found in connection.execute(query):
        row = list(found)
        for index in _BOOLEANS[kind]:
            row[index] = bool(row[index])
        rows.append(kind(*row))
    return rows


class ContainerJournal:
    """Typed access; every method is one transaction. All raise JournalError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, requests: Iterable[RecreateRow], targets: Iterable[TargetRow]) -> None:
        """Write requests and targets, new or changed, all or none."""
        request_rows, target_rows = [astuple(row) for row in requests], [astuple(row) for row in targets]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_upsert(RecreateRow), request_rows)
            connection.executemany(_upsert(TargetRow), target_rows)

        await self._database.run(work)

    async def requests(self) -> list[tuple[RecreateRow, list[TargetRow]]]:
        """Return all requests with their targets, oldest first."""

        def work(connection: sqlite3.Connection) -> list[tuple[RecreateRow, list[TargetRow]]]:
            targets: dict[str, list[TargetRow]] = {}
            for row in _select(connection, TargetRow, "request, position"):
                targets.setdefault(row.request, []).append(row)
            return [(row, targets.get(row.id, [])) for row in _select(connection, RecreateRow, "created_at, rowid")]

        return await self._database.run(work)

    async def forget(self, ids: Iterable[str]) -> None:
        gone = [(request,) for request in ids]
        await self._database.run(lambda connection: connection.executemany("DELETE FROM recreates WHERE id = ?", gone))
