from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "state")
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def journal(database: Database) -> ImageJournal:
    return ImageJournal(database)
