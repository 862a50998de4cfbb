"""What a failed pull means. Pure.

containerd hands a pull's failure over as one line of nested text, with a gRPC status that says little and differs from
version to version. The table below turns that line into a stable reason, says whether another attempt can help, and
what to do. Its lines are held against the messages of three generations of containerd by tests on real ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stokerd.errors import (
    RuntimeFailure,
    RuntimeNoSpace,
    RuntimeTimeout,
    RuntimeUnavailable,
    StokerError,
    redact,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one attempt failed. ``auth`` asks for the next credential, ``rate_limited`` for the registry's rest."""

    reason: str
    message: str
    hint: str = ""
    retryable: bool = False
    auth: bool = False
    rate_limited: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    reason: str
    pattern: re.Pattern[str]
    hint: str
    retryable: bool = False
    auth: bool = False
    rate_limited: bool = False


def _rule(
    reason: str,
    pattern: str,
    hint: str = "",
    *,
    retryable: bool = False,
    auth: bool = False,
    limited: bool = False,
) -> _Rule:
    return _Rule(reason, re.compile(pattern, re.IGNORECASE), hint, retryable, auth, limited)


_RULES: tuple[_Rule, ...] = (
    _rule("DiskFull", r"no space left on device|disk quota exceeded", "free space on containerd's file system"),
    _rule(
        "RateLimited",
        r"\b429\b|too ?many ?requests",
        "the registry limits how often this node may ask; log in, or use a mirror",
        retryable=True,
        limited=True,
    ),
    _rule(
        "NoMatchingPlatform",
        r"no match for platform|does not match the specified platform|no matching manifest",
        "build and push the image for this machine's platform",
    ),
    _rule(
        "Unauthorized",
        r"\b401\b|unauthorized|failed to authorize|authorization failed|insufficient_scope|no basic auth credentials",
        "log in to the registry, or add credentials to a docker config file that stokerd reads",
        auth=True,
    ),
    _rule(
        "Denied",
        r"\b403\b|forbidden|access denied|denied: ",
        "the credentials are not allowed to pull this repository",
        auth=True,
    ),
    _rule(
        "WrongDigest",
        r"unexpected commit digest|digest mismatch|failed digest validation|digest .* does not match",
        "what the registry (or a proxy before it) sent is not what the manifest names",
        retryable=True,
    ),
    _rule(
        "Truncated",
        r"failed size validation|short read|unexpected EOF|unexpected content length|\bEOF\b",
        "the registry (or a proxy before it) ended a transfer early",
        retryable=True,
    ),
    _rule(
        "TlsFailed",
        r"x509:|tls: |certificate|HTTP response to HTTPS client|handshake failure",
        'add the registry\'s CA to hosts.toml, or, for a plain http registry, its server = "http://..."',
    ),
    _rule(
        "UnknownHost",
        r"no such host|server misbehaving|name resolution|Name or service not known",
        "check the registry's name and the node's DNS",
        retryable=True,
    ),
    _rule(
        "ConnectionRefused",
        r"connection refused",
        "is the registry running, and is the port right?",
        retryable=True,
    ),
    _rule(
        "ConnectionBroken",
        r"connection reset|broken pipe|connection (?:was )?(?:closed|aborted)|server closed idle|use of closed network"
        r"|no route to host|network is unreachable|i/o timeout|TLS handshake timeout|Client\.Timeout|http2: ",
        "the network between this node and the registry is not stable",
        retryable=True,
    ),
    _rule(
        "RegistryUnavailable",
        r"\b5\d\d (?:internal|bad gateway|service|gateway|http version|insufficient|bandwidth|network)"
        r"|status(?: code)?[: ]+5\d\d|: 5\d\d\b",
        "the registry itself fails",
        retryable=True,
    ),
    _rule(
        "UnsupportedMediaType",
        r"unsupported (?:layer )?media ?type|media ?type .*(?:not supported|unsupported)|no processor for media-?type"
        r"|unknown (?:layer )?(?:image )?(?:layer )?(?:media ?)?type|unrecognized media type"
        r"|invalid media type|encountered unknown type|currently unsupported|unexpected media ?type",
        "this is not a container image, or one of a kind that this containerd cannot unpack",
    ),
    _rule(
        "BadLayer",
        r"wrong diff id|invalid tar header|gzip: invalid|invalid header|archive/tar|mismatched image rootfs"
        r"|invalid magic number|failed to extract layer|corrupt|unpack.*invalid",
        "the image's layers are damaged; push it again",
    ),
    _rule(
        "BadManifest",
        r"invalid (?:image )?(?:manifest|index|config)|schema ?1|schema version|unmarshal|unexpected end of JSON"
        r"|manifest .*(?:invalid|unsupported)|does not match .*media type",
        "the image's manifest cannot be used; push it again with a current tool",
    ),
    _rule("NotFound", r"not found|manifest unknown|name unknown|\b404\b", "check the name and the tag"),
)


def classify(error: StokerError, name: str) -> Failure:
    """Say what *error*, raised while *name* was pulled, means."""
    if not isinstance(error, RuntimeFailure):
        return Failure(error.reason, redact(error.message), error.hint or "", error.retryable)
    if isinstance(error, RuntimeUnavailable):
        return Failure(error.reason, redact(error.message), error.hint or "", retryable=True)
    text = redact(_shortened(error.message, name))
    if isinstance(error, RuntimeNoSpace):
        return Failure("DiskFull", text, "free space on containerd's file system")
    for rule in _RULES:
        if rule.pattern.search(text):
            return Failure(rule.reason, text, rule.hint, rule.retryable, rule.auth, rule.rate_limited)
    if isinstance(error, RuntimeTimeout):
        return Failure(error.reason, text, error.hint or "", retryable=True)
    return Failure("PullFailed", text, error.hint or "", retryable=error.status in {"UNKNOWN", "INTERNAL", "ABORTED"})


def _shortened(message: str, name: str) -> str:
    """Drop the frames that containerd wraps around the cause; the reference is named by whoever shows the message."""
    message = message.removeprefix("rpc error: ").strip()
    for prefix in (
        rf'failed to pull and unpack image "?{re.escape(name)}"?: ',
        r'failed to pull and unpack image "[^"]*": ',
        r'failed to resolve (?:image|reference) "[^"]*": ',
        r"failed to resolve image: ",
    ):
        message = re.sub(f"^{prefix}", "", message)
    return message[:2000]


def no_credential_left(failure: Failure, name: str, registry: str, tried: tuple[str, ...]) -> Failure:
    """Return the final word when every credential was refused: hosts and sources, never what was in them."""
    sources = ", ".join(tried) if tried else "no credentials found"
    return Failure(
        failure.reason,
        f"{registry} refused to give {name} with: {sources}; last answer: {failure.message}",
        failure.hint,
    )
