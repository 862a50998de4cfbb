"""Real containerd behind `protocol.NativeRuntime`: finds the socket, connects, and again whenever it breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import grpc
import msgspec
import structlog

from stokerd.errors import RuntimeFailure, RuntimeUnavailable
from stokerd.runtime import endpoint
from stokerd.runtime.channel import Wire, open_channel
from stokerd.runtime.cri import CriImageService
from stokerd.runtime.cri_pods import CriContainerService, CriPodService
from stokerd.runtime.native import NativeContent, NativeEvents, NativeImages, NativeLeases, NativeSnapshots
from stokerd.runtime.native_diffs import NativeDiffs
from stokerd.runtime.native_tasks import NativeRecords, NativeTasks
from stokerd.runtime.probe import is_same, probe
from stokerd.runtime.status import Observer
from stokerd.runtime.types import RuntimeInfo
from stokerd.settings import RuntimeSettings

_log = structlog.get_logger("runtime")
_FIRST_PAUSE = 0.2
_PING_TIMEOUT = 5.0


class _Session(msgspec.Struct, frozen=True):
    """One connection and the services over it."""

    wire: Wire
    info: RuntimeInfo
    cri: CriImageService
    pods: CriPodService
    containers: CriContainerService
    content: NativeContent
    images: NativeImages
    snapshots: NativeSnapshots
    leases: NativeLeases
    records: NativeRecords
    tasks: NativeTasks
    diffs: NativeDiffs
    events: NativeEvents


class Containerd:
    """`protocol.NativeRuntime` over whatever containerd answers now.

    `run` keeps it connected and belongs to the daemon's task group. Until it has connected, and while containerd is
    away, every service raises RuntimeUnavailable that names the sockets that were tried.
    """

    def __init__(self, settings: RuntimeSettings, observe: Observer) -> None:
        self._settings = settings
        self._observe = observe
        self._candidates = endpoint.candidates(settings.endpoint)
        self._session: _Session | None = None
        self._ready = asyncio.Event()
        self._broken = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self.tried: tuple[endpoint.Found, ...] = ()
        self.problem = "not connected yet"

    # ------------------------------------------------------------------------------------------ services

    @property
    def cri(self) -> CriImageService:
        return self._current().cri

    @property
    def pods(self) -> CriPodService:
        return self._current().pods

    @property
    def containers(self) -> CriContainerService:
        return self._current().containers

    @property
    def content(self) -> NativeContent:
        return self._current().content

    @property
    def images(self) -> NativeImages:
        return self._current().images

    @property
    def snapshots(self) -> NativeSnapshots:
        return self._current().snapshots

    @property
    def leases(self) -> NativeLeases:
        return self._current().leases

    @property
    def records(self) -> NativeRecords:
        return self._current().records

    @property
    def tasks(self) -> NativeTasks:
        return self._current().tasks

    @property
    def diffs(self) -> NativeDiffs:
        return self._current().diffs

    @property
    def events(self) -> NativeEvents:
        return self._current().events

    @property
    def info(self) -> RuntimeInfo:
        return self._current().info

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call *listener* whenever readiness changes."""
        self._listeners.append(listener)

    async def probe(self) -> RuntimeInfo:
        session = self._current()
        found = await asyncio.to_thread(endpoint.look, session.info.endpoint)
        return await probe(session.wire, found, self._settings.registry_config_path)

    async def ping(self) -> None:
        session = self._current()
        try:
            await session.cri.version()
        except RuntimeUnavailable:
            self._broken.set()
            raise

    async def close(self) -> None:
        self._ready.clear()
        session, self._session = self._session, None
        if session is not None:
            await session.wire.channel.close()

    def _current(self) -> _Session:
        if self._session is None:
            raise RuntimeUnavailable(
                f"no containerd answers: {self.problem}",
                hint="start containerd, or set runtime.endpoint in stokerd's configuration",
            )
        return self._session

    # ------------------------------------------------------------------------------------------ supervision

    async def run(self) -> None:
        """Stay connected until cancelled."""
        pause, failing = _FIRST_PAUSE, False
        try:
            while True:
                try:
                    self._session = await self._connect()
                except RuntimeFailure as error:
                    self.problem = error.message
                    if not failing:
                        _log.warning("containerd cannot be used; waiting for it", why=error.message, hint=error.hint)
                    failing = True
                    await asyncio.sleep(pause * (0.75 + random.random() / 2))  # noqa: S311
                    pause = min(pause * 2, self._settings.connect_backoff_max)
                    continue
                pause, failing = _FIRST_PAUSE, False
                self._announce(ready=True)
                await self._until_broken(self._session)
                self._announce(ready=False)
                await self._drop()
        finally:
            await self.close()

    async def _connect(self) -> _Session:
        self.tried = tuple([await asyncio.to_thread(endpoint.look, path) for path in self._candidates])
        answering = [found for found in self.tried if not found.problem]
        if not answering:
            raise RuntimeUnavailable(f"tried {endpoint.tried(self.tried)}")
        problem: RuntimeFailure | None = None
        for found in answering:
            channel = open_channel(found.path)
            wire = Wire(channel, self._settings.call_timeout, self._settings.gc_timeout, self._observe)
            try:
                return _open(wire, await probe(wire, found, self._settings.registry_config_path))
            except RuntimeFailure as error:
                problem = error
                await channel.close()
            except BaseException:
                await channel.close()
                raise
        assert problem is not None
        raise problem

    async def _until_broken(self, session: _Session) -> None:
        """Return when the connection is gone. An idle channel is no broken one: it is asked again."""
        channel = session.wire.channel
        self._broken.clear()
        again = False
        while True:
            state = channel.get_state(try_to_connect=True)
            if state is not grpc.ChannelConnectivity.READY and not await self._answers(session):
                return
            if again and not await self._is_same(session):
                return
            again = True
            changed = asyncio.ensure_future(channel.wait_for_state_change(channel.get_state()))
            told = asyncio.ensure_future(self._broken.wait())
            try:
                await asyncio.wait({changed, told}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
                told.cancel()
                await asyncio.gather(changed, told, return_exceptions=True)
            if self._broken.is_set():
                return

    async def _answers(self, session: _Session) -> bool:
        try:
            async with asyncio.timeout(_PING_TIMEOUT):
                await session.cri.version()
        except (RuntimeFailure, TimeoutError) as error:
            self.problem = str(error) or "does not answer"
            return False
        return True

    async def _is_same(self, session: _Session) -> bool:
        """Say whether it is the same containerd. A channel finds the next one by itself, but what is known of the
        process - its id, its root, its version - is of the one that has ended."""
        if await is_same(session.info):
            return True
        self.problem = "it was started anew"
        return False

    async def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.wire.channel.close()

    def _announce(self, *, ready: bool) -> None:
        if ready:
            info = self.info
            self.problem = ""
            self._ready.set()
            _log.info("connected to containerd", endpoint=info.endpoint, version=info.version, pid=info.pid)
        else:
            self._ready.clear()
            _log.warning("lost containerd; work waits until it is back", why=self.problem)
        for listener in self._listeners:
            listener()


def _open(wire: Wire, info: RuntimeInfo) -> _Session:
    return _Session(
        wire,
        info,
        CriImageService(wire),
        CriPodService(wire),
        CriContainerService(wire),
        NativeContent(wire),
        NativeImages(wire),
        NativeSnapshots(wire, info.snapshotter),
        NativeLeases(wire),
        NativeRecords(wire),
        NativeTasks(wire),
        NativeDiffs(wire),
        NativeEvents(wire, info.version_tuple()),
    )
