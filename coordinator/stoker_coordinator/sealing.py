"""Secrets at rest: sealed before the store sees them, opened when a node needs them.

AES-SIV: the same secret in the same place is sealed to the same text, so that applying a file again changes nothing.
The place (kind, namespace, name, path) is bound in, so that a sealed text is worth nothing elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from stoker.objects.meta import Object
from stoker_coordinator.errors import CoordinatorError
from stoker_coordinator.objects import shapes

T = TypeVar("T", bound=Object)

_PREFIX = "sealed:"
_KEY_BYTES = 64


class SealBroken(CoordinatorError):
    """A secret cannot be opened: the key is another one, or the text was changed or moved."""

    reason = "SealBroken"


class Sealer:
    """Seals with the first key, opens with any."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """*keys*: 64 bytes each, by an id of letters and digits."""
        self._ciphers = {identity: AESSIV(key) for identity, key in keys.items()}
        self._first = next(iter(keys))

    @classmethod
    def load(cls, path: Path) -> Sealer:
        """Read the key file, and make one when there is none. Blocks; CoordinatorError."""
        try:
            if not path.exists():
                _make(path)
            if path.stat().st_mode & 0o077:
                raise CoordinatorError(f"the key file {path} can be read by others", hint=f"chmod 600 {path}")
            return cls(_parse(path.read_text(encoding="ascii")))
        except (OSError, ValueError) as error:
            raise CoordinatorError(
                f"the key file {path} cannot be used: {error}",
                hint="restore it from a backup: what was sealed with it cannot be opened without it",
            ) from None

    def seal(self, place: str, text: str) -> str:
        """Return *text* sealed for a place."""
        sealed = self._ciphers[self._first].encrypt(text.encode(), [place.encode()])
        return f"{_PREFIX}{self._first}:{base64.b64encode(sealed).decode()}"

    def open(self, place: str, sealed: str) -> str:
        """Return what was sealed for a place; SealBroken."""
        identity, _, data = sealed.removeprefix(_PREFIX).partition(":")
        cipher = self._ciphers.get(identity)
        if not sealed.startswith(_PREFIX) or cipher is None:
            raise SealBroken(f"{place}: there is no key that it was sealed with", hint="restore the key file")
        try:
            return cipher.decrypt(base64.b64decode(data, validate=True), [place.encode()]).decode()
        except (InvalidTag, ValueError, binascii.Error):
            raise SealBroken(f"{place}: it was changed, or sealed for another place") from None

    def sealed(self, obj: T) -> T:
        """Return an object from outside with its secrets sealed. It must have its name."""
        return self._mapped(obj, lambda path, text: self.seal(f"{obj.key} {path}", text))

    def opened(self, obj: T) -> T:
        """Return an object from the store with its secrets as they were given; SealBroken."""
        return self._mapped(obj, lambda path, text: self.open(f"{obj.key} {path}", text))

    def _mapped(self, obj: T, change: shapes.Change) -> T:
        if not shapes.has_secrets(type(obj)):
            return obj
        return msgspec.convert(shapes.map_secrets(msgspec.to_builtins(obj), type(obj), change), type(obj))


def is_sealed(obj: Object) -> bool:
    """Whether an object from the store has secrets in it."""
    found: list[bool] = []

    def look(_: str, text: str) -> str:
        found.append(text.startswith(_PREFIX))
        return text

    shapes.map_secrets(msgspec.to_builtins(obj), type(obj), look)
    return any(found)


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{os.urandom(4).hex()} {base64.b64encode(os.urandom(_KEY_BYTES)).decode()}\n"
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _parse(text: str) -> dict[str, bytes]:
    """Return the keys of a file: one a line, an id and 64 bytes in base64. ValueError."""
    keys = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        identity, _, encoded = line.strip().partition(" ")
        key = base64.b64decode(encoded, validate=True)
        if not identity.isalnum() or len(key) != _KEY_BYTES:
            raise ValueError("a line is not an id and 64 bytes in base64")
        keys[identity] = key
    if not keys:
        raise ValueError("it is empty")
    return keys
