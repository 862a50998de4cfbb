"""What a failed pull means. Pure.

containerd hands a pull's failure over as one line of nested text, with a gRPC status that says little and differs from
version to version. The tables below turn that line into a stable reason, say whether another attempt can help, and what
to do. They are held against the messages of three generations of containerd by tests on real ones.

The line names the image, its registry, URLs and files, which may be called anything ("unauthorized/not-found:429"), so
these are taken out before it is read. Where a registry answered, its HTTP status alone decides, not what it wrote.
"""

from __future__ import annotations

import re

import msgspec

from stokerd.errors import (
    RuntimeFailure,
    RuntimeNoSpace,
    RuntimeUnavailable,
    StokerError,
    redact,
)

_PULL = "cri.PullImage"
_LONGEST = 2000


class Failure(msgspec.Struct, frozen=True):
    """Why one attempt failed. ``auth`` asks for the next credential, ``rate_limited`` for the registry's rest."""

    reason: str
    message: str
    hint: str = ""
    retryable: bool = False
    auth: bool = False
    rate_limited: bool = False


class _Meaning(msgspec.Struct, frozen=True):
    reason: str
    hint: str
    retryable: bool = False
    auth: bool = False
    limited: bool = False

    def failure(self, message: str) -> Failure:
        return Failure(self.reason, message, self.hint, self.retryable, self.auth, self.limited)


_DISK_FULL = _Meaning("DiskFull", "free space on containerd's file system")
_RATE_LIMITED = _Meaning(
    "RateLimited",
    "the registry limits how often this node may ask; log in, or use a mirror",
    retryable=True,
    limited=True,
)
UNSUPPORTED = "UnsupportedMediaType"
_UNAUTHORIZED = _Meaning(
    "Unauthorized",
    "log in to the registry, or add credentials to a docker config file that stokerd reads; check the name, too: "
    "registries do not tell strangers what is missing and what is private",
    auth=True,
)
_DENIED = _Meaning("Denied", "the credentials are not allowed to pull this repository", auth=True)
_NOT_FOUND = _Meaning("NotFound", "check the name and the tag")
_REGISTRY_FAILS = _Meaning("RegistryUnavailable", "the registry itself fails; its log says why", retryable=True)
_REFUSED = _Meaning("RegistryRefused", "the registry refuses the request; its log says why")
_UNSUPPORTED = _Meaning(
    UNSUPPORTED, "this is not a container image, or one of a kind that this containerd cannot unpack"
)
_UNKNOWN_HOST = _Meaning("UnknownHost", "check the registry's name and the node's DNS", retryable=True)
_BROKEN = _Meaning("ConnectionBroken", "the network between this node and the registry is not stable", retryable=True)

_OF_STATUS = {401: _UNAUTHORIZED, 403: _DENIED, 404: _NOT_FOUND, 408: _REGISTRY_FAILS, 429: _RATE_LIMITED}
_TOO_MANY = re.compile(r"too ?many ?requests", re.IGNORECASE)

_WORDS: tuple[tuple[re.Pattern[str], _Meaning], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), meaning)
    for pattern, meaning in (
        # First, since the name that is wrong stands in the text without quotes.
        (
            r"invalid reference format|parse image reference",
            _Meaning("InvalidReference", "check the image's name"),
        ),
        (r"no space left on device|disk quota exceeded", _DISK_FULL),
        (
            r"no match for platform|does not match the specified platform|no matching manifest",
            _Meaning("NoMatchingPlatform", "build and push the image for this machine's platform"),
        ),
        (
            r"unexpected commit digest|failed size validation|digest mismatch|failed digest validation",
            _Meaning(
                "WrongDigest",
                "what the registry (or a proxy before it) sent is not what the manifest names",
                retryable=True,
            ),
        ),
        (
            # containerd asks for what is no manifest as for a blob, which is then not found, and 1.7 counts as layers
            # only what it can unpack.
            r"no processor for media-?type|unsupported (?:layer )?media ?type|unrecogni[sz]ed media ?type"
            r"|encountered unknown type|mismatched image rootfs and manifest layers"
            r"|could not fetch content descriptor \S* \((?!application/vnd\.(?:oci|docker)\.)",
            _UNSUPPORTED,
        ),
        (
            r"wrong diff id|archive/tar: |gzip: |flate: |zstd: |(?:unpigz|igzip|pigz|zstd)\b.*: |magic number"
            r"|reserved bit|frame header|window size|crc(?:32)? mismatch|checksum"
            r"|extract layer.*: (?:unexpected )?EOF\b",
            _Meaning("BadLayer", "the image's layers are damaged; push it again"),
        ),
        (
            r"x509: |\btls: |HTTP response to HTTPS client|first record does not look like a TLS handshake",
            _Meaning(
                "TlsFailed",
                'add the registry\'s CA to hosts.toml, or, for a plain http registry, its server = "http://..."',
            ),
        ),
        (r"no such host|server misbehaving|name resolution|Name or service not known", _UNKNOWN_HOST),
        (
            r"connection refused",
            _Meaning("ConnectionRefused", "is the registry running, and is the port right?", retryable=True),
        ),
        (
            r"TLS handshake timeout|i/o timeout|Client\.Timeout|connection reset|broken pipe"
            r"|connection (?:was )?(?:closed|aborted)|server closed|use of closed network|no route to host"
            r"|network is unreachable|connection timed out|http2: |failed to do request: .*: (?:unexpected )?EOF\b",
            _BROKEN,
        ),
        (
            r"malformed HTTP|stopped after \d+ redirects|did not include a token|decode token response",
            _REGISTRY_FAILS,
        ),
        (
            r"context canceled|context deadline exceeded",
            _Meaning("Stalled", "containerd gave the pull up: no byte arrived for too long", retryable=True),
        ),
        (
            r"short read|expected number of bytes|unexpected content length|(?:^|: )(?:unexpected )?EOF\b",
            _Meaning("Truncated", "the registry (or a proxy before it) ended a transfer early", retryable=True),
        ),
        (_TOO_MANY.pattern, _RATE_LIMITED),
        (
            r"invalid desc |unmarshal|schema ?1|no signatures|content size of zero|rejecting \d+ byte manifest"
            r"|number of layers and diffIDs|invalid character .* looking for|unexpected end of JSON|media-type: ",
            _Meaning("BadManifest", "the image's manifest cannot be used; push it again with a current tool"),
        ),
        (
            r"locked for |: unavailable$",
            _Meaning("ContentBusy", "something else on this node fetches the same layer", retryable=True),
        ),
        (
            r"(?:failed|unable) to (?:extract|unpack|prepare|mount|stat snapshot|apply)|mount callback failed"
            r"|snapshotter",
            _Meaning("UnpackFailed", "containerd could not unpack the image; its log says more", retryable=True),
        ),
        (
            r"insufficient_scope|authorization failed|no basic auth credentials|failed to authorize|unauthorized",
            _UNAUTHORIZED,
        ),
        (r"(?:access|is) denied|\bdenied: |forbidden", _DENIED),
        (
            r"\b(?:content digest|blob|lease|ingest) +(?:does not exist)?: not found",
            _Meaning("ContentLost", "something on this node removed a part of the image meanwhile", retryable=True),
        ),
        (
            r"could not fetch content descriptor|content at  ?not found",
            _Meaning("NotFound", "the registry has the image's manifest, but has lost a part of it; push it again"),
        ),
        (r"not found|manifest unknown|name unknown", _NOT_FOUND),
    )
)

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"]+?(?=:?(?:\s|\"|$))", re.IGNORECASE)
_STRIPPED = re.compile(
    r"\"(?:[^\"\\]|\\.)*\""  # quoted: names, references, URLs
    r"|\blookup \S+(?: on \S+:\d+)?"
    r"|\bhost \S+"
    r"|(?:\[[0-9a-f:.%]+\]|[\w.-]+):\d+\b(?!/)"  # host:port, which may be :429
    r"|\bsha\d+:[0-9a-f]+"
    r"|(?<![^\s(=])/[^\s:]+",  # files
    re.IGNORECASE,
)
_LOOKUP = re.compile(r"\bdial \w+: lookup \S+(?: on \S+)?: ")  # whatever went wrong with asking for the name
_STATUS = re.compile(r"\bstatus\b(?:[^:\[\n]|\[[^\]\n]*\])*: (\d{3})\b")
_FRAMES = tuple(
    re.compile(pattern)
    for pattern in (
        r"^failed to pull and unpack image \"[^\"]*\": ",
        r"^failed to resolve (?:image|reference) \"[^\"]*\": ",
        r"^failed to resolve image: ",
    )
)


def classify(error: StokerError, name: str) -> Failure:
    """Say what *error*, raised while *name* was pulled, means."""
    message = redact(error.message)
    if not isinstance(error, RuntimeFailure) or isinstance(error, RuntimeUnavailable):
        return Failure(error.reason, message, error.hint or "", error.retryable)
    text = _shortened(message)
    words = _bare(text, name)
    meaning = _of_status(words) or (_DISK_FULL if isinstance(error, RuntimeNoSpace) else None)
    if meaning is None and error.call in {"", _PULL}:
        meaning = (
            _UNKNOWN_HOST
            if _LOOKUP.search(text)
            else next((meaning for pattern, meaning in _WORDS if pattern.search(words)), None)
        )
    if meaning is not None:
        return meaning.failure(text)
    if type(error) is RuntimeFailure:
        return Failure("PullFailed", text, error.hint or "", retryable=True)
    return Failure(error.reason, text, error.hint or "", error.retryable)


def _of_status(words: str) -> _Meaning | None:
    """Return what the registry's, or its token server's, HTTP status means."""
    match = _STATUS.search(words)
    if match is None:
        return None
    status = int(match.group(1))
    if status >= 500:
        return _REGISTRY_FAILS
    if _TOO_MANY.search(words):
        return _RATE_LIMITED
    if status in {400, 404} and "failed to authorize" in words:
        return _UNAUTHORIZED
    return _OF_STATUS.get(status, _REFUSED)


def _bare(text: str, name: str) -> str:
    """Return *text* without everything that somebody could have named."""
    text = _URL.sub("", text)
    repository = re.sub(r"(?::[^:/@]*)?(?:@.*)?$", "", name)
    host, _, path = repository.partition("/")
    for known in (name, repository, path, host, host.rpartition(":")[0]):
        if re.search(r"[/:.]", known):  # a bare word could be one of the message's own
            text = text.replace(known, "")
    return _STRIPPED.sub("", text)


def _shortened(message: str) -> str:
    """Drop the frames that containerd wraps around the cause; the reference is named by whoever shows the message."""
    message = " ".join(message.removeprefix("rpc error: ").split())
    for frame in _FRAMES:
        message = frame.sub("", message)
    return message[:_LONGEST]


def no_credential_left(failure: Failure, name: str, registry: str, tried: tuple[str, ...]) -> Failure:
    """Return the final word when every credential was refused: hosts and sources, never what was in them."""
    sources = ", ".join(tried) if tried else "no credentials found"
    return Failure(
        failure.reason,
        f"{registry} refused to give {name} with: {sources}; last answer: {failure.message}",
        failure.hint,
    )
