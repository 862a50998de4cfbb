"""Failures as HTTP: one table from our errors to a status, one body for all of them."""

from __future__ import annotations

import secrets
from typing import ClassVar, NamedTuple

import msgspec
import structlog
from aiohttp import web

from stoker.objects.node import ErrorBody
from stokerd import errors

log = structlog.get_logger("stokerd.api")

RETRY_AFTER_SECONDS = 5


class PeerRefused(errors.StokerError):
    """The process at the other end of the socket may not use it."""

    reason: ClassVar[str] = "PeerRefused"


class UnknownRoute(errors.StokerError):
    """No such path."""

    reason: ClassVar[str] = "UnknownRoute"


class MethodNotAllowed(errors.StokerError):
    """The path exists, not with this method."""

    reason: ClassVar[str] = "MethodNotAllowed"


class BodyTooLarge(errors.StokerError):
    """The request's body is longer than the limit."""

    reason: ClassVar[str] = "BodyTooLarge"


class UnsupportedMedia(errors.StokerError):
    """The request's body is not plain JSON."""

    reason: ClassVar[str] = "UnsupportedMedia"


class BodyTimeout(errors.StokerError):
    """The request's body did not arrive in time."""

    reason: ClassVar[str] = "BodyTimeout"
    retryable: ClassVar[bool] = True


class DeadlineExceeded(errors.StokerError):
    """The daemon did not finish the request within the API's own deadline."""

    reason: ClassVar[str] = "DeadlineExceeded"
    retryable: ClassVar[bool] = True


class Stopping(errors.StokerError):
    """The daemon is on its way down."""

    reason: ClassVar[str] = "Stopping"
    retryable: ClassVar[bool] = True


# A reason wins over a class: this package does not know the classes of the rooms that know disks and registries.
_STATUS_OF_REASON = {
    "SwitchedOff": 409,
    "CheckpointRefused": 409,
    "ArchiveRefused": 422,
    "PushRefused": 502,
    "BlobMissing": 502,
    "DigestMismatch": 502,
    "CheckpointNoSpace": 507,
    "DiskTooSmall": 507,
    "DiskFull": 507,
    "RuntimeNoSpace": 507,
    "ManifestNotFound": 404,
    "RateLimited": 502,
    "RegistryDenied": 502,
    "RegistryFailed": 502,
    "RegistryProtocol": 502,
    "RegistryTls": 502,
    "RegistryUnauthorized": 502,
    "RegistryUnavailable": 502,
    "RegistryUnreachable": 502,
    "RegistryTimeout": 504,
}

# The first class that fits counts, so a subclass stands before its base.
_STATUS_OF_CLASS: tuple[tuple[type[errors.StokerError], int], ...] = (
    (PeerRefused, 403),
    (UnknownRoute, 404),
    (MethodNotAllowed, 405),
    (BodyTimeout, 408),
    (BodyTooLarge, 413),
    (UnsupportedMedia, 415),
    (Stopping, 503),
    (DeadlineExceeded, 504),
    (errors.InvalidInput, 400),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.AlreadyRunning, 409),
    (errors.LimitExceeded, 429),
    (errors.RuntimeUnavailable, 503),
    (errors.RuntimeTimeout, 504),
    (errors.RuntimeNotFound, 404),
    (errors.RuntimeAlreadyExists, 409),
    (errors.RuntimeUnsupported, 501),
)


class Failure(NamedTuple):
    """What a client is told."""

    status: int
    body: ErrorBody


def status_of(error: errors.StokerError) -> int:
    """Return the HTTP status of an error of ours; 500 when the table does not know it."""
    by_reason = _STATUS_OF_REASON.get(error.reason)
    if by_reason is not None:
        return by_reason
    return next((status for kind, status in _STATUS_OF_CLASS if isinstance(error, kind)), 500)


def failure_of(error: Exception, *, where: str) -> Failure:
    """Return what to tell the client about *error*, which came up in *where* (``GET /v1/pins``).

    An error of ours speaks for itself. Anything else is a bug: it is logged here, once, with its traceback under an
    id, and the client gets the id only.
    """
    if isinstance(error, errors.StokerError):
        status = status_of(error)
        if status == 500:
            log.error("request failed", where=where, reason=error.reason, error=error.message)
        return Failure(status, ErrorBody(reason=error.reason, message=error.message, hint=error.hint or ""))
    error_id = secrets.token_hex(4)
    log.error("request failed unexpectedly", where=where, error_id=error_id, exc_info=error)
    return Failure(
        500,
        ErrorBody(
            reason="Internal",
            message=f"internal error {error_id}",
            hint=f"stokerd's log has the details: journalctl -u stokerd -g {error_id}",
        ),
    )


def response_of(failure: Failure, headers: dict[str, str] | None = None) -> web.Response:
    """Return the HTTP response for *failure*; 503 carries ``Retry-After``."""
    merged = dict(headers or {})
    if failure.status == 503:
        merged.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return web.Response(
        status=failure.status,
        body=msgspec.json.encode(failure.body),
        content_type="application/json",
        headers=merged,
    )
