"""Who may do what: roles, and tokens with roles, of which only digests are kept."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from stoker_coordinator.errors import CoordinatorError, Invalid, NotFound, Unauthorized

Role = Literal["admin", "operator", "viewer", "node"]
Verb = Literal["get", "list", "watch", "create", "update", "patch", "apply", "delete"]
ROLES: tuple[Role, ...] = get_args(Role)

READS = frozenset({"get", "list", "watch"})
WISHES = frozenset(
    {
        "ImagePullJob",
        "ImageListPullJob",
        "AdvancedCronJob",
        "ContainerRecreateRequest",
        "Checkpoint",
        "Clone",
        "Commit",
        "PullSecret",
    }
)
"""What an operator may make, change and delete."""

_FORM = re.compile(r"stoker-api\.([0-9a-f]{12})\.([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][\w.@+-]{0,62}", re.ASCII)


class Principal(Struct, frozen=True):
    """Who asks."""

    name: str
    role: Role


def may(role: Role, verb: str, kind: str, *, status: bool = False) -> bool:
    """Say whether a role may do this to objects of a kind. Pure.

    admin: everything. operator: read everything, and write what people wish for. viewer: read. node: nothing here;
    nodes have a way of their own, and speak for themselves alone.
    """
    if role == "admin":
        return True
    if role == "node":
        return False
    return verb in READS or (role == "operator" and kind in WISHES and not status)


class Token(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What is kept of a token. Its secret is 32 random bytes, so a plain digest is as good as a slow one."""

    id: str
    name: str
    role: Role
    digest: str
    created_at: datetime
    expires_at: datetime | None = None


class _File(Struct):
    tokens: tuple[Token, ...] = ()


class Tokens:
    """The tokens in a file. Programs that change it take turns; who reads it sees a change with the next request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}

    def authenticate(self, header: str, now: datetime) -> Principal:
        """Return who sends an Authorization *header*; Unauthorized says nothing of tokens that there are."""
        scheme, _, text = header.partition(" ")
        match = _FORM.fullmatch(text.strip()) if scheme.lower() == "bearer" else None
        if match is None:
            raise Unauthorized("a token is needed: Authorization: Bearer stoker-api...", hint=_HOW)
        self._read()
        token = self._tokens.get(match[1])
        known = token.digest if token is not None else _digest("")
        if not hmac.compare_digest(known, _digest(match[2])) or token is None:
            raise Unauthorized("this token is not known here, or was revoked", hint=_HOW)
        if token.expires_at is not None and now >= token.expires_at:
            raise Unauthorized(f"this token has expired, {token.expires_at:%Y-%m-%d %H:%M} UTC", hint=_HOW)
        return Principal(token.name, token.role)

    def create(self, name: str, role: Role, lifetime: float | None = None) -> tuple[Token, str]:
        """Return a new token and its text, which nobody can see again. Blocks; Invalid, CoordinatorError."""
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name!r} is no name for a token: letters, digits and . _ @ + -, at most 63")
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        now = datetime.now(UTC).replace(microsecond=0)
        expires = now + timedelta(seconds=lifetime) if lifetime is not None else None
        token = Token(identity, name, role, _digest(secret), now, expires)
        with self._changing() as tokens:
            tokens.append(token)
        return token, f"stoker-api.{identity}.{secret}"

    def all(self) -> Sequence[Token]:
        """Return all tokens, oldest first. Blocks."""
        self._read()
        return sorted(self._tokens.values(), key=lambda token: token.created_at)

    def revoke(self, word: str) -> Token:
        """Take away the token with this id, or the only one of this name. Blocks; NotFound, Invalid."""
        with self._changing() as tokens:
            found = [token for token in tokens if token.id == word] or [each for each in tokens if each.name == word]
            if not found:
                raise NotFound(f"there is no token {word!r}", hint="stoker-coordinator token list shows all")
            if len(found) > 1:
                raise Invalid(f"{len(found)} tokens have the name {word!r}", hint="give the id")
            tokens.remove(found[0])
        return found[0]

    def _read(self) -> None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._tokens = None, {}
            return
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp == self._stamp:
            return
        try:
            file = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError) as error:
            raise CoordinatorError(f"the tokens in {self._path} cannot be read: {error}") from None
        self._stamp, self._tokens = stamp, {token.id: token for token in file.tokens}

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """Hand out the tokens, and write what they have become."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            tokens = list(self._tokens.values())
            yield tokens
            self._write(_File(tuple(tokens)))
        finally:
            os.close(lock)

    def _write(self, file: _File) -> None:
        draft = self._path.with_suffix(".new")
        try:
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                out.write(msgspec.json.format(msgspec.json.encode(file), indent=1))
                out.flush()
                os.fsync(out.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise CoordinatorError(f"the tokens in {self._path} cannot be written: {error.strerror}") from None


_HOW = "make one where the coordinator runs: stoker-coordinator token create NAME --role viewer"


def _digest(secret: str) -> str:
    return base64.b64encode(hashlib.sha256(secret.encode("ascii")).digest()).decode()
