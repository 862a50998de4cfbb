"""How an upload goes on: what a registry has taken of a blob, where the rest goes, what a refusal means. Pure.

Source: the OCI distribution specification 1.1, "Pushing a blob in chunks"; and what docker-registry makes of it. That
one says ``Range: 0-0`` to whoever asks for the state of an upload, whatever it has; and when the state that it was
handed is not that of what it has, because a chunk broke off in its middle, it throws the upload away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from stokerd.registry.errors import (
    ManifestNotFound,
    PushRefused,
    RateLimited,
    RegistryDenied,
    RegistryError,
    RegistryUnauthorized,
    RegistryUnreachable,
)

CREATED = 201
ACCEPTED = 202
_STATES = frozenset({200, 202, 204})
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,19})")
_MAX_LOCATION = 16 << 10
_GONE = frozenset({400, 404, 410, 416})
_NO_CHUNKS = frozenset({400, 404, 405, 411, 413, 416, 501})


class Upload(msgspec.Struct, frozen=True):
    """An upload under way: ``offset`` bytes are taken, the next ones go to ``url``."""

    url: str
    offset: int = 0


def begun(url: str, headers: Mapping[str, str]) -> Upload:
    """Return the upload that a 202 has begun. Raises ValueError, with words for people."""
    return Upload(upload_url(url, headers.get("Location", "")))


def went_on(upload: Upload, sent: int, headers: Mapping[str, str]) -> Upload:
    """Return the upload after a chunk of *sent* bytes was accepted. Raises ValueError, with words for people."""
    url = upload_url(upload.url, headers.get("Location", "") or upload.url)
    expected = upload.offset + sent
    taken = _taken(headers.get("Range", ""))
    if taken is None or taken == 1:
        taken = expected
    if not upload.offset < taken <= expected:
        raise ValueError(f"it says that it has {taken} bytes of an upload of which it was sent {expected}")
    return Upload(url, taken)


def resumed(upload: Upload, reached: int, status: int, headers: Mapping[str, str]) -> Upload | None:
    """Return where an upload goes on whose connection broke; None when it has to begin anew.

    *upload* is what the registry had confirmed, *reached* how far it was sent. An answer that says nothing, or one byte
    as docker-registry always does, means that what was confirmed is there.
    """
    if status not in _STATES:
        return None
    taken = _taken(headers.get("Range", ""))
    offset = upload.offset if taken is None or taken == 1 else taken
    if offset > max(reached, upload.offset):
        return None
    try:
        return Upload(upload_url(upload.url, headers.get("Location", "") or upload.url), offset)
    except ValueError:
        return None


def upload_url(base: str, location: str) -> str:
    """Return where *location*, as the answer from *base* gave it, leads. Raises ValueError, with words for people.

    Registries behind a proxy that ends TLS name themselves without it; that one is asked as it was before.
    """
    if not location or len(location) > _MAX_LOCATION:
        raise ValueError("it does not say where the upload goes on")
    try:
        target = urljoin(base, quote(location, safe="!#$%&'()*+,/:;=?@[]~", errors="surrogateescape"))
        parts, own = urlsplit(target), urlsplit(base)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        usable, parts, own, target = False, urlsplit(""), urlsplit(""), ""
    if not usable:
        raise ValueError("the place where the upload goes on is no plain http or https URL")
    if own.scheme == "https" and parts.scheme == "http":
        if parts.hostname != own.hostname:
            raise ValueError("it sends the upload from https to http, which is refused")
        target = own._replace(path=parts.path, query=parts.query).geturl()
    return target.partition("#")[0]


def with_digest(url: str, digest: str) -> str:
    """Return the address that ends the upload."""
    return f"{url}{'&' if urlsplit(url).query else '?'}digest={quote(digest, safe=':')}"


def is_gone(status: int) -> bool:
    """Say whether a status means that the registry has thrown the upload away."""
    return status in _GONE


def takes_no_chunks(status: int, offset: int) -> bool:
    """Say whether a chunk was refused as such: the blob may be taken in one piece nevertheless."""
    return status in _NO_CHUNKS and offset > 0


def push_error(error: RegistryError, where: str) -> RegistryError:
    """Return what an error that is worded for pulls means for a push to *where*, with what to do."""
    about = {"status": error.status, "retry_after": error.retry_after}
    if isinstance(error, RegistryUnauthorized):
        hint = error.hint if error.hint and "were refused are" in error.hint else None
        return RegistryUnauthorized(
            error.what,
            error.subject,
            hint=hint or f"give credentials that may push to {where}",
            **about,  # type: ignore[arg-type]
        )
    if isinstance(error, RegistryDenied):
        return RegistryDenied(error.what, error.subject, hint=f"ask for permission to push to {where}", **about)  # type: ignore[arg-type]
    if error.status in _ADVICE or isinstance(error, ManifestNotFound):
        what, hint = _ADVICE.get(error.status or 0, _ADVICE[404])
        return PushRefused(f"{what}: {error.what}", error.subject, hint=hint, **about)  # type: ignore[arg-type]
    return error


_ADVICE: Mapping[int, tuple[str, str]] = {
    404: ("it has no such repository, or lacks a blob", "create the repository (or project) there, or check its name"),
    405: ("it takes no pushes", "push to another registry; this one is read-only or a mirror"),
    413: ("it is too large for what stands before the registry", "raise the limit of bodies in the registry's proxy"),
    507: ("its storage is full", "free space in the registry"),
}


def is_passing(error: RegistryError) -> bool:
    """Say whether a failure may have been one of the moment."""
    return error.retryable or isinstance(error, RegistryUnreachable | RateLimited)


def pause(attempt: int, error: RegistryError, first: float, longest: float = 60.0) -> float | None:
    """Return for how long to wait before try number *attempt* (from 1); None to give up: the registry asks for more."""
    asked = error.retry_after or 0.0
    return None if asked > longest else max(asked, min(first * 2**attempt, longest))


def _taken(text: str) -> int | None:
    match = _RANGE.fullmatch(text.strip())
    return int(match[1]) + 1 if match else None
