"""A layer compressed on all cores: each MiB is a gzip member of its own, which every reader of gzip puts together."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import AsyncGenerator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full, Queue

from stokerd.checkpoints.ending import settled
from stokerd.checkpoints.errors import Stopped
from stokerd.checkpoints.layers import Packed, pack_layer

_BLOCK = 1 << 20
_AHEAD = 4
_LOOK = 0.2
_GZIP = 31
"""zlib's window of 15 bits, plus 16 for the form of gzip."""

Blocks = Queue["Future[bytes] | None"]


async def pressed(upper: str, level: int, packed: list[Packed]) -> AsyncGenerator[bytes, None]:
    """Yield the compressed layer of *upper*, piece by piece; what is known of it is in *packed* at the end.

    Whoever does not read to the end closes the generator: threads end with it.
    """
    cores, stop = os.cpu_count() or 1, threading.Event()
    blocks: Blocks = Queue(maxsize=cores * _AHEAD)
    with ThreadPoolExecutor(cores, thread_name_prefix="press") as pool:
        packing = asyncio.get_running_loop().run_in_executor(None, _pack, upper, level, pool, blocks, stop)
        try:
            while (block := await asyncio.to_thread(blocks.get)) is not None:
                yield await asyncio.wrap_future(block)
            packed.append(await packing)
        finally:
            stop.set()
            cancelled = await settled(packing)
            if not packing.cancelled():
                packing.exception()
            if cancelled is not None:
                raise cancelled


def _pack(upper: str, level: int, pool: ThreadPoolExecutor, blocks: Blocks, stop: threading.Event) -> Packed:
    pending = bytearray()

    def put(block: Future[bytes] | None) -> None:
        while not stop.is_set():
            try:
                blocks.put(block, timeout=_LOOK)
            except Full:
                continue
            return
        if block is not None:
            raise Stopped("the packing was told to stop")

    def write(data: bytes) -> None:
        pending.extend(data)
        while len(pending) >= _BLOCK:
            block = bytes(pending[:_BLOCK])
            del pending[:_BLOCK]
            put(pool.submit(_press, block, level))

    try:
        found = pack_layer(upper, write, stop.is_set)
        put(pool.submit(_press, bytes(pending), level))
        return found
    finally:
        put(None)


def _press(block: bytes, level: int) -> bytes:
    press = zlib.compressobj(level, zlib.DEFLATED, _GZIP)
    return press.compress(block) + press.flush()
