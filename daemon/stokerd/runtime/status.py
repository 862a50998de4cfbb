"""The one table from gRPC status to our errors, and the way every call goes through it.

Sources: the gRPC status codes, and containerd's errdefs, which carries its error classes in them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TypeVar

import grpc

from stokerd.errors import (
    RuntimeAlreadyExists,
    RuntimeBusy,
    RuntimeFailure,
    RuntimeInvalid,
    RuntimeNoSpace,
    RuntimeNotFound,
    RuntimeTimeout,
    RuntimeUnavailable,
    RuntimeUnsupported,
    redact,
)

T = TypeVar("T")
Observer = Callable[[str, str, float], None]
"""Told of every call: method, status name, seconds."""

_ERRORS: Mapping[grpc.StatusCode, type[RuntimeFailure]] = {
    grpc.StatusCode.UNAVAILABLE: RuntimeUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: RuntimeTimeout,
    grpc.StatusCode.NOT_FOUND: RuntimeNotFound,
    grpc.StatusCode.ALREADY_EXISTS: RuntimeAlreadyExists,
    grpc.StatusCode.INVALID_ARGUMENT: RuntimeInvalid,
    grpc.StatusCode.FAILED_PRECONDITION: RuntimeInvalid,
    grpc.StatusCode.OUT_OF_RANGE: RuntimeInvalid,
    grpc.StatusCode.UNIMPLEMENTED: RuntimeUnsupported,
}
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_BROKEN_TRANSPORT = re.compile(
    r"failed to connect|connect failed|socket closed|stream removed|connection (?:reset|refused|attempt)|goaway"
    r"|transport|channel|keepalive|endpoint|recvmsg|broken pipe|name resolution|no such file",
    re.IGNORECASE,
)

_OF_CONTAINERD = re.compile(r"^failed to (?:pull|resolve|copy|do request|unpack|extract)", re.IGNORECASE)
"""What containerd says of a registry's connections reads like what gRPC says of containerd's."""


_SAYINGS: tuple[tuple[re.Pattern[str], type[RuntimeFailure]], ...] = (
    (re.compile(r"^failed to reserve (?:container|sandbox) name "), RuntimeAlreadyExists),
    (re.compile(r"\bcontainer is (?:already )?in (?:starting|removing) state"), RuntimeBusy),
    (re.compile(r"\bcontainer is in CONTAINER_[A-Z]+ state"), RuntimeInvalid),
    (re.compile(r"\bpause failed: (?:unable to freeze|timeout of \S+ reached waiting for the cgroup)\b"), RuntimeBusy),
    (re.compile(r'^sandbox container "[^"]*" is not running'), RuntimeInvalid),
)
"""What CRI and runc say of pods and containers, whose statuses tell nothing: UNKNOWN in 1.x, now and then another in
2.x."""

_NO_STATUS = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.FAILED_PRECONDITION})
_OUT_OF_TIME = re.compile(
    r"(?:stream removed|rpc error|code = deadlineexceeded|desc =|context|deadline exceeded|[\s().:,;])*", re.IGNORECASE
)
"""gRPC's and Go's own words, which tell nothing that the status does not."""


_OF_CORE = "Internal error from Core"
"""What grpc.aio says, as INTERNAL, of a message that it could not send since the stream has ended. That hides the
status with which it ended (https://github.com/grpc/grpc/issues/36066)."""


def runtime_error(error: grpc.aio.AioRpcError, call: str) -> RuntimeFailure:
    """Return our error for what *call* (the method's short name) raised."""
    code, details = error.code(), redact(error.details() or "")
    if code is grpc.StatusCode.INTERNAL and details == _OF_CORE:
        return ended(call)
    kind = _ERRORS.get(code, RuntimeFailure)
    if code in _NO_STATUS:
        kind = next((each for pattern, each in _SAYINGS if pattern.search(details)), kind)
    if _NO_SPACE.search(details):
        kind = RuntimeNoSpace
    elif kind is RuntimeUnavailable and (_OF_CONTAINERD.search(details) or not _BROKEN_TRANSPORT.search(details)):
        # containerd uses UNAVAILABLE for its own errors too (a locked reference, a registry that answers 503).
        kind = RuntimeFailure
    if kind is RuntimeUnavailable:
        return RuntimeUnavailable(
            f"containerd cannot be reached ({call}: {details})",
            status=code.name,
            call=call,
            hint="is containerd running? (stoker doctor)",
        )
    if kind is RuntimeTimeout:
        own = "" if _OUT_OF_TIME.fullmatch(details) else details
        return RuntimeTimeout(own or f"containerd did not answer {call} in time", status=code.name, call=call)
    return kind(details or f"{call} failed: {code.name}", status=code.name, call=call)


def closed(call: str) -> RuntimeUnavailable:
    """Return the error of a call whose connection this process has given up."""
    return RuntimeUnavailable(f"the connection to containerd was closed ({call})", call=call)


def ended(call: str) -> RuntimeUnavailable:
    """Return the error of a stream that containerd, which ends none before it was read, has ended all the same."""
    return RuntimeUnavailable(f"containerd ended {call} before its end", status="INTERNAL", call=call)


def was_cancelled() -> bool:
    """Tell a task that was cancelled from a call that was: closing a channel cancels the calls over it, and gRPC lets
    whoever awaits one see the same CancelledError."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def guarded(call: str, awaitable: Awaitable[T], observe: Observer) -> T:
    """Await one unary call; count it; raise our errors only."""
    started, status = perf_counter(), "OK"
    try:
        return await awaitable
    except grpc.aio.AioRpcError as error:
        status = error.code().name
        raise runtime_error(error, call) from None
    except grpc.aio.UsageError as error:  # the channel was closed before the call
        status = "CLOSED"
        raise closed(call) from error
    except grpc.aio.InternalError as error:  # a stream that has ended cannot be half-closed
        status = "INTERNAL"
        raise ended(call) from error
    except asyncio.CancelledError:
        status = "CANCELLED"
        if was_cancelled():
            raise
        raise closed(call) from None
    except BaseException:
        status = "UNKNOWN"
        raise
    finally:
        observe(call, status, perf_counter() - started)
