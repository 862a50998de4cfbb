"""What the service manager is told: systemd's notify protocol (sd_notify(3)), without a library.

Without a service manager (no ``NOTIFY_SOCKET``) every call does nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping

import structlog

_log = structlog.get_logger("life")
_RETRY = 0.2
_MAX_PENDING = 64
_MAX_STATUS = 200


class Notifier:
    """Sends datagrams to the service manager, and keeps its watchdog quiet for as long as the event loop turns.

    Nothing here blocks: when the manager does not take a message, it is kept and sent by `run` in its turn.
    """

    def __init__(self, address: str = "", *, watchdog: float | None = None) -> None:
        """*address*: a path, or ``@`` and a name in the abstract namespace; *watchdog*: seconds until a silent process
        is taken for dead, None when nobody watches."""
        self.watchdog = watchdog
        self._target = _target(address)
        self._socket: socket.socket | None = None
        self._pending: list[bytes] = []
        self._held = asyncio.Event()
        self._failing = False
        self._status = ""
        if address and self._target is None:
            _log.warning("the service manager cannot be told anything", why=f"{address!r} is no unix socket")

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """Take the address and the watchdog from the environment, and out of it: they are not for our children."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        watched = microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0
        ours = not pid or pid == str(os.getpid())
        return cls(address, watchdog=int(microseconds) / 1e6 if watched and ours else None)

    @property
    def enabled(self) -> bool:
        return self._target is not None

    def ready(self) -> None:
        """The start, or a reload, is over."""
        self._send("READY=1")

    def reloading(self) -> None:
        # systemd compares the time with that of its own reload request (Type=notify-reload).
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, seconds: float) -> None:
        """The stop has begun and may take *seconds*: the manager is asked to wait for that long."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def status(self, text: str) -> None:
        """Say in one line how things are; the same line again is not sent."""
        text = " ".join(text.split())[:_MAX_STATUS]
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    async def run(self) -> None:
        """Feed the watchdog, and send what could not be sent at once, until cancelled."""
        interval = self.watchdog / 2 if self.watchdog is not None and self.enabled else None
        while True:
            if interval is not None:
                self._send("WATCHDOG=1")
            self._held.clear()
            pause = min(_RETRY, interval or _RETRY) if self._pending else interval
            try:
                async with asyncio.timeout(pause):
                    await self._held.wait()
            except TimeoutError:
                self._flush()

    def close(self) -> None:
        """Try once more to send what is left."""
        self._flush()
        taken, self._socket = self._socket, None
        if taken is not None:
            taken.close()

    def _send(self, *lines: str) -> None:
        if self._target is None:
            return
        message = "\n".join(lines).encode("utf-8", "replace")
        if message == b"WATCHDOG=1" and self._pending:
            self._pending = [entry for entry in self._pending if entry != message]
        self._pending.append(message)
        del self._pending[:-_MAX_PENDING]
        self._flush()
        if self._pending:
            self._held.set()

    def _flush(self) -> None:
        """Send what waits, in order, for as long as it is taken."""
        if self._target is None:
            return
        while self._pending:
            try:
                if self._socket is None:
                    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                    self._socket.setblocking(False)
                self._socket.sendto(self._pending[0], self._target)
            except OSError as error:
                self._note(error)
                return
            self._pending.pop(0)
        self._note(None)

    def _note(self, error: OSError | None) -> None:
        if error is not None and not self._failing:
            _log.warning("the service manager does not listen; what it is to know waits", why=error.strerror)
        elif error is None and self._failing:
            _log.info("the service manager listens again")
        self._failing = error is not None


def _target(address: str) -> str | bytes | None:
    """Return where to send; None for nowhere, and for what is no unix socket."""
    if address.startswith("@") and len(address) > 1:
        return b"\0" + os.fsencode(address[1:])
    return address if address.startswith("/") else None
