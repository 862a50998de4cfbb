"""A large blob, piece by piece: goes on where a connection broke, ends where its size says, has its digest or fails."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from stokerd.registry.client import RegistryClient, most_telling
from stokerd.registry.credentials import Credential
from stokerd.registry.errors import (
    DigestMismatch,
    ManifestNotFound,
    NoRegistryEndpoint,
    RegistryDenied,
    RegistryError,
    RegistryProtocol,
    RegistryUnauthorized,
    RegistryUnreachable,
    Subject,
)
from stokerd.registry.lines import Line
from stokerd.registry.push_types import Policy
from stokerd.registry.references import Reference
from stokerd.registry.transport import Answer, Request
from stokerd.registry.uploads import is_passing, pause

_FROM = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/(?:\*|[0-9]{1,19})")
_HIDDEN = (RegistryUnauthorized, RegistryDenied, ManifestNotFound)


async def fetch(
    client: RegistryClient,
    reference: Reference,
    digest: str,
    size: int,
    credentials: Sequence[Credential] = (),
    policy: Policy | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the blob *digest*, of exactly *size* bytes, from whichever server of the registry gives it.

    Raises RegistryErrors; DigestMismatch at the end, when what was yielded is something else.
    """
    found = _Found(digest, size)
    failures: list[RegistryError] = []
    for endpoint in await client.endpoints(reference, "pull"):
        for credential in client.usable(endpoint, credentials):
            async with aclosing(_from(client.line(endpoint, reference, credential), found, policy or Policy())) as data:
                try:
                    async for piece in data:
                        yield piece
                    found.check(Subject(endpoint.host, reference.name, digest))
                except RegistryError as error:
                    failures.append(error)
                    if not isinstance(error, _HIDDEN):
                        break
                else:
                    return
    if not failures:
        raise NoRegistryEndpoint("no server that may pull is configured", Subject(reference.host))
    raise most_telling(failures)


class _Found:
    """What has come so far."""

    def __init__(self, digest: str, size: int) -> None:
        self.digest, self.size, self.offset = digest, size, 0
        self._hash = hashlib.new(digest.partition(":")[0], usedforsecurity=False)

    def take(self, piece: bytes, subject: Subject) -> None:
        self.offset += len(piece)
        if self.offset > self.size:
            raise DigestMismatch(f"it gives more than the {self.size} bytes that the blob has", subject)
        self._hash.update(piece)

    def check(self, subject: Subject) -> None:
        actual = f"{self.digest.partition(':')[0]}:{self._hash.hexdigest()}"
        if actual != self.digest:
            raise DigestMismatch(f"the content should have the digest {self.digest} and has {actual}", subject)


async def _from(line: Line, found: _Found, policy: Policy) -> AsyncGenerator[bytes, None]:
    """Yield what is missing, over one line, in as many tries as it is worth."""
    attempt, best = 0, found.offset
    while found.offset < found.size or not attempt:
        try:
            async with aclosing(_once(line, found)) as pieces:
                async for piece in pieces:
                    yield piece
            if found.offset >= found.size:
                return
            raise RegistryUnreachable(
                "the answer ended before it was complete",
                Subject(line.endpoint.host, line.reference.name, found.digest),
            )
        except RegistryError as error:
            attempt = 1 if found.offset > best else attempt + 1
            best = found.offset
            wait = pause(attempt, error, policy.pause) if is_passing(error) else None
            if wait is None or attempt >= policy.attempts:
                raise
            await asyncio.sleep(wait)


async def _once(line: Line, found: _Found) -> AsyncGenerator[bytes, None]:
    subject = Subject(line.endpoint.host, line.reference.name, found.digest)
    request = Request(
        url=line.url("blobs", found.digest),
        subject=subject,
        limit=found.size,
        headers={"Range": f"bytes={found.offset}-"} if found.offset else {},
        persistent=False,
    )
    skip = 0
    async with aclosing(line.stream(request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Answer):
                if piece.status not in {200, 206}:
                    raise line.error(piece, request)
                skip = found.offset - _begins(piece.status, piece.headers, subject)
                continue
            rest = piece[skip:]
            skip = max(0, skip - len(piece))
            if rest:
                found.take(rest, subject)
                yield rest


def _begins(status: int, headers: Mapping[str, str], subject: Subject) -> int:
    """Return where in the blob the answer begins: at its begin when the server knows no ranges."""
    if status == 200:
        return 0
    match = _FROM.fullmatch(headers.get("Content-Range", "").strip())
    if match is None:
        raise RegistryProtocol("it gives a part of a blob without saying which", subject, status=status)
    return int(match[1])
