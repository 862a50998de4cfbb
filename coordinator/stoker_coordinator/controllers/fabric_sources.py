"""Central sources of the fabrics, asked again and again; each fails alone."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path

import aiohttp
import structlog
from msgspec import Struct

from stoker_coordinator.controllers.fabric_settings import FabricSettings
from stoker_coordinator.errors import CoordinatorError
from stoker_coordinator.hypernodes import learning
from stoker_coordinator.hypernodes.model import Reading, SourceState
from stoker_coordinator.hypernodes.sources import fabric_dumps, netq, slurm, static, ufm, ufm_client

_log = structlog.get_logger("fabrics")
_LONGEST_FILE = 256 << 20
Parse = Callable[[bytes], Reading]


class Unreadable(CoordinatorError):
    """A source could not be read."""

    reason = "SourceFailed"
    retryable = True


class Source(Struct, frozen=True):
    """How to fetch it, and how to read what comes."""

    name: str
    fetch: Callable[[], Awaitable[bytes]]
    parse: Parse


def sources(settings: FabricSettings) -> list[Source]:
    """Return the sources of the settings, in the order in which they count."""
    found: list[Source] = []
    if settings.static is not None:
        toml = settings.static.suffix == ".toml"
        found.append(_file("static", settings.static, lambda data: static.read(data, toml=toml)))
    if settings.ibnetdiscover is not None:
        found.append(_file("ibnetdiscover", settings.ibnetdiscover, fabric_dumps.read))
    if settings.ufm_url:
        found.append(Source("ufm", lambda: _ufm(settings), ufm.read))
    if settings.netq is not None:
        found.append(_file("netq", settings.netq, netq.read))
    if settings.nmx is not None:
        found.append(_file("nmx", settings.nmx, netq.read_domains))
    if settings.slurm is not None:
        found.append(_file("slurm", settings.slurm, slurm.read))
    return found


def _file(name: str, path: Path, parse: Parse) -> Source:
    def read() -> bytes:
        try:
            with path.open("rb") as file:
                data = file.read(_LONGEST_FILE + 1)
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
        if len(data) > _LONGEST_FILE:
            raise Unreadable(f"{path} is longer than {_LONGEST_FILE >> 20} MiB")
        return data

    return Source(name, lambda: asyncio.to_thread(read), parse)


async def _ufm(settings: FabricSettings) -> bytes:
    async def credentials() -> ufm_client.Credentials:
        return await asyncio.to_thread(_credentials, settings.ufm_credentials)

    try:
        tls = await asyncio.to_thread(ssl.create_default_context, cafile=settings.ufm_ca)
    except OSError as error:
        raise Unreadable(f"{settings.ufm_ca} cannot be read: {error.strerror}") from None
    async with aiohttp.ClientSession() as session:
        return await ufm_client.fetch(session, settings.ufm_url, credentials, timeout=settings.timeout, tls=tls)


def _credentials(path: Path | None) -> ufm_client.Credentials:
    if path is None:
        return ufm_client.Credentials()
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise Unreadable(f"the credentials in {path} cannot be read") from None
    user, colon, password = text.partition(":")
    return ufm_client.Credentials(user, password) if colon else ufm_client.Credentials(token=text)


class CentralSources:
    """Keeps each source's state; *told* is called with all of them when one is different."""

    def __init__(
        self,
        settings: FabricSettings,
        told: Callable[[tuple[SourceState, ...]], object],
        clock: Callable[[], datetime],
    ) -> None:
        self._settings, self._told, self._clock = settings, told, clock
        self._sources = sources(settings)
        self._states: dict[str, SourceState] = {each.name: SourceState(each.name) for each in self._sources}

    def remember(self, kept: Mapping[str, SourceState]) -> None:
        """Take up what was known before the start. A source that is no longer in the settings is forgotten."""
        self._states.update({name: state for name, state in kept.items() if name in self._states})

    @property
    def states(self) -> tuple[SourceState, ...]:
        return tuple(self._states.values())

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            for source in self._sources:
                await self._ask(source)
            await asyncio.sleep(self._settings.interval)

    async def _ask(self, source: Source) -> None:
        before = self._states[source.name]
        try:
            async with asyncio.timeout(self._settings.timeout):
                reading = await asyncio.to_thread(source.parse, await source.fetch())
        except (CoordinatorError, TimeoutError) as error:
            why = error.message if isinstance(error, CoordinatorError) else f"no answer in {self._settings.timeout:g} s"
            after = learning.failed(before, why, self._clock())
        else:
            after = learning.learn(before, reading, self._clock())
        if after.state != before.state or after.reason != before.reason:
            say = _log.info if after.state == "ok" else _log.warning
            say("a central source of the fabric", source=source.name, state=after.state, why=after.reason)
        self._states[source.name] = after
        if after.reading is not before.reading or after.state != before.state:
            self._told(self.states)
