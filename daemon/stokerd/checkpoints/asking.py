"""Requests that make sense, and what tells one from another. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from stoker.objects.checkpoints import CheckpointRequest, CloneRequest, CommitRequest
from stokerd.checkpoints.operations import LABELS_OF_OURS
from stokerd.errors import InvalidInput, LimitExceeded

_LONGEST_NAME = 253
_MOST_LABELS = 64
_LONGEST_LABEL = 1024
_LONGEST_TIMEOUT = 86_400.0
_MOST_FILES = 256
_LONGEST_HOSTNAME = 63


def check_checkpoint(request: CheckpointRequest) -> None:
    """InvalidInput says what is wrong."""
    _name("name", request.name)
    _name("request", request.request)
    _names("containers", request.containers)
    _labels(request.labels)
    timeout = request.timeout_seconds
    if timeout is not None and not 0 < timeout <= _LONGEST_TIMEOUT:
        raise InvalidInput(f"timeoutSeconds is {timeout:g}, not a number up to {_LONGEST_TIMEOUT:g}")


def check_clone(request: CloneRequest, most: int) -> None:
    """InvalidInput, LimitExceeded."""
    _name("request", request.request)
    if not request.checkpoint:
        raise InvalidInput("checkpoint is empty")
    if request.count < 1:
        raise InvalidInput(f"count is {request.count}, not a number from 1")
    if request.count > most:
        raise LimitExceeded(
            f"{request.count} clones are more than one request may ask for ({most})",
            hint="ask several times, or set checkpoints.max_clones_per_request",
        )
    if request.hostname:
        _hostname(request.hostname)
    for variable in request.env:
        if not variable.name or "=" in variable.name or not variable.name.isprintable():
            raise InvalidInput("env: a name is empty, or has a character that no name has")
        if variable.value is None or "\0" in variable.value:
            raise InvalidInput(f"env: {variable.name} has no value, or one with a zero byte")
    _once("env", [each.name for each in request.env])
    if len(request.files) > _MOST_FILES:
        raise InvalidInput(f"files: {len(request.files)} are too many, {_MOST_FILES} may be given")
    for file in request.files:
        steps = file.path.split("/")
        if not file.path.startswith("/") or ".." in steps or "\0" in file.path or not steps[-1]:
            raise InvalidInput(f"files: {file.path[:200]!r} is not the absolute path of a file")
    _once("files", [each.path for each in request.files])
    if any("\0" in word for word in request.hook):
        raise InvalidInput("hook: a word has a zero byte")
    _labels(request.labels)


def check_commit(request: CommitRequest) -> None:
    """InvalidInput."""
    _name("request", request.request)
    for field, text in (("author", request.author), ("message", request.message)):
        if len(text) > 4096:
            raise InvalidInput(f"{field} is too long: {len(text)} characters, 4096 may be given")


def hostname_of(request: CloneRequest, number: int) -> str:
    """Return the host name of the clone *number*, counted from 1; of several each has its number."""
    return f"{request.hostname}-{number}" if request.hostname and request.count > 1 else request.hostname


def secrets_of(request: CloneRequest) -> tuple[str, ...]:
    """Return what of a request is to be in no message."""
    return tuple(each.value for each in request.env if each.value)


def digest_of(kind: str, request: msgspec.Struct, salt: bytes) -> str:
    """Return what is equal for requests of equal content, and tells nobody without *salt* anything about it."""
    content = kind.encode() + b"\0" + msgspec.json.encode(request, order="deterministic")
    return hashlib.blake2b(content, key=salt[:64], digest_size=20).hexdigest()


def _name(field: str, text: str) -> None:
    if len(text) > _LONGEST_NAME or not text.isprintable() or text != text.strip() or "/" in text:
        raise InvalidInput(f"{field}: {text[:80]!r} is not a name: at most {_LONGEST_NAME} characters, no slash")


def _labels(labels: Mapping[str, str]) -> None:
    if len(labels) > _MOST_LABELS:
        raise InvalidInput(f"labels: {len(labels)} are too many, {_MOST_LABELS} may be given")
    for name, value in labels.items():
        if not name or not name.isprintable() or len(name) > _LONGEST_NAME or len(value) > _LONGEST_LABEL:
            raise InvalidInput(f"labels: {name[:80]!r} is not a label, or its value is too long")
        if name.startswith(LABELS_OF_OURS):
            raise InvalidInput(f"labels: {name!r} begins with {LABELS_OF_OURS}, which is stokerd's own")


def _names(field: str, names: Iterable[str]) -> None:
    found = list(names)
    if not all(found):
        raise InvalidInput(f"{field}: a name is empty")
    _once(field, found)


def _once(field: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"{field}: {twice[:200]!r} is there twice")


def _hostname(text: str) -> None:
    if len(text) > _LONGEST_HOSTNAME - 4 or not all(
        char.isascii() and (char.isalnum() or char in "-.") for char in text
    ):
        raise InvalidInput(f"hostname: {text[:80]!r} is not a host name")
