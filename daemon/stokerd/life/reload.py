"""Settings that change while stokerd runs: what of a configuration file that was read again may hold at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import structlog

from stoker.objects.containers import ReloadResult
from stoker.service.notify import Notifier
from stokerd.errors import ConfigError
from stokerd.settings import Settings, is_live
from stokerd.settings_file import consistency_problems, load

_log = structlog.get_logger("life")
_READ_TIMEOUT = 10.0

Apply = Callable[[Settings], None]
"""Makes new settings hold in one room. It cannot fail: what can be wrong with settings was looked at before."""


class Change(msgspec.Struct, frozen=True):
    """The difference between the settings that hold and those of the file."""

    settings: Settings
    """What holds from now on: new where that can be, as it was where it cannot."""
    applied: tuple[str, ...]
    restart_needed: tuple[str, ...]


def compare(held: Settings, read: Settings) -> Change:
    """Return what of *read* holds at once and what needs a restart. The fields say themselves which they are."""
    applied: list[str] = []
    restart: list[str] = []
    tables: dict[str, Any] = {}
    for part in fields(Settings):
        before, after = getattr(held, part.name), getattr(read, part.name)
        changes: dict[str, Any] = {}
        for field in fields(before):
            value = getattr(after, field.name)
            if value == getattr(before, field.name):
                continue
            name = f"{part.name}.{field.name}"
            if is_live(type(before), field.name):
                changes[field.name] = value
                applied.append(name)
            else:
                restart.append(name)
        tables[part.name] = replace(before, **changes)
    return Change(Settings(**tables), tuple(applied), tuple(restart))


class Reloader:
    """Keeps the settings that hold. `reload` reads the file again, one call after another."""

    def __init__(self, path: Path | None, settings: Settings, notifier: Notifier) -> None:
        self.settings = settings
        self.changed: Callable[[], None] = lambda: None
        """Called after each reload, whatever came of it."""
        self.problem = ""
        """Why the file could not be used at the last reload; empty when it could."""
        self._path = path
        self._notifier = notifier
        self._appliers: list[Apply] = []
        self._lock = asyncio.Lock()

    def add(self, *appliers: Apply) -> None:
        """Have *appliers* called with the settings whenever they have changed."""
        self._appliers += appliers

    async def reload(self) -> ReloadResult:
        """Read the file again. ConfigError: it is wrong, all errors were logged, and everything is as it was."""
        async with self._lock:
            self._notifier.reloading()
            try:
                return await self._reload()
            finally:
                self.changed()
                self._notifier.ready()

    async def _reload(self) -> ReloadResult:
        try:
            change = compare(self.settings, await self._read())
            problems = consistency_problems(change.settings)
            if problems:  # sound in the file, but not beside what needs a restart
                raise ConfigError(str(self._path), problems)
        except ConfigError as error:
            self.problem = f"the configuration file has {len(error.problems)} error(s); the settings are as before"
            _log.error("configuration not reloaded; the settings are as before", problems=list(error.problems))
            raise
        self.problem = ""
        if change.applied:
            self.settings = change.settings
            for apply in self._appliers:
                apply(change.settings)
        _log.info("configuration reloaded", applied=change.applied, restart_needed=change.restart_needed)
        return ReloadResult(applied=list(change.applied), restart_needed=list(change.restart_needed))

    async def _read(self) -> Settings:
        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                return await asyncio.to_thread(load, self._path)
        except TimeoutError:
            raise ConfigError(str(self._path), [f"was not read within {_READ_TIMEOUT:g} s"]) from None


def plain(settings: Settings) -> dict[str, dict[str, object]]:
    """Return settings as plain values by table and key, as the API tells them."""
    return {
        part.name: {field.name: _plain(getattr(table, field.name)) for field in fields(table)}
        for part in fields(Settings)
        for table in (getattr(settings, part.name),)
    }


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return value
