"""Deadlines that pass when a test wants it: what hangs is given the time to get there, on however slow a machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

_PATIENCE = 60.0


def passes_when(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], bool]) -> None:
    """Let the next ``asyncio.timeout`` pass as soon as *condition* holds, whatever its seconds."""
    real = asyncio.timeout

    @asynccontextmanager
    async def once(_seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        monkeypatch.setattr(asyncio, "timeout", real)
        async with real(_PATIENCE) as deadline:
            looking = asyncio.create_task(_look(deadline))
            try:
                yield deadline
            finally:
                looking.cancel()

    async def _look(deadline: asyncio.Timeout) -> None:
        while not condition():  # noqa: ASYNC110 - there is nothing that would tell
            await asyncio.sleep(0.01)
        deadline.reschedule(asyncio.get_running_loop().time())

    monkeypatch.setattr(asyncio, "timeout", once)


def written(path: Path) -> bool:
    """Whether a line is in the file."""
    return path.exists() and path.read_text(encoding="utf-8").endswith("\n")
