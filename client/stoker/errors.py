"""What can go wrong on the client's side. Cheap to import."""

from __future__ import annotations


class ClientError(Exception):
    """A request failed.

    ``reason`` is machine-readable (CamelCase), ``message`` says what failed, ``hint`` what to do about it (may be
    empty), ``status`` is the HTTP status, 0 when there was no answer.
    """

    def __init__(self, reason: str, message: str, hint: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint
        self.status = status

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class DaemonUnreachable(ClientError):
    """stokerd does not answer: nothing listens, this user may not connect, or the connection broke."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("DaemonUnreachable", message, hint)


class ManifestError(ValueError):
    """A manifest is malformed. ``line`` and ``column`` count from 1; 0 when the fault is in no particular place."""

    def __init__(self, source: str, message: str, line: int = 0, column: int = 0) -> None:
        place = source
        if line:
            place += f":{line}"
            if column:
                place += f":{column}"
        super().__init__(f"{place}: {message}")
        self.source = source
        self.message = message
        self.line = line
        self.column = column
