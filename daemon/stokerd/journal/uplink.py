"""The journal's table of what the coordinator wished for, and of what came of it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import astuple

from stokerd.journal.database import Database
from stokerd.journal.rows import WishRow
from stokerd.journal.tables import Table

_WISHES = Table(WishRow, "wishes", "uid, generation")


class UplinkJournal:
    """Typed access; every method is one transaction. All raise JournalError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, rows: Iterable[WishRow]) -> None:
        """Write wishes, new or changed, all or none."""
        values = [astuple(row) for row in rows]
        await self._database.run(lambda connection: connection.executemany(_WISHES.upsert, values))

    async def wishes(self) -> list[WishRow]:
        """Return all wishes that are known, oldest first."""
        return await self._database.run(lambda connection: _WISHES.select(connection, "ORDER BY created_at"))

    async def forget(self, keys: Iterable[tuple[str, int]]) -> None:
        """Remove wishes, by uid and generation."""
        gone = list(keys)
        await self._database.run(
            lambda connection: connection.executemany("DELETE FROM wishes WHERE uid = ? AND generation = ?", gone)
        )
