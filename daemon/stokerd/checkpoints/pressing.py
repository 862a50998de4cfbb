"""A stream compressed on all cores: each block is a gzip member or a zstd frame of its own, which every reader puts
together."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Full, Queue
from typing import Literal, TypeVar

from stokerd.checkpoints.ending import settled
from stokerd.checkpoints.errors import Stopped
from stokerd.checkpoints.trees import Stop

T = TypeVar("T")

Compression = Literal["gzip", "zstd"]
Produce = Callable[[Callable[[bytes], object], Stop], T]
"""Hands bytes to what it is given, in a thread, until it is told to stop; what it returns is for whoever asked."""

_BLOCKS: dict[Compression, int] = {"gzip": 1 << 20, "zstd": 4 << 20}
_AHEAD = 4
_LOOK = 0.2
_GZIP = 31
"""zlib's window of 15 bits, plus 16 for the form of gzip."""
_PIECE = 4 << 10
_DENSE = 0.97

Blocks = Queue["Future[bytes] | None"]


async def pressed(
    produce: Produce[T], level: int, done: list[T], compression: Compression = "gzip"
) -> AsyncGenerator[bytes, None]:
    """Yield compressed, piece by piece, what *produce* writes; what it returned is in *done* at the end.

    Whoever does not read to the end closes the generator: threads end with it.
    """
    cores, stop = os.cpu_count() or 1, threading.Event()
    blocks: Blocks = Queue(maxsize=cores * _AHEAD)
    press = _presser(compression, level)
    loop = asyncio.get_running_loop()
    # Two threads of its own wait for whoever reads, and for what is written: the daemon's few are for what goes on.
    with ThreadPoolExecutor(cores, "press") as pool, ThreadPoolExecutor(2, "pack") as own:
        work = _Work(press, _BLOCKS[compression], pool, blocks, stop)
        packing = loop.run_in_executor(own, work.run, produce)
        try:
            while (block := await loop.run_in_executor(own, blocks.get)) is not None:
                yield await asyncio.wrap_future(block)
            done.append(await packing)
        finally:
            stop.set()
            cancelled = await settled(packing)
            if not packing.cancelled():
                packing.exception()
            if cancelled is not None:
                raise cancelled


class _Work:
    """What runs in a thread: blocks are cut off what is written, and handed to the pool."""

    def __init__(
        self,
        press: Callable[[bytes], bytes],
        block: int,
        pool: ThreadPoolExecutor,
        blocks: Blocks,
        stop: threading.Event,
    ) -> None:
        self._press, self._block, self._pool, self._blocks, self._stop = press, block, pool, blocks, stop
        self._pending = bytearray()

    def run(self, produce: Produce[T]) -> T:
        try:
            found = produce(self._write, self._stop.is_set)
            self._put(self._pool.submit(self._press, bytes(self._pending)))
            return found
        finally:
            self._put(None)

    def _write(self, data: bytes) -> None:
        self._pending.extend(data)
        while len(self._pending) >= self._block:
            block = bytes(self._pending[: self._block])
            del self._pending[: self._block]
            self._put(self._pool.submit(self._press, block))

    def _put(self, block: Future[bytes] | None) -> None:
        while not self._stop.is_set():
            try:
                self._blocks.put(block, timeout=_LOOK)
            except Full:
                continue
            return
        if block is not None:
            raise Stopped("the packing was told to stop")
        with suppress(Full):  # whoever waits for a block is to wait no longer
            self._blocks.put_nowait(None)


def _presser(compression: Compression, level: int) -> Callable[[bytes], bytes]:
    if compression == "gzip":
        return lambda block: _gzip(block, level)
    import zstandard  # loaded when it is wanted: 3 MiB

    def frame(block: bytes) -> bytes:
        # A compressor is no thread's but the one that uses it.
        return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(block)

    return frame


def _gzip(block: bytes, level: int) -> bytes:
    """What gets no smaller is only wrapped: zlib would try for as long as it takes to compress what does."""
    press = zlib.compressobj(0 if level and _is_dense(block) else level, zlib.DEFLATED, _GZIP)
    return press.compress(block) + press.flush()


def _is_dense(block: bytes) -> bool:
    """Say whether a block is compressed already, or random: judged by some pieces of it."""
    last = max(len(block) - _PIECE, 0)
    pieces = b"".join(block[at : at + _PIECE] for at in (0, last // 3, last // 3 * 2, last))
    return len(zlib.compress(pieces, 1)) > len(pieces) * _DENSE
