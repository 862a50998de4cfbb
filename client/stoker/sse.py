"""Reads server-sent events from bytes as they arrive, split wherever the network split them. No I/O."""

from __future__ import annotations

from typing import NamedTuple

LIMIT_BYTES = 64 * 1024 * 1024


class Message(NamedTuple):
    """One event."""

    event: str
    id: str
    data: bytes


class SseParser:
    """Feed it bytes, get the messages that are complete."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        """*limit*: most bytes that one message may have; a ValueError above."""
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._size = 0
        self._event = ""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Message]:
        """Take *chunk* in and return the messages that it completed, in order."""
        self._buffer += chunk
        messages = []
        start = 0
        while (end := self._buffer.find(b"\n", max(start, self._searched))) >= 0:
            line = bytes(self._buffer[start:end])
            start = end + 1
            message = self._line(line[:-1] if line.endswith(b"\r") else line)
            if message is not None:
                messages.append(message)
        del self._buffer[:start]
        self._searched = len(self._buffer)
        if self._size + len(self._buffer) > self._limit:
            raise ValueError(f"an event is longer than {self._limit} bytes")
        return messages

    def _line(self, line: bytes) -> Message | None:
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return None
        self._size += len(line)
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._event = value.decode("utf-8", "replace")
        elif field == b"id":
            self._id = value.decode("utf-8", "replace")
        elif field == b"data":
            self._data.append(value)
        return None

    def _dispatch(self) -> Message | None:
        message = Message(self._event or "message", self._id, b"\n".join(self._data)) if self._data else None
        self._event = ""
        self._data = []
        self._size = 0
        return message
