from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sse import Message, SseParser

STREAM = (
    b": heartbeat\n\n"
    b"event: job\nid: 1\ndata: {}\n\n"
    b"data: no name\r\n\r\n"
    b"event: item\ndata: two\ndata:lines\nunknown: x\n\n"
    b"event: empty\n\n"
    b"id\ndata\n\n"
)
MESSAGES = [
    Message("job", "1", b"{}"),
    Message("message", "1", b"no name"),
    Message("item", "1", b"two\nlines"),
    Message("message", "", b""),
]


def test_the_whole_stream_at_once() -> None:
    assert SseParser().feed(STREAM) == MESSAGES


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_any_split_reads_the_same(cuts: list[int]) -> None:
    parser = SseParser()
    bounds = [0, *sorted(cuts), len(STREAM)]
    found = [message for start, end in pairwise(bounds) for message in parser.feed(STREAM[start:end])]
    assert found == MESSAGES


def test_an_unfinished_event_is_not_told() -> None:
    assert SseParser().feed(b"event: job\ndata: {}\n") == []


@pytest.mark.parametrize("piece", [b"x" * 50, b"data: x\n" * 7])
def test_endless_events_are_refused(piece: bytes) -> None:
    parser = SseParser(limit=100)
    parser.feed(piece)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        parser.feed(piece + piece)
