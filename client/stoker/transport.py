"""How the client talks to stokerd: HTTP over a unix socket, and streams of events that connect again by themselves."""

from __future__ import annotations

import asyncio
import errno
import grp
import io
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from stoker.defaults import DEFAULT_SOCKET
from stoker.errors import ClientError, DaemonUnreachable
from stoker.objects.node import ErrorBody
from stoker.sse import Message, SseParser

T = TypeVar("T")
OnRetry = Callable[[DaemonUnreachable, float], None]
Reader = Callable[[Message], T | None]
"""Makes an event of a message; None for kinds that a newer stokerd may send."""

_BASE = "http://stokerd"
# stokerd ends every request by a deadline of its own; this one is for a stokerd that hangs.
_ANSWER_SECONDS = 330.0
_CONNECT_SECONDS = 10.0
# Three heartbeats of a stream.
_SILENCE_SECONDS = 45.0
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_LOOK = "systemctl status stokerd"
_VERSIONS = "are stoker and stokerd of the same version?"


class Transport:
    """Connections to the stokerd behind *socket*, as an async context manager."""

    def __init__(self, socket: Path = DEFAULT_SOCKET) -> None:
        self.socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: msgspec.Struct | None = None,
        query: dict[str, str] | None = None,
        also: int = 200,
    ) -> T:
        """*also*: a status beside 2xx that has a *kind* as its body."""
        status, raw = await self._exchange(method, path, body, query)
        if status // 100 != 2 and status != also:
            raise error_of(status, raw)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            if status // 100 != 2:
                raise error_of(status, raw) from None
            raise ClientError(
                "BadAnswer", f"cannot read stokerd's answer to {method} {path}: {error}", _VERSIONS, status
            ) from None

    async def _text(self, path: str) -> str:
        status, raw = await self._exchange("GET", path, None, None)
        if status != 200:
            raise error_of(status, raw)
        return raw.decode("utf-8", "replace")

    async def _exchange(
        self, method: str, path: str, body: msgspec.Struct | None, query: dict[str, str] | None
    ) -> tuple[int, bytes]:
        options: dict[str, Any] = {"params": query}
        if body is not None:
            options["data"] = io.BytesIO(msgspec.json.encode(body))
            options["headers"] = {"Content-Type": "application/json"}
        try:
            async with self._open().request(method, _BASE + path, **options) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    # ------------------------------------------------------------------------------------------ events

    async def _events(self, path: str, read: Reader[T], alive: asyncio.Event | None = None) -> AsyncGenerator[T, None]:
        """*alive* is set when anything came, a heartbeat too."""
        parser = SseParser()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        try:
            async with self._open().get(_BASE + path, timeout=timeout) as response:
                if response.status != 200:
                    raise error_of(response.status, await response.read())
                async for chunk in response.content.iter_any():
                    if alive is not None:
                        alive.set()
                    for message in parser.feed(chunk):
                        if message.event == "error":
                            raise error_of(500, message.data)
                        event = read(message)
                        if event is not None:
                            yield event
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise ClientError("BadAnswer", f"cannot read stokerd's events: {error}", _VERSIONS) from error

    async def _follow(
        self, path: str, read: Reader[T], over: Callable[[T], bool], *, patience: float, on_retry: OnRetry | None
    ) -> AsyncGenerator[T, None]:
        """Yield events until one is the last by *over*; connect again until nothing was heard for *patience* seconds.

        *on_retry* is told the cause and the pause in seconds. DaemonUnreachable: out of patience.
        """
        loop = asyncio.get_running_loop()
        heard = loop.time()
        delay = _FIRST_DELAY
        while True:
            alive = asyncio.Event()
            try:
                async with aclosing(self._events(path, read, alive)) as events:
                    async for event in events:
                        heard, delay = loop.time(), _FIRST_DELAY
                        yield event
                        heard = loop.time()
                        if over(event):
                            return
                lost = DaemonUnreachable("stokerd ended the stream before the end was told", "is it restarting?")
            except DaemonUnreachable as error:
                lost = error
            except ClientError as error:
                if error.status != 503:
                    raise
                lost = DaemonUnreachable(error.message, error.hint)
            now = loop.time()
            if alive.is_set():
                # A stream that was quiet was there all the same: the patience begins when it breaks.
                heard = now
            if now - heard + delay > patience:
                raise lost
            if on_retry is not None:
                on_retry(lost, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    # ------------------------------------------------------------------------------------------ the connection

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # A connection each: on a unix socket that costs nothing, and none is stale after stokerd restarted.
                connector=aiohttp.UnixConnector(path=str(self.socket), limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=_CONNECT_SECONDS),
                trust_env=False,
            )
        return self._session

    def _unreachable(self, error: BaseException) -> DaemonUnreachable:
        if isinstance(error, TimeoutError):
            return DaemonUnreachable(f"stokerd on {self.socket} does not answer", _LOOK)
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        code = getattr(cause, "errno", None)
        if code == errno.ENOENT:
            return DaemonUnreachable(f"there is no socket {self.socket}", f"is stokerd running? {_LOOK}")
        if code == errno.ECONNREFUSED:
            return DaemonUnreachable(f"nothing listens on {self.socket}", f"stokerd has ended; {_LOOK}")
        if code in {errno.EACCES, errno.EPERM}:
            return DaemonUnreachable(f"no permission to connect to {self.socket}", _membership(self.socket))
        what = str(cause) or type(cause).__name__
        return DaemonUnreachable(f"the connection to stokerd on {self.socket} broke: {what}", _LOOK)


def part(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def error_of(status: int, raw: bytes) -> ClientError:
    """Return the failure that an answer tells of."""
    try:
        body = msgspec.json.decode(raw, type=ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = raw[:200].decode("utf-8", "replace").strip()
        return ClientError("BadAnswer", f"HTTP status {status}: {text or 'no body'}", "", status)
    return ClientError(body.reason, body.message, body.hint, status)


def _membership(socket: Path) -> str:
    try:
        owner = socket.stat().st_gid
    except OSError:
        return "run as root, or ask for access to the socket's directory"
    if owner == 0:
        return "only root may use it: try sudo"
    try:
        group = grp.getgrgid(owner).gr_name
    except KeyError:
        group = str(owner)
    return f"join its group and log in again: sudo usermod -aG {group} $USER"
