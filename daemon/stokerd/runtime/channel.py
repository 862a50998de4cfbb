"""One connection to one socket, and how calls are made over it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import grpc

from stokerd.errors import RuntimeTimeout
from stokerd.runtime.status import Observer, closed, guarded, runtime_error, was_cancelled

Request = TypeVar("Request")
Response = TypeVar("Response")

NAMESPACE = "k8s.io"
MAX_MESSAGE = 64 << 20
"""A node with some ten thousand images lists more than gRPC's default of 4 MiB."""

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.default_authority", "localhost"),
)
"""Pings go out only while calls run, and seldom: containerd allows one in five minutes and closes the connection of who
asks more often, with the pull that runs over it. The authority is named since containerd refuses the socket's path as
one."""


def _ignore(_method: str, _status: str, _seconds: float) -> None:
    """Observe nothing."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A channel with the deadlines and the observer that all calls over it share. Seconds."""

    channel: grpc.aio.Channel
    timeout: float
    gc_timeout: float
    observe: Observer = field(default=_ignore)

    async def unary(
        self,
        name: str,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        unlimited: bool = False,
        lease: str | None = None,
    ) -> Response:
        """Make one call. ``unlimited`` drops the deadline: the caller watches over the call in its own way."""
        deadline = None if unlimited else (timeout or self.timeout)

        async def call() -> Response:
            return await method(request, timeout=deadline, metadata=metadata(lease))

        return await guarded(name, call(), self.observe)

    async def stream(
        self,
        name: str,
        method: grpc.aio.UnaryStreamMultiCallable[Request, Response],
        request: Request,
        *,
        unlimited: bool = False,
    ) -> AsyncGenerator[Response, None]:
        """Read a server's stream to its end. The deadline is gRPC's own: breaking off a read from outside leaks."""
        try:
            call = method(request, timeout=None if unlimited else self.timeout, metadata=metadata())
        except grpc.aio.UsageError:
            raise closed(name) from None
        status = "OK"
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            raise runtime_error(error, name) from None
        except asyncio.CancelledError:
            status = "CANCELLED"
            if was_cancelled():
                raise
            raise closed(name) from None
        finally:
            call.cancel()
            self.observe(name, status, 0.0)

    async def exchange(
        self,
        name: str,
        method: grpc.aio.StreamStreamMultiCallable[Request, Response],
        requests: AsyncIterable[Request],
        *,
        lease: str | None = None,
    ) -> Response | None:
        """Send *requests* over one stream, each after the answer to the one before; return the last answer.

        The deadline is that of each step, since the whole takes as long as what is sent. Answers are read as they
        come: left unread they would fill the window, and the server would stop.
        """

        async def call() -> Response | None:
            stream = method(metadata=metadata(lease))
            last: Response | None = None
            try:
                async for request in requests:
                    async with asyncio.timeout(self.gc_timeout):
                        with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: reading says how
                            await stream.write(request)
                        answer = await stream.read()
                    if answer is grpc.aio.EOF:
                        break
                    last = cast("Response", answer)
                async with asyncio.timeout(self.timeout):
                    await stream.done_writing()
                    while await stream.read() is not grpc.aio.EOF:
                        """What comes after the last answer means nothing to us; its end does."""
            except TimeoutError:
                raise RuntimeTimeout(f"containerd did not answer {name} in time", call=name) from None
            finally:
                stream.cancel()
            return last

        return await guarded(name, call(), self.observe)


def metadata(lease: str | None = None) -> grpc.aio.Metadata:
    """Return the headers of a call: containerd's namespace, and the lease that owns what the call makes.

    The lease header reaches CRI as well: its pull then works under our lease instead of one of its own, which is what
    makes a broken pull resumable and its remains removable.
    """
    entries = [("containerd-namespace", NAMESPACE)]
    if lease:
        entries.append(("containerd-lease", lease))
    return grpc.aio.Metadata(*entries)


def open_channel(path: str) -> grpc.aio.Channel:
    """Return a channel to the unix socket *path*; it connects when it is first used, and again when it broke."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS)
