"""The snapshot service of one connection to the memory runtime."""

from __future__ import annotations

from collections.abc import Mapping

from stokerd.runtime.memory_services import Session
from stokerd.runtime.task_types import Mount
from stokerd.runtime.types import SnapshotInfo, SnapshotKind, Usage


class MemorySnapshots:
    """`protocol.Snapshots`."""

    def __init__(self, session: Session) -> None:
        self._session, self._store = session, session.machine.store

    async def stat(self, name: str) -> SnapshotInfo | None:
        def work() -> SnapshotInfo | None:
            snapshot = self._store.snapshots.get(name)
            return snapshot.info if snapshot is not None else None

        return await self._session.call("snapshots.Stat", work)

    async def list(self) -> tuple[SnapshotInfo, ...]:
        return await self._session.call(
            "snapshots.List", lambda: tuple(snapshot.info for snapshot in self._store.snapshots.values())
        )

    async def usage(self, name: str) -> Usage | None:
        def work() -> Usage | None:
            snapshot = self._store.snapshots.get(name)
            return snapshot.usage if snapshot is not None else None

        return await self._session.call("snapshots.Usage", work)

    async def prepare(
        self, key: str, parent: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> tuple[Mount, ...]:
        return await self._make("snapshots.Prepare", key, parent, "active", labels, lease)

    async def view(
        self, key: str, parent: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> tuple[Mount, ...]:
        return await self._make("snapshots.View", key, parent, "view", labels, lease)

    async def mounts(self, key: str) -> tuple[Mount, ...]:
        return await self._session.call("snapshots.Mounts", lambda: self._store.mounts(key))

    async def commit(
        self, key: str, name: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> None:
        await self._session.call(
            "snapshots.Commit", lambda: self._store.finish_snapshot(key, name, labels or {}, lease)
        )

    async def remove(self, name: str) -> None:
        await self._session.call("snapshots.Remove", lambda: self._store.discard_snapshot(name))

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> SnapshotInfo:
        return await self._session.call("snapshots.Update", lambda: self._store.label_snapshot(name, labels))

    async def _make(
        self,
        call: str,
        key: str,
        parent: str,
        kind: SnapshotKind,
        labels: Mapping[str, str] | None,
        lease: str | None,
    ) -> tuple[Mount, ...]:
        return await self._session.call(call, lambda: self._store.make_snapshot(key, parent, kind, labels or {}, lease))
