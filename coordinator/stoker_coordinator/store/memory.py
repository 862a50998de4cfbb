"""The store without a disk: for tests, and as the measure of the other one."""

from __future__ import annotations

from typing import Any

from stoker_coordinator.store.base import BaseStore, Limits
from stoker_coordinator.store.history import Change
from stoker_coordinator.store.protocol import Store


class MemoryStore(BaseStore):
    """Forgets everything when it is closed."""

    def __init__(self, limits: Limits | None = None, **parts: Any) -> None:
        super().__init__(limits or Limits(), **parts)

    async def _persist(self, change: Change, data: bytes) -> None:  # noqa: ARG002 - there is nowhere to put it
        self._commit([change])

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._closed = True
        self._history.close()


_: type[Store] = MemoryStore
