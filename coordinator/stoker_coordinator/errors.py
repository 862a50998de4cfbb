"""One root error, one class per family, as stokerd has them.

Every error says what failed (``message``), may say what to do (``hint``), has a stable machine-readable ``reason`` and
knows whether trying the same thing again can help (``retryable``). Messages never hold a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class CoordinatorError(Exception):
    """Root of all errors that the coordinator raises on purpose."""

    reason: ClassVar[str] = "Internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(CoordinatorError):
    """The configuration file has errors; ``problems`` holds one line for each of them."""

    reason = "InvalidConfig"

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        super().__init__(f"{source}: {len(problems)} error(s):\n" + "\n".join(f"  {line}" for line in problems))
        self.source = source
        self.problems = tuple(problems)


class AlreadyRunning(CoordinatorError):
    """Another coordinator holds this address or this state directory."""

    reason = "AlreadyRunning"


# ---------------------------------------------------------------------------------------------- objects


class Invalid(CoordinatorError):
    """An object, or what was asked about one, is malformed; ``problems`` has one line for each fault, path first."""

    reason = "Invalid"

    def __init__(self, what: str, problems: Sequence[str] = (), *, hint: str | None = None) -> None:
        super().__init__(f"{what}: {'; '.join(problems)}" if problems else what, hint=hint)
        self.problems = tuple(problems)


class NotFound(CoordinatorError):
    """There is no such object."""

    reason = "NotFound"


class AlreadyExists(CoordinatorError):
    """There is an object of that name."""

    reason = "AlreadyExists"


class Conflict(CoordinatorError):
    """The object has changed since it was read, or is not the one that was meant."""

    reason = "Conflict"
    retryable = True


class Expired(CoordinatorError):
    """What is asked for is older than the history that is kept: list anew, and watch from there."""

    reason = "Expired"


class TooLarge(CoordinatorError):
    """An object or a request is larger than it may be."""

    reason = "TooLarge"


class LimitExceeded(CoordinatorError):
    """A limit that the operator set would be passed."""

    reason = "LimitExceeded"


# ---------------------------------------------------------------------------------------------- the store itself


class StoreFailed(CoordinatorError):
    """The store cannot be read or written; what was asked for was not done."""

    reason = "StoreFailed"
    retryable = True


class StoreClosed(StoreFailed):
    """The store is closed, or closing."""

    reason = "Stopping"


# ---------------------------------------------------------------------------------------------- who may


class Unauthorized(CoordinatorError):
    """Nobody knows who is asking."""

    reason = "Unauthorized"


class Forbidden(CoordinatorError):
    """Who is asking may not."""

    reason = "Forbidden"
