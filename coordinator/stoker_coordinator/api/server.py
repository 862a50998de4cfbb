"""The API on its addresses: starts, serves, stops."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from stoker.service.in_flight import InFlight, OpenStreams
from stoker_coordinator.api.handlers import Handlers
from stoker_coordinator.api.metrics import ApiMetrics
from stoker_coordinator.api.middleware import PageGate, explaining, recognising, recording
from stoker_coordinator.api.peers import group_id
from stoker_coordinator.api.verbs import Verbs
from stoker_coordinator.api.watching import Watches
from stoker_coordinator.audit import Audit
from stoker_coordinator.auth import Tokens
from stoker_coordinator.errors import AlreadyRunning, ConfigError, CoordinatorError
from stoker_coordinator.sealing import Sealer
from stoker_coordinator.settings import ApiSettings, address
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("api")
_CLEANUP_SECONDS = 0.25
_BACKLOG = 512
_LOOK_EVERY = 60.0
IDLE_SECONDS = 75.0
"""A connection with no request, or half the head of one, is closed after so long."""


class ApiServer:
    """Serves the store to people and programs. Pages of other rooms are added as *routes* before `start`."""

    def __init__(
        self,
        settings: ApiSettings,
        store: Store,
        *,
        tokens: Tokens,
        sealer: Sealer,
        audit: Audit,
        registry: CollectorRegistry,
        version: str,
        problems: Callable[[], Mapping[str, str]] = dict,
        routes: tuple[web.RouteDef, ...] = (),
        gate: PageGate | None = None,
        streams: Sequence[OpenStreams] = (),
        idle: float = IDLE_SECONDS,
    ) -> None:
        """*gate*: how people are known who look at *routes* that are pages; *streams*: what these keep open."""
        self._settings = settings
        self._gate = gate
        self._streams = tuple(streams)
        self._idle = idle
        self._tokens = tokens
        self._audit = audit
        metrics = ApiMetrics(registry)
        self._metrics = metrics
        self._in_flight = InFlight()
        self._watches = Watches(
            store, limit=settings.max_watches, bookmarks=settings.bookmarks, count=metrics.watches.set
        )
        handlers = Handlers(
            store,
            Verbs(store, sealer),
            self._watches,
            registry,
            problems,
            version=version,
            page=settings.page,
        )
        self._routes = (*handlers.routes(), *routes)
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None
        self._context: ssl.SSLContext | None = None
        self.port = 0
        """Of the TCP address, once it is open; 0 when there is none."""

    async def start(self) -> None:
        """Listen and serve. AlreadyRunning, ConfigError, CoordinatorError when an address cannot be had."""
        gid = group_id(self._settings.group)
        if gid is None and self._settings.group:
            _log.warning("the socket's group does not exist: root alone may use it", group=self._settings.group)
        app = web.Application(
            client_max_size=self._settings.max_body,
            middlewares=[
                recording(self._metrics, self._audit, self._in_flight),
                explaining,
                recognising(self._tokens, gid, self._gate),
            ],
        )
        app.add_routes(self._routes)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            shutdown_timeout=_CLEANUP_SECONDS,
            access_log=None,
            max_line_size=16384,
            keepalive_timeout=self._idle,
            auto_decompress=False,
        )
        await self._runner.setup()
        try:
            self._socket = open_socket(self._settings.socket, gid)
            await web.SockSite(self._runner, self._socket, backlog=_BACKLOG).start()
            if self._settings.listen:
                await self._listen(self._runner)
        except BaseException:
            await self.stop(0)
            raise

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = address(self._settings.listen)
        context = self._context = tls_context(self._settings)
        site = web.TCPSite(runner, host, port, ssl_context=context, backlog=_BACKLOG)
        try:
            await site.start()
        except OSError as error:
            raise AlreadyRunning(
                f"the API cannot listen on {self._settings.listen}: {error.strerror or error}",
                hint="is another coordinator running?",
            ) from None
        listening = next(found for found in runner.addresses if isinstance(found, tuple))
        self.port = listening[1]
        _log.info("the API is up", listen=f"{host}:{self.port}", tls=context is not None)

    async def run(self) -> None:
        """Read the certificate again whenever its file has changed, until cancelled."""
        loaded = self._stamp()
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            stamp = self._stamp()
            if self._context is None or stamp == loaded:
                continue
            try:
                self._context.load_cert_chain(self._settings.tls_cert, self._settings.tls_key)
            except (OSError, ssl.SSLError) as error:
                _log.error("the new certificate cannot be used; the former holds", why=str(error))
            else:
                _log.info("the certificate was read again")
            loaded = stamp

    def _stamp(self) -> list[int]:
        found = []
        for path in (self._settings.tls_cert, self._settings.tls_key):
            try:
                found.append(Path(path).stat().st_mtime_ns if path else 0)
            except OSError:
                found.append(0)
        return found

    async def stop(self, timeout: float) -> None:
        """Take no more requests, end the watches, give requests under way *timeout* seconds, close the rest."""
        began = time.monotonic()
        runner, self._runner = self._runner, None
        if runner is not None:
            for site in list(runner.sites):
                await site.stop()
            self._watches.close()
            for streams in self._streams:
                streams.close()
            await self._in_flight.wait_idle(max(0.0, timeout - (time.monotonic() - began)))
            await runner.cleanup()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._settings.socket.unlink(missing_ok=True)
        self._audit.close()


def tls_context(settings: ApiSettings) -> ssl.SSLContext | None:
    """Return what the certificate and key of the settings make, None without; ConfigError."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("api.tls_cert and api.tls_key", [f"cannot be used: {error}"]) from None
    return context


def open_socket(path: Path, gid: int | None) -> socket.socket:
    """Return a listening unix socket at *path*; one that nobody listens on any more is replaced. AlreadyRunning."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            if _is_alive(path):
                raise AlreadyRunning(f"another coordinator listens on {path}")
            path.unlink()
        opened = socket.socket(socket.AF_UNIX)
        try:
            before = os.umask(0o117)
            try:
                opened.bind(str(path))
            finally:
                os.umask(before)
            if gid is not None:
                os.chown(path, -1, gid)
        except BaseException:
            opened.close()
            raise
    except OSError as error:
        raise CoordinatorError(f"the socket {path} cannot be made: {error.strerror or error}") from None
    opened.setblocking(False)
    return opened


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
