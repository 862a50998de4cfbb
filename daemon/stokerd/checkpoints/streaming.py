"""A stream that comes over the event loop, read by a thread: decompressed where it has to be, counted, told to stop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import IO, cast

from stokerd.checkpoints.errors import ArchiveRefused, Stopped
from stokerd.checkpoints.trees import Stop
from stokerd.checkpoints.untarring import Read

_ZSTD = b"\x28\xb5\x2f\xfd"
_WINDOW = 128 << 20
"""The most memory that a frame of zstd may make us take."""
_LOOK = 0.2


class Source:
    """Reads an asynchronous stream in a thread. *loop* is the one that the stream belongs to."""

    def __init__(self, pieces: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop, stop: Stop) -> None:
        self._pieces, self._loop, self._stop = pieces, loop, stop
        self._held = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        """Return at most *size* bytes, none at the end. Stopped when told so."""
        while not self._held and not self._ended:
            self._fill()
        found, self._held = self._held[:size], self._held[size:]
        return found

    def peek(self, size: int) -> bytes:
        """Return what comes first, without taking it."""
        while len(self._held) < size and not self._ended:
            before, self._held = self._held, b""
            self._fill()
            self._held = before + self._held
        return self._held[:size]

    def _fill(self) -> None:
        future = asyncio.run_coroutine_threadsafe(_next(self._pieces), self._loop)
        while True:
            try:
                piece = future.result(_LOOK)
            except concurrent.futures.TimeoutError:
                if self._stop():
                    future.cancel()
                    raise Stopped("the reading was told to stop") from None
                continue
            except concurrent.futures.CancelledError:
                raise Stopped("the reading was told to stop") from None
            self._held, self._ended = piece or b"", piece is None
            return


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        return None


def plain(source: Source) -> Read:
    """Return what reads *source*, decompressed when it is zstd."""
    if source.peek(len(_ZSTD)) != _ZSTD:
        return source.read
    import zstandard  # loaded when it is wanted: 3 MiB

    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
        cast("IO[bytes]", source), read_across_frames=True
    )

    def read(size: int) -> bytes:
        try:
            return bytes(reader.read(size))
        except zstandard.ZstdError as error:
            raise ArchiveRefused(f"it cannot be decompressed: {error}") from None

    return read


class Counted:
    """The data of one part: no more than *size* bytes, whose digest is known at the end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._held = iter(pieces), b""
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Return at most *size* bytes, none at the end."""
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._hash.update(piece)
            self._held = piece
        found, self._held = self._held[:size], self._held[size:]
        return found

    def finish(self, name: str, digest: str) -> None:
        """Read the rest, and compare; ArchiveRefused when it is not what was announced."""
        while self.read(1 << 20):
            """What follows the end of an archive means nothing."""
        if f"sha256:{self._hash.hexdigest()}" != digest:
            raise ArchiveRefused("it has other content than was announced", name)
