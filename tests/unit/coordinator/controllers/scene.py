"""A store, one informer, and controllers over them, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from msgspec.structs import replace

from stoker.objects.cluster_nodes import Node, NodeStatus
from stoker.objects.meta import Object, ObjectMeta
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.store.memory import MemoryStore

START = datetime(2026, 5, 1, tzinfo=UTC)


class Runs(Protocol):
    async def run(self) -> None: ...


class Scene:
    """``shift`` sets the wall clock forward or back."""

    def __init__(self) -> None:
        self.shift = timedelta()
        self.store = MemoryStore(now=self.now, clock=lambda: asyncio.get_running_loop().time())

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time()) + self.shift

    async def node(self, name: str, *, connected: bool = True) -> None:
        status = NodeStatus(connected=connected, last_seen=self.now())
        if await self.store.find(Node, name) is None:
            await self.store.create(Node(metadata=ObjectMeta(name=name), status=status))
        else:
            await self.store.change(Node, name, change=lambda node: replace(node, status=status), status=True)

    async def disconnect(self, name: str) -> None:
        """The node is away, and was last seen when its object says so: by now, or long ago."""

        def away(node: Node) -> Node:
            return replace(node, status=replace(node.status, connected=False))

        await self.store.change(Node, name, change=away, status=True)

    @asynccontextmanager
    async def running(self, kinds: Sequence[type[Object]], make: Callable[[Informer], Runs]) -> AsyncIterator[Runs]:
        """Run one controller for as long as the block."""
        informer = Informer(self.store, kinds)
        made = make(informer)
        tasks = [
            asyncio.create_task(informer.run(), name="informer"),
            asyncio.create_task(made.run(), name="controller"),
        ]
        try:
            await asyncio.sleep(1)
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                assert task.cancelled(), task.exception()
