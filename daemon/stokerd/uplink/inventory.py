"""Keeps the documents current that the coordinator is told of, while there is a stream to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import structlog
from msgspec.structs import replace

from stoker.objects.containers import PodInfo
from stoker.objects.images import Event, ImageChange
from stoker.objects.inventory import CheckpointInventory, ImageInventory, PodInventory
from stoker.objects.link import Document
from stokerd.errors import StokerError
from stokerd.settings import UplinkSettings
from stokerd.uplink.ports import Ports
from stokerd.uplink.sending import Outgoing

_log = structlog.get_logger("uplink")
_RETRY, _CALM = 5.0, 0.2
_RARELY = 12
"""Checkpoints are looked at so many times less often than pods, where there are any."""


class Inventory:
    """The documents, and the tasks that keep them current. A source that fails takes no other with it."""

    def __init__(
        self,
        node: str,
        settings: UplinkSettings,
        ports: Ports,
        changed: Callable[[], None],
    ) -> None:
        """*changed* is called when a document has something to send."""
        self._node, self._settings, self._changed = node, settings, changed
        self._images, self._containers = ports.images, ports.containers
        self._checkpoints, self._topology = ports.checkpoints, ports.topology
        names: tuple[Document, ...] = ("topology", "load", "images", "pods", "checkpoints")
        self.documents: dict[str, Outgoing] = {name: Outgoing(name) for name in names}
        self._images_changed = asyncio.Event()
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Keep all documents current until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep("images", self._follow_images), name="uplink: images")
            group.create_task(self._keep("image events", self._hear_images), name="uplink: image events")
            group.create_task(self._keep("pods", self._follow_pods), name="uplink: pods")
            group.create_task(self._keep("checkpoints", self._follow_checkpoints), name="uplink: checkpoints")
            if self._settings.topology == "auto":
                group.create_task(self._keep("topology", self._follow_topology), name="uplink: topology")
                group.create_task(self._keep("load", self._follow_load), name="uplink: load")

    async def _keep(self, name: str, follow: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await follow()
            except StokerError as error:
                if error.reason == "SwitchedOff":
                    return
                if name not in self._failing:
                    _log.warning("the coordinator cannot be told everything", what=name, why=error.message)
                self._failing.add(name)
            await asyncio.sleep(_RETRY)

    def _offer(self, name: Document, content: Any) -> None:
        self._failing.discard(name)
        if self.documents[name].offer(content):
            self._changed()

    async def _follow_images(self) -> None:
        while True:
            self._images_changed.clear()
            self._offer("images", ImageInventory(images=await self._images.list()))
            try:
                async with asyncio.timeout(self._settings.inventory_interval * 2):
                    await self._images_changed.wait()
                await asyncio.sleep(_CALM)  # a pull makes several changes
            except TimeoutError:
                continue

    async def _hear_images(self) -> None:
        async with aclosing(cast("AsyncGenerator[Event, None]", self._images.watch())) as events:
            async for event in events:
                if isinstance(event, ImageChange):
                    self._images_changed.set()

    async def _follow_pods(self) -> None:
        while True:
            pods = [_plain(pod) for pod in await self._containers.pods()]
            self._offer("pods", PodInventory(pods=pods))
            await asyncio.sleep(self._settings.inventory_interval)

    async def _follow_checkpoints(self) -> None:
        while True:
            found, pause = CheckpointInventory(), self._settings.inventory_interval
            if self._checkpoints.in_use:
                found = CheckpointInventory(
                    checkpoints=await self._checkpoints.checkpoints(), clones=await self._checkpoints.clones()
                )
                pause *= _RARELY
            self._offer("checkpoints", found)
            await asyncio.sleep(pause)

    async def _follow_topology(self) -> None:
        async with aclosing(cast("AsyncGenerator[Any, None]", self._topology.follow())) as events:
            async for _ in events:
                self._offer("topology", replace(await self._topology.report(), node=self._node))

    async def _follow_load(self) -> None:
        await self._topology.report()
        while True:
            load = await self._topology.load_of_ports()
            if load.ports:
                self._offer("load", replace(load, node=self._node))
            await asyncio.sleep(self._settings.load_interval)


def _plain(pod: PodInfo) -> PodInfo:
    containers = [replace(each, annotations={}) for each in pod.containers]
    return replace(pod, annotations={}, containers=containers)
