"""Failures as HTTP: one table from our errors to a status, one body for all of them, as Kubernetes clients know it."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

import msgspec
import structlog
from aiohttp import web

from stoker_coordinator import errors

_log = structlog.get_logger("api")
_RETRY_AFTER_SECONDS = 2


class BadRequest(errors.CoordinatorError):
    """The request itself is malformed."""

    reason: ClassVar[str] = "BadRequest"


class UnknownRoute(errors.NotFound):
    """No such path."""

    reason: ClassVar[str] = "UnknownRoute"


class MethodNotAllowed(errors.CoordinatorError):
    """The path exists, not with this method."""

    reason: ClassVar[str] = "MethodNotAllowed"


class UnsupportedMedia(errors.CoordinatorError):
    """The body is not JSON of a kind that this takes."""

    reason: ClassVar[str] = "UnsupportedMedia"


class TooSlow(errors.CoordinatorError):
    """The body did not arrive in time."""

    reason: ClassVar[str] = "TooSlow"


# The first class that fits counts, so a subclass stands before its base.
_STATUS_OF: tuple[tuple[type[errors.CoordinatorError], int], ...] = (
    (BadRequest, 400),
    (errors.Unauthorized, 401),
    (errors.Forbidden, 403),
    (errors.NotFound, 404),
    (MethodNotAllowed, 405),
    (TooSlow, 408),
    (errors.Conflict, 409),
    (errors.AlreadyExists, 409),
    (errors.AlreadyRunning, 409),
    (errors.Expired, 410),
    (errors.TooLarge, 413),
    (UnsupportedMedia, 415),
    (errors.Invalid, 422),
    (errors.LimitExceeded, 429),
    (errors.StoreFailed, 503),
)


class Failure(msgspec.Struct, frozen=True):
    """What a client is told."""

    code: int
    reason: str
    message: str
    hint: str = ""
    problems: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return it as Kubernetes' Status, with our hint and problems beside."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }
        if self.hint:
            body["hint"] = self.hint
        if self.problems:
            body["problems"] = list(self.problems)
        return body


def failure_of(error: Exception, where: str) -> Failure:
    """Return what to tell about *error*, which came up in *where* (``GET /apis/...``).

    An error of ours speaks for itself. Anything else is a bug: it is logged once, with its traceback under an id, and
    the client gets the id.
    """
    if isinstance(error, errors.CoordinatorError):
        code = next((status for kind, status in _STATUS_OF if isinstance(error, kind)), 500)
        if code >= 500:
            _log.error("request failed", where=where, reason=error.reason, why=error.message)
        problems = error.problems if isinstance(error, errors.Invalid) else ()
        return Failure(code, error.reason, error.message, error.hint or "", problems)
    identity = secrets.token_hex(4)
    _log.error("request failed unexpectedly", where=where, error_id=identity, exc_info=error)
    hint = f"the coordinator's log has the details: journalctl -u stoker-coordinator -g {identity}"
    return Failure(500, "Internal", f"internal error {identity}", hint)


def response_of(failure: Failure) -> web.Response:
    """Return the HTTP response for *failure*."""
    headers = {}
    if failure.code in {429, 503}:
        headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
    if failure.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=failure.code,
        body=msgspec.json.encode(failure.body()),
        content_type="application/json",
        headers=headers,
    )
