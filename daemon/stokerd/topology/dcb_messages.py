"""Asking the kernel which priorities of a network device have flow control of their own (PFC). Pure.

Source: kernel include/uapi/linux/dcbnl.h, rtnetlink.h.
"""

from __future__ import annotations

import struct

from stokerd.topology.link_messages import attributes

_GET_DCB, _REQUEST, _ERROR = 78, 1, 2
_IEEE_GET = 21
_IFNAME, _IEEE, _IEEE_PFC = 1, 13, 2
_HEAD, _DCB, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBH"), struct.Struct("=HH")
_PRIORITIES = range(8)


def question(interface: str, sequence: int) -> bytes:
    """Return the message that asks for a device's settings by IEEE 802.1Qaz."""
    name = interface.encode() + b"\0"
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(name), _IFNAME) + name
    attribute += b"\0" * (-len(attribute) % 4)
    body = _DCB.pack(0, _IEEE_GET, 0) + attribute
    return _HEAD.pack(_HEAD.size + len(body), _GET_DCB, _REQUEST, sequence, 0) + body


def answer(data: bytes, sequence: int) -> tuple[int, ...] | None:
    """Return the priorities that have it; None where the kernel refuses, or says something else. Never raises."""
    if len(data) < _HEAD.size + _DCB.size:
        return None
    length, kind, _, number, _ = _HEAD.unpack_from(data)
    if kind == _ERROR or number != sequence or length > len(data):
        return None
    for name, value in attributes(data[_HEAD.size + _DCB.size : length]):
        if name == _IEEE:
            for inner, body in attributes(value):
                if inner == _IEEE_PFC and len(body) >= 2:
                    return tuple(priority for priority in _PRIORITIES if body[1] >> priority & 1)
    return None
