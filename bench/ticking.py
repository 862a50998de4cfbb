"""What is measured: a program that ticks every millisecond and keeps the longest time between two ticks.

The same for all who are compared: for how long a container really stood, and when a restored one really went on.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from bench.podman import tick_program
from tests.rig.bundled import busybox_entries
from tests.rig.images import Image, ImageSpec, build, random_image
from tests.rig.layers import Entry, LayerSpec

FILE = "tick"
MIB = 1 << 20
_RECORD = struct.Struct("=QQQQ")
_FORWARD = 60.0
_CONFIG = {"Env": ["PATH=/bin"], "Cmd": ["sh"]}


@dataclass(frozen=True)
class Ticks:
    """One reading: how many ticks, the longest time between two in ms, and when (in s of the real time) it ended."""

    count: int
    gap: float
    until: float


class Ticker:
    """The file of one ticking program, as this machine sees it."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE

    def read(self) -> Ticks | None:
        """Return what is there; None before the first tick after a `reset`."""
        try:
            body = self._file.read_bytes()
        except FileNotFoundError:
            return None
        if len(body) != _RECORD.size:
            return None
        count, _, gap, until = _RECORD.unpack(body)
        return Ticks(count, gap / 1e6, until / 1e9)

    async def reset(self) -> None:
        """Begin anew, and let it tick for a moment."""
        os.truncate(self._file, 0)
        await self.beyond(await self.beyond(0))

    async def beyond(self, count: int) -> int:
        """Return when there are some more ticks than *count*."""
        async with asyncio.timeout(_FORWARD):
            while (seen := self.read()) is None or seen.count < count + 5:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
        return seen.count

    async def gap(self) -> float:
        """Return the longest time without a tick since the last `reset`, in ms, when it ticks again."""
        seen = self.read()
        await self.beyond(seen.count if seen is not None else 0)
        seen = self.read()
        assert seen is not None
        return seen.gap


async def first_tick(ticker: Ticker, began: float) -> float:
    """Return how long after *began* a restored program went on, in ms.

    Its longest time without a tick is the one in which it did not exist.
    """
    async with asyncio.timeout(_FORWARD):
        while (seen := ticker.read()) is None or seen.until < began:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
    return (seen.until - began) * 1000


def now() -> float:
    return time.time()


def image() -> Image:
    """Return busybox and the program."""
    return build(ImageSpec(layers=_layers(), config=_CONFIG))


def big_image(size: int, files: int, layers: int) -> Image:
    """Return the same on top of much else."""
    spec = random_image(layers=layers, size=size, files=files, compressible=0.5, seed="bench big")
    return build(ImageSpec(layers=(*spec.layers, *_layers()), config=_CONFIG))


def command(memory_mib: int = 0) -> list[str]:
    return ["tick", f"/{FILE}", *([str(memory_mib)] if memory_mib else [])]


def _layers() -> tuple[LayerSpec, ...]:
    program = Entry("bin/tick", tick_program(), 0o755)
    return LayerSpec(entries=busybox_entries()), LayerSpec(entries=(program,))
