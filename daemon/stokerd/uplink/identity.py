"""The node's key and certificate on disk, and how it gets them.

``identity.pem`` has both, so that they are changed together; ``pending.key`` is a key whose certificate has not come
yet. It stays until it has, so that a node that was cut off in the middle of joining can ask again with its token.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from stoker.service.children import communicate, start
from stokerd.errors import ConfigError, StokerError

_PROGRAM_TIMEOUT, _MAX_TOKEN = 30.0, 4096
_IDENTITY, _PENDING = "identity.pem", "pending.key"
_RENEW_SHARE = 1 / 3


class NoIdentity(StokerError):
    """The node has no certificate that holds, and cannot get one."""

    reason = "NoCertificate"


class Identity(msgspec.Struct, frozen=True):
    """What a node proves by who it is. Times are seconds since the epoch."""

    node: str
    made_at: float
    not_after: float
    key: bytes
    chain: bytes

    def __repr__(self) -> str:
        return f"Identity(node={self.node!r}, not_after={self.not_after})"

    def due(self, now: float) -> bool:
        """Say whether it should be renewed."""
        return now > self.not_after - (self.not_after - self.made_at) * _RENEW_SHARE


class _Head(msgspec.Struct):
    node: str
    made_at: float
    not_after: float


class Store:
    """The directory of the two files. Blocking, but for `request`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> Identity | None:
        """Return what is kept; None: nothing. NoIdentity when it cannot be read."""
        path = self._directory / _IDENTITY
        try:
            head, _, rest = path.read_bytes().partition(b"\n")
            facts = msgspec.json.decode(head, type=_Head)
            key, mark, chain = rest.partition(b"-----BEGIN CERTIFICATE-----")
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise NoIdentity(f"{path} cannot be read: {error}", hint="remove it, and join anew with a token") from None
        return Identity(facts.node, facts.made_at, facts.not_after, key, mark + chain)

    def keep(self, node: str, chain: bytes, not_after: float, now: float) -> None:
        """Keep the certificate that came for the pending key."""
        pending = self._directory / _PENDING
        try:
            head = msgspec.json.encode(_Head(node, now, not_after))
            self._write(_IDENTITY, head + b"\n" + pending.read_bytes() + chain)
            pending.unlink()
        except OSError as error:
            raise NoIdentity(f"the certificate cannot be kept in {self._directory}: {error}") from None

    async def request(self) -> bytes:
        """Return a request for a certificate (PEM), of a new key or of the one that still has none."""
        try:
            await asyncio.to_thread(self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
            process = await start(
                sys.executable, "-I", "-m", "stokerd.uplink.newkey", str(self._directory / _PENDING),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise NoIdentity(f"no key can be made: {error}") from None
        try:
            async with asyncio.timeout(_PROGRAM_TIMEOUT):
                out, err = await communicate(process)
        except TimeoutError:
            raise NoIdentity(f"no key was made within {_PROGRAM_TIMEOUT:g} s") from None
        if process.returncode != 0:
            last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise NoIdentity(f"no key can be made: {' '.join(last)}", hint="is the Python package cryptography there?")
        return out

    def _write(self, name: str, data: bytes) -> None:
        fresh = self._directory / f"{name}.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        fresh.replace(self._directory / name)


def read_token(path: Path) -> str:
    """Return the join token in a file; ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_TOKEN).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("uplink.token_file", [f"{path} cannot be read: {error}"]) from None
    if not text:
        raise ConfigError("uplink.token_file", [f"{path} is empty"])
    return text
