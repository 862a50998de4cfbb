"""Removes checkpoints by age, number and size, as the settings say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

import structlog

from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.retention import Kept, Limits, expired
from stokerd.checkpoints.service import Checkpoints
from stokerd.errors import Conflict, NotFound, StokerError
from stokerd.settings import CheckpointSettings

_log = structlog.get_logger("checkpoints")


class Retainer:
    """Looks now and then, and when it is told that a checkpoint was made."""

    def __init__(self, room: Checkpoints, settings: CheckpointSettings, clock: Callable[[], datetime]) -> None:
        self._room, self._clock = room, clock
        self._again = asyncio.Event()
        self.apply(settings)

    def apply(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._again.set()

    def look(self) -> None:
        """Look soon."""
        self._again.set()

    async def run(self) -> None:
        failing = False
        while True:
            self._again.clear()
            try:
                await self.sweep()
                failing = False
            except (StokerError, OSError) as error:
                if not failing:
                    _log.warning("old checkpoints cannot be removed; trying again", why=str(error))
                failing = True
            try:
                async with asyncio.timeout(self._settings.keep_interval):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def sweep(self) -> tuple[str, ...]:
        """Remove what is over the limits; return it."""
        limits = limits_of(self._settings)
        if limits == Limits():
            return ()
        kept = kept_of(await self._room.list(), await self._room.users())
        gone: list[str] = []
        for identity in expired(kept, limits, self._clock()):
            try:
                await self._room.remove(identity)
            except (Conflict, NotFound):  # somebody has just cloned, or removed it
                continue
            gone.append(identity)
            _log.info("checkpoint is over the limits and is removed", id=identity)
        return tuple(gone)


def kept_of(found: Iterable[Manifest], users: Mapping[str, int]) -> list[Kept]:
    """Return what is kept; those that were taken in one freeze are one, by the id that they have in common."""
    together: dict[str, list[Manifest]] = {}
    for each in found:
        together.setdefault(each.group or each.id, []).append(each)
    return [
        Kept(
            identity,
            min(each.created_at for each in members),
            sum(each.bytes for each in members),
            in_use=any(users.get(each.id, 0) for each in members),
        )
        for identity, members in together.items()
    ]


def limits_of(settings: CheckpointSettings) -> Limits:
    age = timedelta(seconds=settings.keep_for) if settings.keep_for else None
    return Limits(age=age, count=settings.keep_count, bytes=settings.keep_bytes)
