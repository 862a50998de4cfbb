"""A daemon in this process that can be killed: its connection to containerd, its journal and its task end at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from stokerd.journal.database import Database
from stokerd.runtime.memory import MemoryRuntime
from stokerd.runtime.memory_services import unreachable
from stokerd.runtime.protocol import (
    ContentStore,
    CriContainers,
    CriImages,
    CriPods,
    Events,
    ImageStore,
    Leases,
    Runtime,
    Snapshots,
)
from stokerd.runtime.types import RuntimeInfo
from tests.unit.images.virtual import Inline


class Link:
    """One daemon's connection to containerd. Once it is cut, nothing that the daemon still does has any effect."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        self._runtime = runtime
        self.cut = False

    def there(self) -> MemoryRuntime:
        if self.cut:
            raise unreachable("killed")
        return self._runtime

    @property
    def cri(self) -> CriImages:
        return self.there().cri

    @property
    def pods(self) -> CriPods:
        return self.there().pods

    @property
    def containers(self) -> CriContainers:
        return self.there().containers

    @property
    def content(self) -> ContentStore:
        return self.there().content

    @property
    def images(self) -> ImageStore:
        return self.there().images

    @property
    def snapshots(self) -> Snapshots:
        return self.there().snapshots

    @property
    def leases(self) -> Leases:
        return self.there().leases

    @property
    def events(self) -> Events:
        return self.there().events

    @property
    def info(self) -> RuntimeInfo:
        return self.there().info

    @property
    def ready(self) -> bool:
        return not self.cut and self._runtime.ready

    async def wait_ready(self) -> None:
        await self._runtime.wait_ready()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._runtime.on_change(lambda: None if self.cut else listener())

    async def probe(self) -> RuntimeInfo:
        return await self.there().probe()

    async def ping(self) -> None:
        await self.there().ping()

    async def close(self) -> None: ...


class Service(Protocol):
    def run(self) -> Coroutine[Any, Any, None]: ...


class Mortal:
    """Runs `room`, and ends it in one way or another. Whoever inherits makes ``link`` and ``database``."""

    link: Link
    database: Database
    _task: asyncio.Task[None] | None = None

    @property
    def room(self) -> Service:
        raise NotImplementedError

    def run(self) -> None:
        self._task = asyncio.create_task(self.room.run(), name="daemon")

    def open_journal(self, database: Database, *, threads: bool) -> Database:
        """Return *database* as this daemon's; without *threads* it works in the loop's own."""
        self.database = database
        if not threads:
            self.database._thread = Inline()  # type: ignore[assignment]
        return database

    async def stop(self) -> None:
        """Stop the daemon as SIGTERM does, without waiting for what could be parked."""
        await self._end()
        await self.database.close()

    async def kill(self) -> None:
        """Kill the daemon: from here on it changes nothing, in containerd as in the journal."""
        self.sever()
        await self._end()

    def sever(self) -> None:
        self.link.cut = True
        self.database._closed = True
        self.database._close()
        self.database._thread = Dead()  # type: ignore[assignment]

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            error = task.exception()
            raise AssertionError("the daemon ended by itself") from error

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def journal_writable(self, writable: bool) -> None:
        """Let the journal's file system be full, or have room again."""
        connection = self.database._connection
        assert connection is not None
        connection.execute(f"PRAGMA query_only={int(not writable)}")


class Dead(Inline):
    """The thread of a database whose process is gone."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("cannot schedule new futures after shutdown")


_: type[Runtime] = Link
