"""One suite for both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker_coordinator.store.memory import MemoryStore
from stoker_coordinator.store.sqlite import SqliteStore

AnyStore = MemoryStore | SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AnyStore]:
    opened: AnyStore = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "state")
    await opened.open()
    yield opened
    await opened.close()
