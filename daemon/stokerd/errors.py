"""One root error, one class per family.

Every error says what failed (``message``), may say what to do (``hint``), has a stable machine-readable ``reason``
(CamelCase, as Kubernetes conditions use) and knows whether trying the same thing again can help (``retryable``).
Messages never hold a secret: who raises one with foreign text in it passes that text through ``redact`` first.
"""

from __future__ import annotations

import re
from typing import ClassVar

_FIELD = r"(?<![\w-])(?:[\w-]{0,40}(?:password|passwd|secret|token|credential|authorization)[\w-]{0,40}|auth)"
_HARMLESS_PARAMETERS = "scope|service|ns|digest|mount|from|n|last"  # of the registry API and of token servers

_REDACTIONS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        # Fields, first of all, while they are whole: JSON, once more quoted or not, and a printed dict, cut off or not.
        rf"(?i)(\\*[\"']{_FIELD}\\*[\"']\s*:\s*)"
        r"(?:\"(?:[^\"\\]|\\.)*(?:\"|\\?$)|'(?:[^'\\]|\\.)*(?:'|\\?$)|(\\+)\".*?(?:(?<!\\)\2\"|$)|[^\s,}\]\[{\"']+)",
        # Headers. "authorization: " alone is also a piece of prose in containerd's messages.
        r"(?i)(\bauthorization\s*[:=]\s*\[?(?:basic|bearer)\s+)\[?[^\s\"',;\]]+\]?",
        r"(?i)(\bauthorization\s*[:=]\s*\[?(?:digest|negotiate|ntlm|token|apikey|aws4-[\w-]+)\s)[^\n]+",
        r"(?i)(\bauthorization\s*[:=]\s*)(?=\S{0,200}\d|\S{16})\[?[^\s\"',;\]]+\]?(?=[ \"',;\]]*(?:\n|$))",
        r"(?i)(\bx-[\w-]{0,40}(?:auth|token|secret|password|key|signature)[\w-]{0,40}\s*:\s*)\[?[^\s\"',;\]]+\]?",
        r"(?i)(\b(?:password|passwd)\s*:\s*)[^\s\"',;}]+(?=\s*(?:[,;}\n]|$))",
        # Parameters of URLs and of forms: signatures of presigned URLs come under many names.
        rf"(?i)([?&](?!(?:{_HARMLESS_PARAMETERS})=)[\w.%-]{{1,80}}=)[^&\s\"'<>#\\]+",
        rf"(?i)({_FIELD}=)(?:\"(?:[^\"\\]|\\.)*(?:\"|\\?$)|[^\s\"',;&}}]+)",
        # Credentials that stand alone; "basic authentication" is none.
        r"\b((?i:basic|bearer)\s+)(?=[\w+/.~-]*(?:\d|[a-z][A-Z]|=))[\w+/=.~-]{8,}",
        r"()\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",
    )
)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s\"<>]*@")


def redact(text: str) -> str:
    """Return *text* without the secrets that are known by their place: in URLs, headers, and fields named like one."""
    text = _URL_CREDENTIALS.sub("", text)
    for pattern in _REDACTIONS:
        text = pattern.sub(r"\1[redacted]", text)
    return text


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
