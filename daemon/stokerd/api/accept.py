"""Takes connections in.

asyncio's own server reports a shortage of file descriptors once for each connection of its backlog, and its retries
outlive the server. This one says it once, waits, and says when it is over.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress

import structlog

log = structlog.get_logger("stokerd.api")

RETRY_SECONDS = 0.1
_BATCH = 64
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Hands each connection of a listening, non-blocking socket to a protocol of *factory*."""

    def __init__(self, listening: socket.socket, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._listening = listening
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._short = False
        self._loop.add_reader(listening, self._accept)

    async def close(self) -> None:
        """Take no more connections in. The listening socket stays open; connections that are up stay, too."""
        self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        for _ in range(_BATCH):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORTAGE:
                    raise
                self._pause(error)
                return
            if self._short:
                self._short = False
                log.info("connections are taken in again")
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection), name="api-connection")
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except BaseException:
            connection.close()
            raise

    def _pause(self, error: OSError) -> None:
        """The kernel keeps the connections that wait; look again in a moment."""
        if not self._short:
            self._short = True
            log.warning("cannot take connections in for now", error=str(error))
        self._loop.remove_reader(self._listening)
        self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        with suppress(ValueError):  # closed in the meantime
            self._loop.add_reader(self._listening, self._accept)
