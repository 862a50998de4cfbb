"""The journal's tables about containers that are recreated in place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from msgspec.structs import astuple

from stokerd.journal.database import Database
from stokerd.journal.rows import RecreateRow, TargetRow
from stokerd.journal.tables import Table

_REQUESTS = Table(RecreateRow, "recreates", "id")
_TARGETS = Table(TargetRow, "recreate_targets", "request, position")


class ContainerJournal:
    """Typed access; every method is one transaction. All raise JournalError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, requests: Iterable[RecreateRow], targets: Iterable[TargetRow]) -> None:
        """Write requests and targets, new or changed, all or none."""
        request_rows, target_rows = [astuple(row) for row in requests], [astuple(row) for row in targets]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_REQUESTS.upsert, request_rows)
            connection.executemany(_TARGETS.upsert, target_rows)

        await self._database.run(work)

    async def requests(self) -> list[tuple[RecreateRow, list[TargetRow]]]:
        """Return all requests with their targets, oldest first."""

        def work(connection: sqlite3.Connection) -> list[tuple[RecreateRow, list[TargetRow]]]:
            targets: dict[str, list[TargetRow]] = {}
            for row in _TARGETS.select(connection, "ORDER BY request, position"):
                targets.setdefault(row.request, []).append(row)
            return [
                (row, targets.get(row.id, [])) for row in _REQUESTS.select(connection, "ORDER BY created_at, rowid")
            ]

        return await self._database.run(work)

    async def forget(self, ids: Iterable[str]) -> None:
        gone = [(request,) for request in ids]
        await self._database.run(lambda connection: connection.executemany("DELETE FROM recreates WHERE id = ?", gone))
