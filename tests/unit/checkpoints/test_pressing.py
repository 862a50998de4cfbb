"""Streams compressed on all cores: what comes out is what went in, and what gets no smaller costs no time."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable

import pytest

from stokerd.checkpoints.pressing import pressed
from stokerd.checkpoints.trees import Stop

MIB = 1 << 20
NOISE = random.Random(1).randbytes(3 * MIB)
TEXT = b"a line that is like all the others\n" * (3 * MIB // 35)


async def through(data: bytes) -> bytes:
    def produce(write: Callable[[bytes], object], _stop: Stop) -> int:
        for at in range(0, len(data), 100_000):
            write(data[at : at + 100_000])
        return len(data)

    done: list[int] = []
    body = b"".join([piece async for piece in pressed(produce, 1, done)])
    assert done == [len(data)]
    return body


@pytest.mark.parametrize("data", [b"", b"x", NOISE, TEXT, NOISE + TEXT + NOISE[: MIB // 3], TEXT + NOISE])
async def test_what_comes_out_is_what_went_in(data: bytes) -> None:
    assert gzip.decompress(await through(data)) == data


async def test_noise_is_wrapped_and_text_is_compressed() -> None:
    assert len(NOISE) < len(await through(NOISE)) < len(NOISE) * 1.001
    assert len(await through(TEXT)) < len(TEXT) / 50
    assert len(await through(TEXT + NOISE)) < len(NOISE) + MIB
