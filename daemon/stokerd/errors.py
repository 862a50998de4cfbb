"""One root error, one class per family.

Every error says what failed (``message``), may say what to do (``hint``), has a stable machine-readable ``reason``
(CamelCase, as Kubernetes conditions use) and knows whether trying the same thing again can help (``retryable``).
Messages never hold a secret: who raises one with foreign text in it passes that text through ``redact`` first.
"""

from __future__ import annotations

from typing import ClassVar

from stoker.redaction import redact as redact  # noqa: PLC0414 - everybody here knows it by this name


class StokerError(Exception):
    """Root of all errors that Stoker raises on purpose."""

    reason: ClassVar[str] = "Internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


# ---------------------------------------------------------------------------------------------- input and settings


class InvalidInput(StokerError):
    """What was asked for is malformed; nothing was done."""

    reason = "InvalidInput"


class ConfigError(InvalidInput):
    """The configuration file has errors; ``problems`` holds one line for each of them."""

    reason = "InvalidConfig"

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: {len(problems)} error(s):\n" + "\n".join(f"  {line}" for line in problems))
        self.source = source
        self.problems = tuple(problems)


class NotFound(StokerError):
    """The object that was named does not exist here."""

    reason = "NotFound"


class Conflict(StokerError):
    """The request contradicts what is already there or under way."""

    reason = "Conflict"


class LimitExceeded(StokerError):
    """A limit that the operator set would be passed."""

    reason = "LimitExceeded"


class AlreadyRunning(StokerError):
    """Another stokerd holds this socket or this state directory."""

    reason = "AlreadyRunning"


class JournalError(StokerError):
    """The daemon's own durable state cannot be read or written."""

    reason = "JournalFailed"


# ---------------------------------------------------------------------------------------------- containerd


class RuntimeFailure(StokerError):
    """A call to the container runtime failed; ``status`` is the gRPC status name, ``call`` the method."""

    reason = "RuntimeFailed"

    def __init__(self, message: str, *, status: str = "", call: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.call = call


class RuntimeUnavailable(RuntimeFailure):
    """The runtime's socket is missing, refuses, or broke during the call."""

    reason = "RuntimeUnavailable"
    retryable = True


class RuntimeTimeout(RuntimeFailure):
    """The runtime did not answer within the deadline of the call."""

    reason = "RuntimeTimeout"
    retryable = True


class RuntimeNotFound(RuntimeFailure):
    """The runtime does not know the object."""

    reason = "RuntimeNotFound"


class RuntimeBusy(RuntimeFailure):
    """The runtime is doing something with the object already, for somebody who may have gone; or the object does not
    keep still for what is to be done."""

    reason = "RuntimeBusy"
    retryable = True


class RuntimeAlreadyExists(RuntimeFailure):
    """The runtime has an object of that name already."""

    reason = "RuntimeAlreadyExists"


class RuntimeInvalid(RuntimeFailure):
    """The runtime refuses the arguments, or the state of the object does not allow the call."""

    reason = "RuntimeInvalid"


class RuntimeUnsupported(RuntimeFailure):
    """This runtime does not have the method or the service."""

    reason = "RuntimeUnsupported"


class RuntimeNoSpace(RuntimeFailure):
    """The runtime's file system is full (bytes or inodes)."""

    reason = "RuntimeNoSpace"
