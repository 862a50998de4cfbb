"""The journal's tables about images: jobs, pins, keeps, history and what layers grew to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from msgspec.structs import astuple

from stokerd.journal.database import Database
from stokerd.journal.rows import AttemptRow, ItemRow, JobRow, KeepRow, LayerRow, PinRow, RatioRow
from stokerd.journal.tables import Table

_JOBS = Table(JobRow, "jobs", "id")
_ITEMS = Table(ItemRow, "items", "job, position")
_PINS = Table(PinRow, "pins", "reference")
_KEEPS = Table(KeepRow, "keeps", "reference")
_ATTEMPTS = Table(AttemptRow, "attempts")
_RATIOS = Table(RatioRow, "ratios", "compression")
_LAYER_LIMIT = 20_000


class ImageJournal:
    """Typed access; every method is one transaction. All raise JournalError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ------------------------------------------------------------------------------------------ jobs

    async def save_jobs(self, jobs: Iterable[JobRow], items: Iterable[ItemRow]) -> None:
        """Write jobs and items, new or changed, all or none."""
        job_rows, item_rows = [astuple(job) for job in jobs], [astuple(item) for item in items]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_JOBS.upsert, job_rows)
            connection.executemany(_ITEMS.upsert, item_rows)

        await self._database.run(work)

    async def jobs(self) -> list[tuple[JobRow, list[ItemRow]]]:
        """Return all jobs with their items, oldest first."""

        def work(connection: sqlite3.Connection) -> list[tuple[JobRow, list[ItemRow]]]:
            items: dict[str, list[ItemRow]] = {}
            for item in _ITEMS.select(connection, "ORDER BY job, position"):
                items.setdefault(item.job, []).append(item)
            return [(job, items.get(job.id, [])) for job in _JOBS.select(connection, "ORDER BY created_at, id")]

        return await self._database.run(work)

    async def forget_jobs(self, ids: Iterable[str]) -> None:
        gone = [(job,) for job in ids]
        await self._database.run(lambda connection: connection.executemany("DELETE FROM jobs WHERE id = ?", gone))

    # ------------------------------------------------------------------------------------------ pins and keeps

    async def save_pin(self, pin: PinRow) -> None:
        await self._database.run(lambda connection: connection.execute(_PINS.upsert, astuple(pin)))

    async def forget_pin(self, reference: str) -> None:
        await self._database.run(
            lambda connection: connection.execute("DELETE FROM pins WHERE reference = ?", (reference,))
        )

    async def pins(self) -> list[PinRow]:
        return await self._database.run(lambda connection: _PINS.select(connection, "ORDER BY created_at, reference"))

    async def save_keep(self, keep: KeepRow) -> None:
        await self._database.run(lambda connection: connection.execute(_KEEPS.upsert, astuple(keep)))

    async def forget_keep(self, reference: str) -> None:
        await self._database.run(
            lambda connection: connection.execute("DELETE FROM keeps WHERE reference = ?", (reference,))
        )

    async def keeps(self) -> list[KeepRow]:
        return await self._database.run(lambda connection: _KEEPS.select(connection, "ORDER BY created_at, reference"))

    # ------------------------------------------------------------------------------------------ history

    async def record_attempt(self, attempt: AttemptRow, *, limit: int) -> None:
        """Add to the history, which keeps the newest *limit* attempts."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(_ATTEMPTS.insert, astuple(attempt))
            connection.execute("DELETE FROM attempts WHERE id <= (SELECT max(id) FROM attempts) - ?", (limit,))

        await self._database.run(work)

    async def attempts(self, reference: str | None, *, limit: int) -> list[AttemptRow]:
        """Return the newest attempts first, of one image or of all."""
        where, values = ("WHERE reference = ?", [reference]) if reference else ("", [])
        return await self._database.run(
            lambda connection: _ATTEMPTS.select(connection, f"{where} ORDER BY id DESC LIMIT ?", [*values, limit])
        )

    async def last_warmed(self) -> dict[str, float]:
        """Return when each image was last warmed with success."""

        def work(connection: sqlite3.Connection) -> dict[str, float]:
            query = "SELECT reference, max(finished_at) FROM attempts WHERE result = 'Succeeded' GROUP BY reference"
            return dict(connection.execute(query).fetchall())

        return await self._database.run(work)

    # ------------------------------------------------------------------------------------------ layers

    async def learn(self, layers: Iterable[LayerRow], ratios: Iterable[RatioRow]) -> None:
        """Remember what layers grew to; the ones not seen for longest are forgotten beyond a limit."""
        layer_rows, ratio_rows = [astuple(layer) for layer in layers], [astuple(ratio) for ratio in ratios]

        def work(connection: sqlite3.Connection) -> None:
            newest = connection.execute("SELECT coalesce(max(seen), 0) FROM layers").fetchone()[0] + 1
            connection.executemany(
                "INSERT OR REPLACE INTO layers (digest, compression, compressed, unpacked, inodes, seen)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [(*row, newest) for row in layer_rows],
            )
            connection.executemany(_RATIOS.upsert, ratio_rows)
            connection.execute(
                "DELETE FROM layers WHERE digest IN (SELECT digest FROM layers ORDER BY seen DESC LIMIT -1 OFFSET ?)",
                (_LAYER_LIMIT,),
            )

        await self._database.run(work)

    async def layers(self, digests: Iterable[str]) -> dict[str, LayerRow]:
        """Return what is known of these layers."""
        wanted = list(digests)

        def work(connection: sqlite3.Connection) -> dict[str, LayerRow]:
            query = "SELECT digest, compression, compressed, unpacked, inodes FROM layers WHERE digest = ?"
            found = (connection.execute(query, (digest,)).fetchone() for digest in wanted)
            return {row[0]: LayerRow(*row) for row in found if row is not None}

        return await self._database.run(work)

    async def ratios(self) -> list[RatioRow]:
        return await self._database.run(_RATIOS.select)
