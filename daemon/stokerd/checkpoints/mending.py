"""What CRIU writes and could not make good at a restore, put right in its images. Pure.

A periodic timerfd that expires while its process stands is armed again by the kernel only when it is read. CRIU writes
it with no time left, which at a restore means disarmed: the program would wait for ever. Of timers of other kinds CRIU
itself takes care in the same way: what has no time left begins with its interval.

Sources: CRIU's image format (a pair of magic numbers, then records of a length and a protobuf message) and its
messages file_entry and timerfd_entry, as CRIU 3.12 to 4.2 write them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

FILES = "files.img"
_MAGIC = struct.pack("<II", 0x54564319, 0x56303138)
_TIMERFD = 12
_TICKS, _SECONDS, _NANOSECONDS, _INTERVAL_SECONDS, _INTERVAL_NANOSECONDS = 5, 7, 8, 9, 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def mended(body: bytes) -> bytes | None:
    """Return what files.img is to be, None when it is right as it is or not understood."""
    if not body.startswith(_MAGIC):
        return None
    found, changed = [_MAGIC], False
    try:
        for record in _records(body[len(_MAGIC) :]):
            new = _file(record)
            changed = changed or new != record
            found.append(struct.pack("<I", len(new)) + new)
    except (IndexError, ValueError, struct.error):
        return None
    return b"".join(found) if changed else None


def _records(body: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(body):
        (size,) = struct.unpack_from("<I", body, offset)
        offset += 4
        if offset + size > len(body):
            raise ValueError("a record is cut off")
        yield body[offset : offset + size]
        offset += size


def _file(record: bytes) -> bytes:
    parts = []
    for number, kind, raw, value in _fields(record):
        if number == _TIMERFD and kind == _BYTES:
            timer = _timer(value)
            parts.append(_tag(number, kind) + _number(len(timer)) + timer)
        else:
            parts.append(raw)
    return b"".join(parts)


def _timer(message: bytes) -> bytes:
    fields = list(_fields(message))
    values = {number: _decoded(value) for number, kind, _, value in fields if kind == _VARINT}
    interval = values.get(_INTERVAL_SECONDS, 0), values.get(_INTERVAL_NANOSECONDS, 0)
    expired = values.get(_TICKS, 0) and not (values.get(_SECONDS) or values.get(_NANOSECONDS))
    if not expired or not any(interval):
        return message
    kept = b"".join(raw for number, _, raw, _ in fields if number not in {_SECONDS, _NANOSECONDS})
    times = zip((_SECONDS, _NANOSECONDS), interval, strict=True)
    return kept + b"".join(_tag(number, _VARINT) + _number(value) for number, value in times)


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield number, kind, the whole field, and its value alone."""
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = _read(message, offset)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            begin = offset
            _, offset = _read(message, offset)
        elif kind in {_FIXED32, _FIXED64}:
            begin, offset = offset, offset + (4 if kind == _FIXED32 else 8)
        elif kind == _BYTES:
            size, begin = _read(message, offset)
            offset = begin + size
        else:
            raise ValueError(f"a field of kind {kind}")
        if offset > len(message):
            raise ValueError("a field is cut off")
        yield number, kind, message[start:offset], message[begin:offset]


def _read(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if not byte & 0x80:
            return value, offset
        if shift > 63:
            raise ValueError("a number is too long")


def _decoded(value: bytes) -> int:
    return _read(value, 0)[0]


def _tag(number: int, kind: int) -> bytes:
    return _number(number << 3 | kind)


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
