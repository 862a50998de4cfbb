"""Archives of others read: the one form that `tarring` writes, and nothing else. Knows no I/O.

Tar has many dialects, and two readers of one archive may see two things in it. So what is not written as we would is
refused: sparse files, long names in GNU's way, global headers, sizes in base 256, unknown records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import cast

from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.checkpoints.tarring import BLOCK, Member, Type

Read = Callable[[int], bytes]
"""Returns so many bytes, fewer only at the end."""

LONGEST_NAME = 4096
LONGEST_RECORDS = 1 << 20
_STEP = 1 << 20
_TYPES: frozenset[bytes] = frozenset({b"0", b"1", b"2", b"3", b"4", b"5", b"6"})
_PAX = b"x"
_XATTR = b"SCHILY.xattr."
_NUMBERS = {b"uid": 2**32 - 1, b"gid": 2**32 - 1, b"size": 2**63 - 1}
_TIME = re.compile(rb"(-?)([0-9]{1,18})(?:\.([0-9]{1,9}))?")
_NANO = 1_000_000_000


class TarReader:
    """The members of an archive, one after the other. What is not read of a member's data is passed over."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._left = 0
        self._padding = 0
        self._member = ""

    def members(self) -> Iterator[Member]:
        """Yield all members; ArchiveRefused for anything that is not in our form."""
        while True:
            self._pass_over()
            block = self._exactly(BLOCK)
            if not any(block):
                if any(self._exactly(BLOCK)):
                    raise ArchiveRefused("an empty block stands in the middle")
                return
            records: dict[bytes, bytes] = {}
            if block[156:157] == _PAX:
                size = _number(block[124:136])
                if size > LONGEST_RECORDS:
                    raise ArchiveRefused("a header is too long")
                _check(block)
                records = _records(self._exactly(size))
                self._exactly(-size % BLOCK)
                block = self._exactly(BLOCK)
            member = _member(block, records)
            self._member = member.name.decode("utf-8", "replace")
            self._left = member.size
            self._padding = -member.size % BLOCK
            yield member

    def data(self) -> Iterator[bytes]:
        """Yield the data of the member that was yielded last."""
        while self._left:
            piece = self._read(min(_STEP, self._left))
            if not piece:
                raise ArchiveRefused("the archive ends in the middle of it", self._member)
            self._left -= len(piece)
            yield piece

    def _pass_over(self) -> None:
        for _ in self.data():
            """It was not wanted."""
        self._exactly(self._padding)
        self._padding = 0

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._read(size - len(found))
            if not piece:
                raise ArchiveRefused("the archive ends too early", self._member)
            found += piece
        return found


def _member(block: bytes, records: dict[bytes, bytes]) -> Member:
    _check(block)
    kind = block[156:157]
    if kind not in _TYPES:
        raise ArchiveRefused(f"an entry of the type {kind!r}, which is none that we write", _shown(block[:100]))
    if block[257:265] != b"ustar\x0000" or any(block[345:500]):
        raise ArchiveRefused("it is not an archive in the form that we write", _shown(block[:100]))
    name, link = records.pop(b"path", _text(block[:100])), records.pop(b"linkpath", _text(block[157:257]))
    numbers = {key: _record_number(key, records.pop(key, None)) for key in _NUMBERS}
    seconds = _number(block[136:148])
    member = Member(
        name=name,
        type=_type(kind),
        mode=_number(block[100:108]),
        uid=_or(numbers[b"uid"], _number(block[108:116])),
        gid=_or(numbers[b"gid"], _number(block[116:124])),
        size=_or(numbers[b"size"], _number(block[124:136])),
        mtime=_time(records.pop(b"mtime")) if b"mtime" in records else seconds * _NANO,
        link=link,
        device=(_number(block[329:337]), _number(block[337:345])),
        xattrs={_attribute(key): records.pop(key) for key in [each for each in records if each.startswith(_XATTR)]},
    )
    if records:
        raise ArchiveRefused(f"a record {_shown(next(iter(records)))} that we do not write", _shown(name))
    if member.size and kind != b"0":
        raise ArchiveRefused("an entry without data says that it has some", _shown(name))
    return member


def _type(kind: bytes) -> Type:
    return cast("Type", bytes(kind))


def _check(block: bytes) -> None:
    if _number(block[148:156]) != sum(block[:148]) + sum(block[156:]) + 8 * 0x20:
        raise ArchiveRefused("a header is damaged", _shown(block[:100]))


def _number(field: bytes) -> int:
    text = field.rstrip(b" \0").lstrip(b" ")
    if not text:
        return 0
    if not all(0x30 <= char <= 0x37 for char in text):
        raise ArchiveRefused("a number of a header is not written as we do")
    return int(text, 8)


def _records(body: bytes) -> dict[bytes, bytes]:
    """Read ``LENGTH key=value\\n`` as often as it is there; none may be there twice."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 8)
        length = int(body[at:space]) if space > at and body[at:space].isdigit() else 0
        record = body[space + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if length <= 0 or at + length > len(body) or not record.endswith(b"\n") or not equals or key in found:
            raise ArchiveRefused("a header cannot be read")
        found[key] = value
        at += length
    return found


def _record_number(key: bytes, text: bytes | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or len(text) > 20 or int(text) > _NUMBERS[key]:
        raise ArchiveRefused(f"the {key.decode()} {_shown(text)} is no number that can be")
    return int(text)


def _time(text: bytes) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ArchiveRefused(f"the time {_shown(text)} is none")
    nanos = int(match[2]) * _NANO + int((match[3] or b"").ljust(9, b"0"))
    return -nanos if match[1] else nanos


def _attribute(key: bytes) -> str:
    return key.removeprefix(_XATTR).decode("utf-8", "surrogateescape")


def _or(record: int | None, plain: int) -> int:
    return plain if record is None else record


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _shown(text: bytes) -> str:
    return text.partition(b"\0")[0].decode("utf-8", "replace")
