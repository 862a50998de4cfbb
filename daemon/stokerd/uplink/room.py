"""The uplink as a room of the daemon: there from the start, loaded where the settings name a coordinator."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stokerd.settings import UplinkSettings
from stokerd.uplink.standing import Standing

if TYPE_CHECKING:
    from stoker.objects.node import CoordinatorLink
    from stokerd.journal.uplink import UplinkJournal
    from stokerd.uplink.ports import Ports

Parts: TypeAlias = "tuple[UplinkJournal, Ports]"


class UplinkRoom:
    """Loads `service` when there is a coordinator. That it is away is no fault of this node: work goes on."""

    reconciled = True
    problem = ""

    def __init__(self, settings: UplinkSettings, state_dir: Path, parts: Callable[[], Parts]) -> None:
        self._settings, self._directory, self._parts = settings, state_dir / "uplink", parts
        self._standing = Standing(settings.coordinator)

    @property
    def link(self) -> CoordinatorLink | None:
        """How the node stands with its coordinator; None: it has none."""
        return self._standing.link if self._settings.coordinator else None

    async def load(self) -> None:
        """Nothing is asked of this room, so nothing must be there before it runs."""

    async def run(self) -> None:
        """Keep a stream to the coordinator until cancelled; wait for ever where there is none."""
        if not self._settings.coordinator:
            await asyncio.Event().wait()
        # Late, and in a thread: nodes without a coordinator do not pay for it.
        module = await asyncio.to_thread(importlib.import_module, "stokerd.uplink.service")
        service = module.UplinkService(self._settings, self._directory, *self._parts(), self._standing)
        await service.load()
        await service.run()
