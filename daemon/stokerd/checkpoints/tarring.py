"""Headers of tar archives as OCI layers have them: ustar, with pax records for all that does not fit. Pure.

Sources: POSIX.1-2001 (pax), and the OCI image layer specification. Names are bytes, as file systems have them.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from typing import Literal

import msgspec

BLOCK = 512
END = bytes(2 * BLOCK)

Type = Literal[b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
FILE: Type = b"0"
LINK: Type = b"1"
SYMLINK: Type = b"2"
CHARACTER: Type = b"3"
BLOCK_DEVICE: Type = b"4"
DIRECTORY: Type = b"5"
FIFO: Type = b"6"
_PAX: bytes = b"x"
_XATTR = "SCHILY.xattr."
_NANO = 1_000_000_000


class Member(msgspec.Struct, frozen=True):
    """One member of an archive; ``mtime`` in nanoseconds, ``link`` for links of both kinds."""

    name: bytes
    type: Type
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime: int = 0
    link: bytes = b""
    device: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, bytes] = msgspec.field(default_factory=dict)


def header(member: Member) -> bytes:
    """Return all blocks that come before the member's data."""
    name = member.name + (b"/" if member.type == DIRECTORY and not member.name.endswith(b"/") else b"")
    records = _records(member, name)
    plain = _block(member, _short(name), _short(member.link))
    if not records:
        return plain
    body = b"".join(records)
    about = Member(b"pax", FILE, size=len(body))
    return _block(about, b"PaxHeaders.0/pax", b"", _PAX) + padded(body) + plain


def padded(data: bytes) -> bytes:
    return data + padding(len(data))


def padding(size: int) -> bytes:
    """Return what fills the last block of so many bytes."""
    return bytes(-size % BLOCK)


def device_type(mode: int) -> Type:
    return CHARACTER if stat.S_ISCHR(mode) else BLOCK_DEVICE


def _records(member: Member, name: bytes) -> list[bytes]:
    """Return the pax records of everything that the plain header cannot hold."""
    found: list[bytes] = []
    if len(name) > 100 or not name.isascii():
        found.append(_record(b"path", name))
    if len(member.link) > 100 or not member.link.isascii():
        found.append(_record(b"linkpath", member.link))
    for key, value, digits in ((b"uid", member.uid, 7), (b"gid", member.gid, 7), (b"size", member.size, 11)):
        if value >= 8**digits:
            found.append(_record(key, str(value).encode()))
    seconds, nanos = divmod(member.mtime, _NANO)
    if nanos or not 0 <= seconds < 8**11:
        found.append(_record(b"mtime", _time(member.mtime)))
    for key_text, value_bytes in sorted(member.xattrs.items()):
        found.append(_record((_XATTR + key_text).encode("utf-8", "surrogateescape"), value_bytes))
    return found


def _record(key: bytes, value: bytes) -> bytes:
    """``LENGTH key=value\\n``, where the length counts its own digits too."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _time(nanoseconds: int) -> bytes:
    sign, magnitude = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    seconds, nanos = divmod(magnitude, _NANO)
    return f"{sign}{seconds}.{nanos:09d}".rstrip("0").rstrip(".").encode()


def _short(name: bytes) -> bytes:
    """What stands in the plain header; a pax record has the rest when it is longer."""
    return name[:100]


def _octal(value: int, digits: int) -> bytes:
    return b"%0*o\0" % (digits, value if 0 <= value < 8**digits else 0)


def _block(member: Member, name: bytes, link: bytes, kind: bytes = b"") -> bytes:
    fields = (
        name.ljust(100, b"\0"),
        _octal(member.mode & 0o7777, 7),
        _octal(member.uid, 7),
        _octal(member.gid, 7),
        _octal(member.size, 11),
        _octal(member.mtime // _NANO, 11),
        b" " * 8,
        kind or member.type,
        link.ljust(100, b"\0"),
        b"ustar\x0000",
        bytes(64),
        _octal(member.device[0], 7),
        _octal(member.device[1], 7),
        bytes(167),
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
