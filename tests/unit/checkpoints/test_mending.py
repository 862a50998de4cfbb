"""Periodic timers that had expired when they were dumped are armed again at a restore."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.checkpoints.mending import mended

MAGIC = struct.pack("<II", 0x54564319, 0x56303138)
OTHER = bytes.fromhex("080110011a020800")


def number(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def timer(ticks: int, value: tuple[int, int], interval: tuple[int, int]) -> bytes:
    """A file_entry with a timerfd_entry, as CRIU writes them."""
    body = b""
    for field, content in zip((1, 2, 4, 5, 6, 7, 8, 9, 10), (12, 2050, 1, ticks, 0, *value, *interval), strict=True):
        body += number(field << 3) + number(content)
    body = body[:5] + b"\x1a\x02\x08\x00" + body[5:]
    return b"\x08\x11\x10\x0c" + number(12 << 3 | 2) + number(len(body)) + body


def image(*records: bytes) -> bytes:
    return MAGIC + b"".join(struct.pack("<I", len(each)) + each for each in records)


def times(body: bytes) -> bytes:
    """The end of the one timer: what is left, written last."""
    return body[-12:]


def test_one_that_had_expired_begins_with_its_interval() -> None:
    found = mended(image(OTHER, timer(1, (0, 0), (0, 5_000_000)), OTHER))
    assert found is not None
    assert found.startswith(image(OTHER))
    assert found.endswith(struct.pack("<I", len(OTHER)) + OTHER)
    assert number(7 << 3) + number(0) + number(8 << 3) + number(5_000_000) in found
    assert number(9 << 3) + number(0) + number(10 << 3) + number(5_000_000) in found
    assert mended(found) is None


@pytest.mark.parametrize(
    "record",
    [
        OTHER,
        timer(0, (0, 0), (0, 5_000_000)),  # disarmed by its owner
        timer(1, (0, 0), (0, 0)),  # expired, and no periodic one
        timer(3, (0, 17), (1, 0)),  # armed
        timer(3, (2, 0), (1, 0)),
    ],
)
def test_others_stay_as_they_are(record: bytes) -> None:
    assert mended(image(OTHER, record)) is None


@given(st.binary(max_size=200), st.booleans())
def test_what_is_not_understood_stays_as_it_is(body: bytes, known: bool) -> None:
    whole = image(timer(1, (0, 0), (0, 5)))
    assert mended(whole[:-1]) is None
    found = mended(MAGIC + body if known else body)
    assert found is None or found.startswith(MAGIC)
