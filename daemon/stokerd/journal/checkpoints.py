"""The journal's table about operations: checkpoints, clones and commits that were asked for."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import astuple

from stokerd.journal.database import Database
from stokerd.journal.rows import OperationRow
from stokerd.journal.tables import Table

_OPERATIONS = Table(OperationRow, "operations", "id")


class CheckpointJournal:
    """Typed access; every method is one transaction. All raise JournalError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, row: OperationRow) -> None:
        """Write an operation, new or changed."""
        await self._database.run(lambda connection: connection.execute(_OPERATIONS.upsert, astuple(row)))

    async def operations(self) -> list[OperationRow]:
        """Return all operations, oldest first."""
        return await self._database.run(lambda connection: _OPERATIONS.select(connection, "ORDER BY created_at, rowid"))

    async def unfinished(self) -> bool:
        """Say whether there is an operation that has not ended."""
        query = "SELECT EXISTS (SELECT 1 FROM operations WHERE finished_at IS NULL)"
        return await self._database.run(lambda connection: bool(connection.execute(query).fetchone()[0]))

    async def forget(self, ids: Iterable[str]) -> None:
        gone = [(each,) for each in ids]
        await self._database.run(lambda connection: connection.executemany("DELETE FROM operations WHERE id = ?", gone))
