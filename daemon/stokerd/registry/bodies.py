"""The bytes that an upload sends, read piece by piece as they are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from stokerd.errors import StokerError
from stokerd.registry.push_types import Blob, Contents, Moved, Policy

Tell = Callable[[Moved], object]
_PIECE = 1 << 20


class Body:
    """The bytes of one request, which may be sent twice.

    ``sent`` is how many were handed out in all, ``reached`` where in the blob the last one was, ``failure`` why they
    could not be read.
    """

    def __init__(
        self,
        contents: Contents,
        blob: Blob,
        offset: int,
        length: int,
        tell: Tell = lambda _: None,
        policy: Policy | None = None,
    ) -> None:
        self._contents, self._blob, self._offset, self.length = contents, blob, offset, length
        self._tell, self._policy = tell, policy or Policy()
        self.sent = self.reached = 0
        self.failure: StokerError | None = None
        self.limit: asyncio.Timeout | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield them. Each piece is read when it is its turn: nothing is left open when nobody wants the next."""
        at, end = self._offset, self._offset + self.length
        while at < end:
            try:
                data = await self._contents.read(self._blob, at, min(_PIECE, end - at))
            except StokerError as error:
                self.failure = error
                raise
            at += len(data)
            self.sent += len(data)
            self.reached = max(self.reached, at)
            self._prolong(self._policy.stall if at < end else self._policy.answer)
            yield data
            self._tell(Moved(self._blob.digest, self._blob.size, at, "sending"))
        self._prolong(self._policy.answer)

    def _prolong(self, seconds: float) -> None:
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time() + seconds)


class Held:
    """Contents that are in memory."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def obtain(self, _blob: Blob) -> None:
        """It is here."""

    async def read(self, _blob: Blob, offset: int, size: int) -> bytes:
        return self._body[offset : offset + size]
