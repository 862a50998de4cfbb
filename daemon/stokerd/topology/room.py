"""The topology as a room of the daemon: there from the start, loaded when it is wanted."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from stokerd.errors import StokerError
from stokerd.settings import TopologySettings

if TYPE_CHECKING:
    from stoker.objects.topology import TopologyEvent, TopologyFinding, TopologyLoad, TopologyReport
    from stokerd.topology.contents import NodeContents
    from stokerd.topology.service import TopologyService


class SwitchedOff(StokerError):
    """The configuration says that this is not to be done."""

    reason: ClassVar[str] = "SwitchedOff"


class TopologyRoom:
    """`api.ports.TopologyPort`: passes on to `service`, which nothing imports before somebody asks."""

    reconciled = True
    problem = ""

    def __init__(self, settings: TopologySettings, contents: NodeContents | None = None) -> None:
        """*contents* knows the images and pods of the node."""
        self._settings = settings
        self._contents = contents
        self._asked = asyncio.Event()
        self._loaded = asyncio.Event()
        self._service: TopologyService | None = None

    async def load(self) -> None:
        """Nothing of it is kept in the journal: the node itself says what it is."""

    async def run(self) -> None:
        """Wait until it is wanted, then work until cancelled."""
        if self._settings.mode == "always":
            self._asked.set()
        await self._asked.wait()
        if self._service is None:
            # Late, and in a thread: it takes 50 ms and 2 MiB.
            module = await asyncio.to_thread(importlib.import_module, "stokerd.topology.service")
            self._service = module.TopologyService(self._settings, os.uname().nodename, contents=self._contents)
            self._loaded.set()
        await self._service.run()

    def apply(self, settings: TopologySettings) -> None:
        """Go by new settings."""
        self._settings = settings
        if self._service is not None:
            self._service.apply(settings)

    async def report(self) -> TopologyReport:
        """Return the report of the node."""
        return await (await self._wanted()).report()

    async def load_of_ports(self) -> TopologyLoad:
        """Return what the ports carry."""
        return await (await self._wanted()).load()

    async def follow(self) -> AsyncGenerator[TopologyEvent, None]:
        """Yield the report, then changes as they happen."""
        service = await self._wanted()
        async with aclosing(service.follow()) as events:
            async for event in events:
                yield event

    def snapshot(self) -> tuple[TopologyReport, TopologyLoad] | None:
        """Return the report and the load as they are, for metrics; None while nobody has asked for the topology."""
        return self._service.snapshot() if self._service is not None else None

    @property
    def findings(self) -> Sequence[TopologyFinding]:
        """What is not as it should be; nothing while nobody has asked for the topology."""
        return self._service.findings if self._service is not None else ()

    async def _wanted(self) -> TopologyService:
        if self._settings.mode == "off":
            raise SwitchedOff("the topology is switched off on this node", hint="set topology.mode in stokerd's file")
        self._asked.set()
        await self._loaded.wait()
        assert self._service is not None
        return self._service
