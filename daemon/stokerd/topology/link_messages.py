"""What the kernel tells of network devices by rtnetlink. Pure.

Source: kernel include/uapi/linux/netlink.h, rtnetlink.h, if_link.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

_NEW, _DEL = 16, 17
_NAME, _LINK_INFO, _INFO_KIND = 3, 18, 1
_LOWER_UP = 1 << 16
_HEAD, _INFO, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")
_KIND_MASK = 0x3FFF


class LinkMessage(msgspec.Struct, frozen=True):
    """One network device: what it is now. ``kind`` is empty for those that have hardware beneath them."""

    name: str
    kind: str = ""
    up: bool = False
    gone: bool = False


def parse(data: bytes) -> list[LinkMessage]:
    """Return what a datagram tells of links; other messages, and what is cut off, are passed over. Never raises."""
    found = []
    start = 0
    while start + _HEAD.size <= len(data):
        length, kind, _, _, _ = _HEAD.unpack_from(data, start)
        end = start + length
        if length < _HEAD.size or end > len(data):
            break
        if kind in {_NEW, _DEL} and length >= _HEAD.size + _INFO.size:
            message = _link(data[start + _HEAD.size : end], gone=kind == _DEL)
            if message.name:
                found.append(message)
        start += -(-length // 4) * 4
    return found


def _link(body: bytes, *, gone: bool) -> LinkMessage:
    flags = _INFO.unpack_from(body)[3]
    name = kind = ""
    for number, value in attributes(body[_INFO.size :]):
        if number == _NAME:
            name = _text(value)
        elif number == _LINK_INFO:
            kind = next((_text(inner) for inner_number, inner in attributes(value) if inner_number == _INFO_KIND), "")
    return LinkMessage(name, kind, bool(flags & _LOWER_UP), gone)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a message of rtnetlink; what is cut off is passed over."""
    start = 0
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size or start + length > len(data):
            return
        yield kind & _KIND_MASK, data[start + _ATTRIBUTE.size : start + length]
        start += -(-length // 4) * 4


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode("utf-8", errors="replace")
