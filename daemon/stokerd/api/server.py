"""The local API on its unix socket: starts, serves, stops."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable
from functools import partial

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from stoker.service.in_flight import InFlight
from stokerd.api.accept import Acceptor
from stokerd.api.archive_routes import ArchiveHandlers
from stokerd.api.calls import Calls, Deadlines
from stokerd.api.checkpoint_routes import CheckpointHandlers
from stokerd.api.container_routes import ContainerHandlers
from stokerd.api.listener import Listener, adopt_listener, group_id, open_listener
from stokerd.api.middleware import Metrics, checking_peers, counting, explain_failures
from stokerd.api.ports import ArchivesPort, CheckpointsPort, ContainersPort, ImagesPort, NodePort, TopologyPort
from stokerd.api.protocol import Protocol
from stokerd.api.routes import Handlers
from stokerd.api.sse import Streams
from stokerd.api.topology_routes import TopologyHandlers
from stokerd.settings import ApiSettings

__all__ = ["ApiServer", "ApiSettings"]

log = structlog.get_logger("stokerd.api")

MAX_STREAMS = 128
# For aiohttp to close what is left; requests have had their time before.
_CLEANUP_SECONDS = 0.25


class ApiServer:
    """Serves the rooms behind the ports over HTTP on a unix socket, and *registry* on ``/metrics``."""

    def __init__(
        self,
        settings: ApiSettings,
        images: ImagesPort,
        node: NodePort,
        registry: CollectorRegistry,
        *,
        containers: ContainersPort,
        checkpoints: CheckpointsPort,
        archives: ArchivesPort | None = None,
        topology: TopologyPort,
        passed: socket.socket | None = None,
        deadlines: Deadlines | None = None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        """Nothing is opened before ``start``. One server per *registry*: it registers its own metrics there.

        *passed*: a listening socket of the service manager's, used instead of one of our own. *max_streams*: event
        streams that may be open at the same time.
        """
        self._settings = settings
        self._images = images
        self._containers = containers
        self._checkpoints = checkpoints
        self._archives = archives
        self._topology = topology
        self._node = node
        self._registry = registry
        self._metrics = Metrics(registry)
        self._deadlines = deadlines or Deadlines()
        self._calls = Calls()
        self._streams = Streams(heartbeat=settings.heartbeat, limit=max_streams, count=self._metrics.streams.set)
        self._in_flight = InFlight()
        self._passed = passed
        self._listener: Listener | None = None
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None

    async def start(self) -> None:
        """Listen and serve.

        AlreadyRunning: a live daemon has the socket. InvalidInput: the path cannot be a socket. Other StokerErrors:
        the system refuses the socket.
        """
        group = self._settings.group
        gid = group_id(group)
        if gid is None and group:
            log.warning("the group of the API socket does not exist: root alone may use it", group=group)
        self._listener = self._listen(gid)
        try:
            self._runner = await self._make_runner(gid)
            assert self._runner.server is not None
            self._acceptor = Acceptor(self._listener.socket, partial(Protocol, self._runner.server))
        except BaseException:
            await self.stop(0.0)
            raise
        log.info("the API is up", socket=str(self._listener.path), passed=self._listener.lock is None)

    def _listen(self, gid: int | None) -> Listener:
        passed, self._passed = self._passed, None
        if passed is None:
            return open_listener(self._settings.socket, gid)
        listener = adopt_listener(passed)
        if listener.path != self._settings.socket:
            log.warning("the service manager's socket is used, not api.socket", socket=str(listener.path))
        return listener

    async def stop(self, timeout: float, *, hurry: asyncio.Event | None = None) -> None:
        """Take the socket away, end the event streams, give requests under way *timeout* seconds, close the rest.

        *hurry* ends the wait early. May be called more than once, and without ``start``.
        """
        deadline = time.monotonic() + timeout
        acceptor, self._acceptor = self._acceptor, None
        runner, self._runner = self._runner, None
        listener, self._listener = self._listener, None
        try:
            if acceptor is not None:
                await acceptor.close()
            if listener is not None:
                listener.withdraw()
            self._streams.close()
            await _unless(hurry, self._in_flight.wait_idle(max(0.0, deadline - time.monotonic())))
            await _unless(hurry, self._calls.drain(max(0.0, deadline - time.monotonic())))
            await self._calls.drain(0.0)
            if runner is not None:
                await runner.cleanup()
        finally:
            if listener is not None:
                listener.release()

    async def _make_runner(self, gid: int | None) -> web.AppRunner:
        handlers = Handlers(self._images, self._node, self._registry, self._streams, self._calls, self._deadlines)
        app = web.Application(
            client_max_size=self._settings.max_body,
            middlewares=[
                counting(self._metrics, self._in_flight),
                explain_failures,
                checking_peers(own_uid=os.geteuid(), gid=gid, group=self._settings.group),
            ],
        )
        app.add_routes(handlers.routes())
        inventory = ContainerHandlers(self._containers, self._streams, self._calls, self._deadlines)
        app.add_routes(inventory.routes())
        checkpoints = CheckpointHandlers(self._checkpoints, self._streams, self._calls, self._deadlines)
        app.add_routes(checkpoints.routes())
        if self._archives is not None:
            app.add_routes(ArchiveHandlers(self._archives, self._calls, self._deadlines).routes())
        topology = TopologyHandlers(self._topology, self._streams, self._calls, self._deadlines)
        app.add_routes(topology.routes())
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_CLEANUP_SECONDS)
        await runner.setup()
        return runner


async def _unless(hurry: asyncio.Event | None, wait: Awaitable[object]) -> None:
    """Await *wait*, but break it off when *hurry* is set."""
    task = asyncio.ensure_future(wait)
    hurried = asyncio.ensure_future(hurry.wait()) if hurry is not None else None
    try:
        await asyncio.wait({task} if hurried is None else {task, hurried}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, hurried):
            if each is not None:
                each.cancel()
        await asyncio.gather(*(each for each in (task, hurried) if each is not None), return_exceptions=True)
