"""The Python client of stokerd's local API (asyncio).

    async with Client() as client:
        job = await client.warm(WarmRequest(images=["docker.io/library/nginx:1.27"]))
        async for event in client.follow(job.id):
            ...

Every method raises ClientError when stokerd refuses or fails, and DaemonUnreachable (a ClientError) when it cannot be
talked to.
"""

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
from stoker.objects.images import (
    Attempt,
    Event,
    ImageStatus,
    JobEvent,
    JobStatus,
    KeepRequest,
    KeepStatus,
    PinList,
    PinRequest,
    PinStatus,
    Plan,
    PlanRequest,
    RemoveResult,
    WarmRequest,
)
from stoker.objects.node import ErrorBody, Health, NodeInfo
from stoker.sse import Message, SseParser

__all__ = ["DEFAULT_SOCKET", "Client", "ClientError", "DaemonUnreachable"]

T = TypeVar("T")

_BASE = "http://stokerd"
# stokerd ends every request by a deadline of its own; this one is for a stokerd that hangs.
_ANSWER_SECONDS = 330.0
_CONNECT_SECONDS = 10.0
# Three heartbeats of a stream.
_SILENCE_SECONDS = 45.0
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_EVENTS = frozenset({"item", "job", "image"})
_decode_event = msgspec.json.Decoder[Event](Event).decode


class Client:
    """A client of the stokerd behind *socket*. Use it as an async context manager, or call ``close``."""

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

    # ------------------------------------------------------------------------------------------ jobs

    async def warm(self, request: WarmRequest) -> JobStatus:
        """Ask for images to be made present; returns at once, with the job."""
        return await self._call("POST", "/v1/images/warm", JobStatus, body=request)

    async def plan(self, request: PlanRequest) -> Plan:
        """Return what warming would download and need on disk; nothing is pulled."""
        return await self._call("POST", "/v1/images/plan", Plan, body=request)

    async def jobs(self) -> list[JobStatus]:
        """Return the jobs stokerd knows, newest first, without their items."""
        return await self._call("GET", "/v1/jobs", list[JobStatus])

    async def job(self, job_id: str) -> JobStatus:
        """Return one job, by its id or the unique start of it."""
        return await self._call("GET", _job_path(job_id), JobStatus)

    async def cancel(self, job_id: str) -> JobStatus:
        """Cancel a job: pulls that no other job wants are stopped."""
        return await self._call("DELETE", _job_path(job_id), JobStatus)

    async def follow(
        self,
        job_id: str,
        *,
        patience: float = 120.0,
        on_retry: Callable[[DaemonUnreachable, float], None] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield a JobEvent, then ItemEvents, and a JobEvent with the end of the job as the last.

        The job goes on in stokerd when the connection breaks or stokerd restarts, so this connects again, with growing
        pauses, until nothing was heard for *patience* seconds; then it raises DaemonUnreachable. After each break a
        JobEvent brings the whole state again. *on_retry* is told the cause and the pause in seconds.
        """
        loop = asyncio.get_running_loop()
        heard = loop.time()
        delay = _FIRST_DELAY
        while True:
            try:
                async with aclosing(self._events(_job_path(job_id) + "/events")) as events:
                    async for event in events:
                        heard, delay = loop.time(), _FIRST_DELAY
                        yield event
                        heard = loop.time()
                        if isinstance(event, JobEvent) and event.job.state != "Active":
                            return
                lost = DaemonUnreachable("stokerd ended the stream before the job was over", "is it restarting?")
            except DaemonUnreachable as error:
                lost = error
            except ClientError as error:
                if error.status != 503:
                    raise
                lost = DaemonUnreachable(error.message, error.hint)
            if loop.time() - heard + delay > patience:
                raise lost
            if on_retry is not None:
                on_retry(lost, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Yield what happens to images on the node, until the caller stops or the connection breaks."""
        async with aclosing(self._events("/v1/watch")) as events:
            async for event in events:
                yield event

    # ------------------------------------------------------------------------------------------ images

    async def images(self) -> list[ImageStatus]:
        """Return the images on the node."""
        return await self._call("GET", "/v1/images", list[ImageStatus])

    async def remove(self, image: str, *, force: bool = False) -> RemoveResult:
        """Remove an image; ClientError with reason Conflict when it is pinned, kept or in use, and not *force*."""
        query = {"image": image, "force": "1"} if force else {"image": image}
        return await self._call("DELETE", "/v1/images", RemoveResult, query=query)

    async def history(self, image: str | None = None, *, limit: int = 100) -> list[Attempt]:
        """Return the latest *limit* pulls of *image*, or of all images; newest first."""
        query = {"limit": str(limit)}
        if image:
            query["image"] = image
        return await self._call("GET", "/v1/history", list[Attempt], query=query)

    # ------------------------------------------------------------------------------------------ pins and keeps

    async def pins(self) -> PinList:
        """Return all pins."""
        return await self._call("GET", "/v1/pins", PinList)

    async def pin(self, request: PinRequest) -> PinStatus:
        """Protect an image from the kubelet's garbage collection."""
        return await self._call("PUT", "/v1/pins", PinStatus, body=request)

    async def unpin(self, image: str) -> PinStatus:
        """End a pin."""
        return await self._call("DELETE", "/v1/pins", PinStatus, query={"image": image})

    async def keeps(self) -> list[KeepStatus]:
        """Return the images that are warmed again whenever they go away."""
        return await self._call("GET", "/v1/keeps", list[KeepStatus])

    async def keep(self, request: KeepRequest) -> KeepStatus:
        """Warm an image again whenever something removes it."""
        return await self._call("PUT", "/v1/keeps", KeepStatus, body=request)

    async def unkeep(self, image: str) -> KeepStatus:
        """End that; the image stays as it is."""
        return await self._call("DELETE", "/v1/keeps", KeepStatus, query={"image": image})

    # ------------------------------------------------------------------------------------------ the daemon

    async def node(self) -> NodeInfo:
        """Return what stokerd found out about its node."""
        return await self._call("GET", "/v1/node", NodeInfo)

    async def health(self) -> Health:
        """Return whether stokerd is alive and its runtime answers; a bad state is a value, not an error."""
        return await self._call("GET", "/healthz", Health, also=503)

    async def readiness(self) -> Health:
        """Return whether stokerd has finished starting; a bad state is a value, not an error."""
        return await self._call("GET", "/readyz", Health, also=503)

    async def metrics(self) -> str:
        """Return stokerd's metrics in Prometheus' text format."""
        status, raw = await self._exchange("GET", "/metrics", None, None)
        if status != 200:
            raise _error(status, raw)
        return raw.decode()

    # ------------------------------------------------------------------------------------------ HTTP

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
            raise _error(status, raw)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            if status // 100 != 2:
                raise _error(status, raw) from None
            raise ClientError(
                "BadAnswer", f"cannot read stokerd's answer to {method} {path}: {error}", _VERSIONS, status
            ) from None

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

    async def _events(self, path: str) -> AsyncGenerator[Event, None]:
        parser = SseParser()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        try:
            async with self._open().get(_BASE + path, timeout=timeout) as response:
                if response.status != 200:
                    raise _error(response.status, await response.read())
                async for chunk in response.content.iter_any():
                    for message in parser.feed(chunk):
                        event = _event(message)
                        if event is not None:
                            yield event
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise ClientError("BadAnswer", f"cannot read stokerd's events: {error}", _VERSIONS) from error

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


_LOOK = "systemctl status stokerd"
_VERSIONS = "are stoker and stokerd of the same version?"


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _event(message: Message) -> Event | None:
    """Return the event of a message; None for kinds that a newer stokerd may send."""
    if message.event == "error":
        raise _error(500, message.data)
    if message.event not in _EVENTS:
        return None
    return _decode_event(message.data)


def _error(status: int, raw: bytes) -> ClientError:
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
