"""What an answer of a registry means: refusals, waits and redirects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from stokerd.errors import redact
from stokerd.registry.errors import (
    ManifestNotFound,
    RateLimited,
    RegistryDenied,
    RegistryError,
    RegistryProtocol,
    RegistryUnauthorized,
    RegistryUnavailable,
    Subject,
    UnsupportedMediaType,
)

MAX_WAIT = 86_400.0
"""The longest Retry-After that is believed, in seconds."""

_BY_STATUS: Mapping[int, type[RegistryError]] = {
    401: RegistryUnauthorized,
    403: RegistryDenied,
    404: ManifestNotFound,
    406: UnsupportedMediaType,
    408: RegistryUnavailable,
    410: ManifestNotFound,
    415: UnsupportedMediaType,
    429: RateLimited,
}
# Some registries send these codes with a status that says something else.
_BY_CODE: Mapping[str, type[RegistryError]] = {
    "TOOMANYREQUESTS": RateLimited,
    "NAME_UNKNOWN": ManifestNotFound,
    "MANIFEST_UNKNOWN": ManifestNotFound,
    "BLOB_UNKNOWN": ManifestNotFound,
}
_WORDS: Mapping[type[RegistryError], str] = {
    RegistryUnauthorized: "it wants credentials",
    RegistryDenied: "it denies access",
    ManifestNotFound: "it has no such image",
    RateLimited: "it limits the rate of requests",
    RegistryUnavailable: "it has trouble of its own",
    UnsupportedMediaType: "it has no manifest of a usable type",
}
_MAX_DETAIL = 300
_MAX_LOCATION = 16 << 10
_PORTS = {"http": 80, "https": 443}
_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"


class _Problem(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _Problems(msgspec.Struct):
    errors: list[_Problem] = []


def error_for_answer(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    subject: Subject,
    *,
    now: datetime,
    hint: str | None = None,
) -> RegistryError:
    """Return the error that an answer with *status* (not 200) means.

    *headers* are looked up as ``Retry-After``; *now* (with a time zone) is what an HTTP date there is compared with.
    """
    problems = _problems(body)
    kind = _BY_STATUS.get(status, RegistryUnavailable if status >= 500 else RegistryProtocol)
    for problem in problems:
        if kind is not RegistryUnauthorized:
            kind = _BY_CODE.get((problem.code or "").upper(), kind)
    retry_after = parse_retry_after(headers.get("Retry-After", ""), now)
    what = f"{_WORDS.get(kind, 'its answer is not one of a registry')} (HTTP {status}"
    detail = "; ".join(f"{item.code or ''}: {item.message or ''}".strip(": ") for item in problems)
    what += f", {_plain(detail)})" if detail else ")"
    if retry_after is not None:
        what += f"; it asks to wait {retry_after:.0f} s"
    return kind(what, subject, status=status, retry_after=retry_after, hint=hint)


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Return the wait in seconds that a Retry-After header asks for (0 to ``MAX_WAIT``), None if it is none.

    *now* has a time zone. Both forms of RFC 9110 are read: seconds and an HTTP date.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:12]), MAX_WAIT)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max((when - now).total_seconds(), 0.0), MAX_WAIT)


def _problems(body: bytes) -> list[_Problem]:
    try:
        return msgspec.json.decode(body, type=_Problems, strict=False).errors[:3]
    except (msgspec.MsgspecError, RecursionError):
        return []


def _plain(text: str) -> str:
    """Foreign text for a message: one short line without secrets or control characters."""
    shown = "".join(c if c.isprintable() else " " for c in redact(text))
    return shown if len(shown) <= _MAX_DETAIL else shown[:_MAX_DETAIL] + "..."


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of *url*: credentials for one origin are not for another."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def redirect_target(url: str, location: str) -> str:
    """Return where *location*, as the answer from *url* gave it, leads. Raises ValueError, with words for people."""
    # Only what no URL may hold is quoted: the rest may be signed as it is.
    location = quote(location[:_MAX_LOCATION], safe=_URL_CHARACTERS, errors="surrogateescape")
    try:
        target = urljoin(url, location).partition("#")[0] if location else ""
    except ValueError:
        target = ""
    if not _is_plain_url(target):
        raise ValueError("it redirects to something that is no plain http or https URL")
    if target.startswith("http:") and url.startswith("https:"):
        raise ValueError("it redirects from https to http, which is refused")
    return target


def _is_plain_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        return False
