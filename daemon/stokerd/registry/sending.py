"""One blob on its way to a registry: in pieces, on after a break, anew where the registry has lost it."""

from __future__ import annotations

from typing import Protocol

from stokerd.registry.bodies import Body
from stokerd.registry.errors import DigestMismatch, RegistryError, RegistryProtocol, Subject
from stokerd.registry.push_types import Blob
from stokerd.registry.transport import Answer
from stokerd.registry.uploads import (
    ACCEPTED,
    CREATED,
    Upload,
    is_gone,
    is_passing,
    resumed,
    takes_no_chunks,
    went_on,
    with_digest,
)


class Push(Protocol):
    """The push that a blob is a part of: `pushing.Push`."""

    @property
    def chunk(self) -> int: ...
    def subject(self, target: str) -> Subject: ...
    def body(self, blob: Blob, offset: int, length: int) -> Body: ...
    def refused(self, answer: Answer, target: str) -> RegistryError: ...
    async def ask(self, method: str, url: str, target: str) -> Answer: ...
    async def send(self, method: str, url: str, target: str, body: Body, headers: dict[str, str]) -> Answer: ...
    async def has(self, blob: Blob) -> bool: ...
    async def begin(self, blob: Blob) -> Upload: ...
    async def rest(self, attempt: int, error: RegistryError) -> None: ...


class Sending:
    """One blob on its way."""

    def __init__(self, push: Push, blob: Blob, upload: Upload | None) -> None:
        self._push, self._blob, self._upload = push, blob, upload
        self._reached = self._best = 0
        self._resumed = self._anew = False
        self._whole = blob.size <= push.chunk

    async def run(self) -> None:
        attempt, sure = 0, True
        while True:
            try:
                if not sure and await self._settled():
                    return
                sure = True
                await self._go_on()
            except RegistryError as error:
                if not is_passing(error):
                    raise
                attempt = 1 if self._moved() else attempt + 1
                sure = False
                await self._push.rest(attempt, error)
            else:
                return

    def _moved(self) -> bool:
        """Say whether more is confirmed than at any failure before: then patience begins anew."""
        offset = self._upload.offset if self._upload is not None else 0
        moved, self._best = offset > self._best, max(offset, self._best)
        return moved

    async def _settled(self) -> bool:
        """Find out after a break what the registry has: all, a part, or nothing."""
        if await self._push.has(self._blob):
            return True
        if self._upload is not None and not self._whole:
            answer = await self._push.ask("GET", self._upload.url, self._blob.digest)
            if answer.status >= 500 or answer.status in {401, 403, 429}:
                raise self._push.refused(answer, self._blob.digest)
            self._upload = resumed(self._upload, self._reached, answer.status, answer.headers)
            self._resumed = True
        else:
            self._upload = None
        return False

    async def _go_on(self) -> None:
        """Send what is missing, and end the upload. What the registry threw away begins anew."""
        for _ in range(3):
            if self._upload is None:
                self._upload = await self._push.begin(self._blob)
            while not self._whole and self._upload is not None and self._upload.offset < self._blob.size:
                self._upload = await self._chunk(self._upload)
            if self._upload is not None and await self._finish(self._upload):
                return
            self._upload = None
        raise RegistryProtocol("it throws uploads away before they are complete", self._push.subject(self._blob.digest))

    async def _chunk(self, upload: Upload) -> Upload | None:
        length = min(self._push.chunk, self._blob.size - upload.offset)
        body = self._push.body(self._blob, upload.offset, length)
        headers = {"Content-Range": f"{upload.offset}-{upload.offset + length - 1}"}
        try:
            answer = await self._push.send("PATCH", upload.url, self._blob.digest, body, headers)
        finally:
            self._reached = max(self._reached, body.reached)
        if answer.status in {CREATED, ACCEPTED, 204}:
            try:
                return went_on(upload, length, answer.headers)
            except ValueError as error:
                subject = self._push.subject(self._blob.digest)
                raise RegistryProtocol(str(error), subject, status=answer.status) from None
        if self._resumed and is_gone(answer.status):  # it noticed the break only after it was asked
            self._resumed = False
            return None
        if takes_no_chunks(answer.status, upload.offset):
            self._whole = True
            return None
        raise self._push.refused(answer, self._blob.digest)

    async def _finish(self, upload: Upload) -> bool:
        """End the upload, with all of the blob when it is sent as a whole; False when it has been thrown away."""
        url = with_digest(upload.url, self._blob.digest)
        body = self._push.body(self._blob, 0, self._blob.size if self._whole else 0)
        try:
            answer = await self._push.send("PUT", url, self._blob.digest, body, {})
        finally:
            self._reached = max(self._reached, body.reached)
        if answer.status in {CREATED, 200, 204}:
            return True
        if b"DIGEST_INVALID" in answer.body:
            if self._reached and self._resumed and not self._anew:  # what broke off may have come after what followed
                self._anew = True
                return False
            what = "it says that what it was sent has another digest"
            raise DigestMismatch(what, self._push.subject(self._blob.digest), hint="check this node's disk; pull again")
        if is_gone(answer.status) and not self._whole:
            return False
        raise self._push.refused(answer, self._blob.digest)
