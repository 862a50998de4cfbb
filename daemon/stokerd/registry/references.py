"""Image references: what people write, and the one canonical form of it. Pure.

The grammar and the defaults are those of github.com/distribution/reference, which containerd's CRI and the kubelet
use: what is accepted here is accepted there and means the same. Two things are stricter: a port must be a real port
and an IPv6 host a real address, since nothing could be reached otherwise.
"""

from __future__ import annotations

import ipaddress
import re

import msgspec

from stokerd.errors import InvalidInput
from stokerd.registry.content import DIGEST_LENGTHS

DEFAULT_HOST = "docker.io"
DEFAULT_TAG = "latest"
MAX_TEXT = 4096
MAX_PATH = 255
MAX_TAG = 128

_OFFICIAL = "library/"
_API_HOST = "registry-1.docker.io"
_LEGACY_HOST = "index.docker.io"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_IMAGE_ID = re.compile(r"(?:sha256:)?[a-f0-9]{64}")
# Each of these is matched against one component and can only be read in one way, so none of them backtracks.
_HOST_LABEL = re.compile(r"[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*")
_PATH_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LOWER_HEX = re.compile(r"[a-f0-9]*")
_SHOWN = 120


class InvalidReference(InvalidInput):
    """*text* is not an image reference: ``rule`` is what it breaks, ``at`` where (from 0; None: as a whole)."""

    reason = "InvalidReference"

    def __init__(self, text: str, rule: str, *, at: int | None = None, hint: str | None = None) -> None:
        where = ""
        if at is not None and at < len(text):
            where = f", at character {at + 1} ({_shown(text[at])!r})"
        elif at is not None:
            where = f", at character {at + 1} (the end)"
        super().__init__(f'image reference "{_excerpt(text, at or 0)}": {rule}{where}', hint=hint)
        self.text = text
        self.rule = rule
        self.at = at


class Reference(msgspec.Struct, frozen=True):
    """An image: ``host`` with its port, ``path`` of the repository, and a tag, a digest or both.

    Made by ``parse_reference``; ``str()`` is the canonical form, which parses to the same value again.
    """

    host: str
    path: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return f"{self.name}{self._suffix}"

    @property
    def name(self) -> str:
        """The repository with its host, without tag and digest."""
        return f"{self.host}/{self.path}"

    @property
    def familiar(self) -> str:
        """The short form that people write: without ``docker.io/library/`` or ``docker.io/`` where that is clear."""
        if self.host != DEFAULT_HOST:
            return str(self)
        short = self.path.removeprefix(_OFFICIAL)
        if "/" in short:
            short = self.path
        text = f"{short}{self._suffix}"
        if _names_host(short) or _IMAGE_ID.fullmatch(text):
            return str(self)
        return text

    @property
    def pull_spec(self) -> str:
        """What is handed to CRI: containerd's CRI drops the tag of a reference that has a digest too."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag or DEFAULT_TAG}"

    @property
    def registry_host(self) -> str:
        """The host that serves the API: Docker Hub's is not the one in the name."""
        return _API_HOST if self.host == DEFAULT_HOST else self.host

    @property
    def _suffix(self) -> str:
        return (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Parse ``[host[:port]/]path[:tag][@digest]``; a reference with neither tag nor digest gets the tag ``latest``.

    Raises InvalidReference, and nothing else, for text that is not one.
    """
    _check_text(text)
    body, at_sign, digest_text = text.partition("@")
    if "/" in digest_text and digest_text.partition(":")[0] not in DIGEST_LENGTHS:
        raise InvalidReference(
            _without_user(text),
            "user names and passwords do not belong in a reference",
            hint="give credentials in a docker config file or with the request",
        )
    digest = _parse_digest(text, len(body) + 1) if at_sign else None
    host, start = _split_host(text, body)
    colon = body.find(":", start)
    end = len(body) if colon < 0 else colon
    path = _parse_path(text, start, end)
    tag = _parse_tag(text, colon + 1, len(body)) if colon >= 0 else None
    if host == DEFAULT_HOST and "/" not in path:
        path = _OFFICIAL + path
    if len(path) > MAX_PATH:
        raise InvalidReference(
            text, f"the repository path has {len(path)} characters, {MAX_PATH} are allowed", at=start
        )
    if tag is None and digest is None:
        tag = DEFAULT_TAG
    return Reference(host, path, tag, digest)


def _check_text(text: str) -> None:
    """Refuse what no part of the grammar can explain well."""
    if not text:
        raise InvalidReference(text, "it is empty", hint='write one as in "docker.io/library/busybox:1.36"')
    if len(text) > MAX_TEXT:
        raise InvalidReference(text, f"it has {len(text)} characters, {MAX_TEXT} are allowed")
    if scheme := _SCHEME.match(text):
        hint = f'leave out "{scheme[0]}"'
        raise InvalidReference(_without_user(text), "a reference has no URL scheme", hint=hint)
    for at, character in enumerate(text):
        if not "!" <= character <= "~":
            blank = character.isspace()
            rule = "white space is not allowed" if blank else "only printable ASCII characters are allowed"
            raise InvalidReference(text, rule, at=at, hint="remove it" if blank else None)
    if _IMAGE_ID.fullmatch(text):
        raise InvalidReference(
            text,
            "it looks like an image id, not like a name",
            hint=f"name the repository: NAME@sha256:{text.removeprefix('sha256:')[:12]}..., or NAME:TAG",
        )


def _names_host(body: str) -> bool:
    """Return whether the first component is a host: only its look tells it from a repository of Docker Hub."""
    first, slash, _ = body.partition("/")
    return bool(slash) and (first == "localhost" or "." in first or ":" in first or first.lower() != first)


def _split_host(text: str, body: str) -> tuple[str, int]:
    """Return the host, and where the path begins."""
    if not _names_host(body):
        return DEFAULT_HOST, 0
    host = body.partition("/")[0]
    _check_host(text, host)
    return (DEFAULT_HOST if host == _LEGACY_HOST else host), len(host) + 1


def _check_host(text: str, host: str) -> None:
    if host.startswith("["):
        closing = host.find("]")
        try:
            ipaddress.IPv6Address(host[1:closing] if closing > 0 and "%" not in host else "")
        except ValueError:
            raise InvalidReference(text, "the IPv6 address in brackets is not one", at=1) from None
        if host[closing + 1 :]:
            _check_port(text, host, closing + 1)
        return
    colon = host.find(":")
    name = host if colon < 0 else host[:colon]
    at = 0
    for label in name.split("."):
        match = _HOST_LABEL.match(label)
        good = match.end() if match else 0
        if good < len(label) or not label:
            rule = "a host is made of letters, digits and inner dashes, with single dots between"
            raise InvalidReference(text, rule, at=at + good)
        at += len(label) + 1
    if colon >= 0:
        _check_port(text, host, colon)


def _check_port(text: str, host: str, colon: int) -> None:
    digits = host[colon + 1 :]
    if host[colon] != ":" or not digits:
        raise InvalidReference(text, 'a host is followed by ":" and a port, or by "/"', at=colon)
    for at, character in enumerate(digits, start=colon + 1):
        if not "0" <= character <= "9":
            hint = "a tag comes last, after the whole path"
            raise InvalidReference(text, "a port is made of digits", at=at, hint=hint)
    if len(digits) > 5 or not 0 < int(digits) < 65536:
        raise InvalidReference(text, "a port is between 1 and 65535", at=colon + 1)


def _parse_path(text: str, start: int, end: int) -> str:
    path = text[start:end]
    at = start
    for component in path.split("/"):
        match = _PATH_COMPONENT.match(component)
        good = match.end() if match else 0
        if good < len(component) or not component:
            raise _wrong_path(text, start, end, at + good)
        at += len(component) + 1
    return path


def _wrong_path(text: str, start: int, end: int, at: int) -> InvalidReference:
    """Say what is wrong at *at* with the path that stands between *start* and *end*."""
    if at >= end and end > start:
        return InvalidReference(text, "the path ends in a slash", at=at - 1, hint="remove the trailing slash")
    if at >= end:
        return InvalidReference(text, "the name of the repository is missing", at=at)
    character = text[at]
    if character == "/":
        return InvalidReference(text, "a component of the path is empty", at=at, hint="remove the extra slash")
    if "A" <= character <= "Z":
        lowered = text[:start] + text[start:end].lower() + text[end:]
        rule = "the repository path must be lower case"
        return InvalidReference(text, rule, at=at, hint=f'did you mean "{_excerpt(lowered, at)}"?')
    if character in "._-":
        rule = 'one ".", "_", "__" or some "-" may stand between letters and digits, nowhere else'
        return InvalidReference(text, rule, at=at)
    rule = "a repository path is made of a-z, 0-9 and single separators"
    return InvalidReference(text, rule, at=at)


def _parse_tag(text: str, start: int, end: int) -> str:
    tag = text[start:end]
    if not tag:
        raise InvalidReference(text, 'the tag after ":" is empty', at=start, hint='write a tag or remove the ":"')
    match = _TAG.match(tag)
    good = match.end() if match else 0
    if good < len(tag):
        hint = "the tag comes last, after the whole path" if tag[good] == "/" else None
        rule = 'a tag is made of letters, digits, "_", "." and "-", and begins with none of the last two'
        raise InvalidReference(text, rule, at=start + good, hint=hint)
    if len(tag) > MAX_TAG:
        rule = f"the tag has {len(tag)} characters, {MAX_TAG} are allowed"
        raise InvalidReference(text, rule, at=start + MAX_TAG)
    return tag


def _parse_digest(text: str, start: int) -> str:
    digest = text[start:]
    algorithm, colon, digits = digest.partition(":")
    expected = DIGEST_LENGTHS.get(algorithm)
    if expected is None or not colon:
        rule = 'a digest is sha256, sha384 or sha512, then ":" and hexadecimal digits'
        hint = 'a tag is written after ":"' if digest and not colon else None
        raise InvalidReference(text, rule, at=start, hint=hint)
    first = start + len(algorithm) + 1
    match = _LOWER_HEX.match(digits)
    good = match.end() if match else 0
    if good < len(digits):
        upper = digits[good] in "ABCDEF"
        hint = "write it in lower case" if upper else None
        raise InvalidReference(text, "a digest is made of 0-9 and a-f", at=first + good, hint=hint)
    if len(digits) != expected:
        rule = f"a {algorithm} digest has {expected} digits, this one has {len(digits)}"
        raise InvalidReference(text, rule, at=first + min(len(digits), expected))
    return digest


def _shown(text: str) -> str:
    """Return *text* without characters that could act on a terminal or a log."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _excerpt(text: str, at: int) -> str:
    """Return what fits into a message of *text*, around the place *at*."""
    start = max(0, min(at - _SHOWN // 2, len(text) - _SHOWN))
    stop = start + _SHOWN
    return ("..." if start else "") + _shown(text[start:stop]) + ("..." if stop < len(text) else "")


def _without_user(text: str) -> str:
    """Return *text* with what stands before the last "@" hidden, unless a digest follows: it may be a password."""
    _, at_sign, tail = text.rpartition("@")
    return f"[redacted]@{tail}" if at_sign and tail.partition(":")[0] not in DIGEST_LENGTHS else text
