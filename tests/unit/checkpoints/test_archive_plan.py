"""What of an archive may come onto the node, entry by entry; and the one form of tar that is read."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.checkpoints import archive_plan
from stokerd.checkpoints.archive_plan import Limits, TreePlan
from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.checkpoints.tarring import (
    CHARACTER,
    DIRECTORY,
    END,
    FIFO,
    FILE,
    LINK,
    SYMLINK,
    Member,
    header,
    padded,
)
from stokerd.checkpoints.untarring import TarReader

WIDE = Limits(1 << 40)
NAMES = st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name)
STEPS = st.sampled_from([b"a", b"b", b"..", b".", b"", b"a" * 256, b".wh.a", b".wh..wh..opq", b".wh..wh.x", b"etc"])
PATHS = st.lists(STEPS, min_size=1, max_size=5).map(b"/".join)
TYPES = st.sampled_from([FILE, LINK, SYMLINK, CHARACTER, b"4", DIRECTORY, FIFO])
MEMBERS = st.builds(
    Member,
    name=NAMES,
    type=TYPES,
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 2**32 - 2),
    gid=st.integers(0, 2**32 - 2),
    mtime=st.integers(-(10**18), 10**19),
    link=st.binary(max_size=300).filter(lambda name: b"\0" not in name),
    device=st.tuples(st.integers(0, 4095), st.integers(0, 255)),
    xattrs=st.dictionaries(st.sampled_from(["user.a", "security.capability", "user.b c"]), st.binary(max_size=200)),
)


def read(body: bytes) -> list[tuple[Member, bytes]]:
    reader = TarReader(io.BytesIO(body).read)
    return [(member, b"".join(reader.data())) for member in reader.members()]


# ------------------------------------------------------------------------------------------------ the form


@given(st.lists(st.tuples(MEMBERS, st.binary(max_size=2000)), max_size=5))
def test_what_we_write_is_read_as_it_was(members: list[tuple[Member, bytes]]) -> None:
    body = b""
    wanted: list[tuple[Member, bytes]] = []
    for member, data in members:
        own = data if member.type == FILE else b""
        name = member.name if member.type != DIRECTORY or member.name.endswith(b"/") else member.name + b"/"
        whole = Member(**{**as_dict(member), "size": len(own)})
        body += header(whole) + padded(own)
        wanted.append((Member(**{**as_dict(whole), "name": name}), own))
    assert read(body + END) == wanted


def as_dict(member: Member) -> dict[str, Any]:
    return {name: getattr(member, name) for name in Member.__struct_fields__}


@given(MEMBERS, st.integers(0, 511), st.integers(1, 255))
def test_a_damaged_header_is_noticed(member: Member, at: int, by: int) -> None:
    body = bytearray(header(Member(**{**as_dict(member), "name": b"a", "xattrs": {}, "mtime": 0, "link": b""})) + END)
    body[at] ^= by
    try:
        found = read(bytes(body))
    except ArchiveRefused:
        return
    # What stands in the checksum's own field may be written in more than one way; nothing else may.
    assert 148 <= at < 156
    assert len(found) == 1


@given(st.binary(max_size=3000))
def test_anything_at_all_is_refused_or_read(body: bytes) -> None:
    try:
        read(body)
    except ArchiveRefused:
        return
    assert body[:1024] == END


FOREIGN = {
    "sparse": (156, b"S"),
    "a long name in GNU's way": (156, b"L"),
    "a global header": (156, b"g"),
    "a contiguous file": (156, b"7"),
    "another magic": (257, b"ustar  \0"),
    "a prefix": (345, b"etc"),
    "a size in base 256": (124, b"\x80" + b"\0" * 10 + b"\x01"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_other_dialects_are_refused(what: str) -> None:
    at, text = FOREIGN[what]
    block = bytearray(header(Member(b"a", FILE)))
    block[at : at + len(text)] = text
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(ArchiveRefused):
        read(bytes(block) + END)


@pytest.mark.parametrize(
    "records",
    [
        b"25 GNU.sparse.major=1\n",
        b"12 path=a/b\n12 path=c/d\n",
        b"99 path=a\n",
        b"12 path=a/b ",
        b"nonsense",
        b"9 size=-1\n",
        b"30 size=99999999999999999999\n",
        b"14 mtime=later\n",
    ],
)
def test_records_that_we_do_not_write(records: bytes) -> None:
    pax = bytearray(header(Member(b"x", FILE, size=len(records))))
    pax[156:157] = b"x"
    pax[148:156] = b" " * 8
    pax[148:156] = b"%06o\0 " % sum(pax)
    with pytest.raises(ArchiveRefused):
        read(bytes(pax) + padded(records) + header(Member(b"a", FILE)) + END)


# ------------------------------------------------------------------------------------------------ the decisions


@given(st.lists(st.builds(Member, name=PATHS, type=TYPES, size=st.integers(0, 3), link=PATHS), max_size=12))
def test_nothing_leaves_the_tree_whatever_comes(members: list[Member]) -> None:
    """Played on a model: every name is made below a directory that was made before, and nothing is made twice."""
    plan = TreePlan(WIDE)
    made: dict[bytes, bytes] = {b"": DIRECTORY}
    for member in members:
        try:
            placed = plan.place(member)
        except ArchiveRefused:
            continue
        steps = placed.path.split(b"/")
        assert not {b"..", b".", b""} & set(steps) or (placed.action == "opaque" and placed.path == b"")
        if placed.action == "opaque":
            assert made[placed.path] == DIRECTORY
            continue
        head = placed.path.rpartition(b"/")[0]
        assert made[head] == DIRECTORY
        assert placed.path not in made
        assert not steps[-1].startswith(b".wh.")
        if placed.action == "link":
            assert made[placed.link] not in {DIRECTORY, b"whiteout"}
        made[placed.path] = b"whiteout" if placed.action == "whiteout" else member.type


REFUSED: dict[str, list[Member]] = {
    "absolute": [Member(b"/etc/passwd", FILE)],
    "up": [Member(b"a/../../b", FILE)],
    "here": [Member(b"./a", FILE)],
    "twice a slash": [Member(b"a", DIRECTORY), Member(b"a//b", FILE)],
    "no directory before it": [Member(b"a/b", FILE)],
    "beneath a symlink": [Member(b"a", SYMLINK, link=b"/"), Member(b"a/b", FILE)],
    "beneath a file": [Member(b"a", FILE), Member(b"a/b", FILE)],
    "beneath what is gone": [Member(b".wh.a", FILE), Member(b"a/b", FILE)],
    "gone and there": [Member(b".wh.a", FILE), Member(b"a", FILE)],
    "a symlink over a directory": [Member(b"a", DIRECTORY), Member(b"a", SYMLINK, link=b"/")],
    "a block device": [Member(b"a", b"4", device=(8, 0))],
    "a disk as a character device": [Member(b"a", CHARACTER, device=(21, 0))],
    "memory": [Member(b"a", CHARACTER, device=(1, 1))],
    "a link to a directory": [Member(b"a", DIRECTORY), Member(b"b", LINK, link=b"a")],
    "a link out": [Member(b"b", LINK, link=b"../a")],
    "a symlink to nothing": [Member(b"a", SYMLINK)],
    "a set-bit beyond": [Member(b"a", FILE, mode=0o100644)],
    "nobody's": [Member(b"a", FILE, uid=2**32 - 1)],
    "redirected": [Member(b"a", DIRECTORY, xattrs={"trusted.overlay.redirect": b"/x"})],
    "redirected by a user": [Member(b"a", DIRECTORY, xattrs={"user.overlay.redirect": b"/x"})],
    "trusted": [Member(b"a", FILE, xattrs={"trusted.x": b""})],
    "a large attribute": [Member(b"a", FILE, xattrs={"user.x": bytes(70_000)})],
    "too large": [Member(b"a", FILE, size=1 << 41)],
    "too large together": [
        Member(b"a", FILE, size=1 << 39),
        Member(b"b", FILE, size=1 << 39),
        Member(b"c", FILE, size=1),
    ],
    "a whiteout with content": [Member(b".wh.a", FILE, size=1)],
    "a whiteout of the parent": [Member(b".wh...", FILE)],
    "a whiteout of nothing": [Member(b".wh.", FILE)],
    "another mark": [Member(b".wh..wh.plnk", FILE)],
    "deep": [Member(b"/".join([b"a"] * 600), FILE)],
    "long": [Member(b"a" * 256, FILE)],
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    plan = TreePlan(WIDE)
    *before, last = REFUSED[what]
    for member in before:
        plan.place(member)
    with pytest.raises(ArchiveRefused):
        plan.place(last)


def test_too_many() -> None:
    plan = TreePlan(Limits(1, entries=3))
    for name in (b"a", b"b", b"c"):
        plan.place(Member(name, FILE))
    with pytest.raises(ArchiveRefused, match="more than 3 entries"):
        plan.place(Member(b"d", FILE))


def test_names_that_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_plan, "_MOST_NAMES", 500)
    plan = TreePlan(WIDE)
    plan.place(Member(b"a" * 250, FILE))
    plan.place(Member(b"b" * 250, FILE))
    with pytest.raises(ArchiveRefused, match="too long together"):
        plan.place(Member(b"c", FILE))


def test_what_a_root_is_made_of_is_taken() -> None:
    plan = TreePlan(WIDE)
    for member in (
        Member(b"etc/", DIRECTORY),
        Member(b"etc/.wh..wh..opq", FILE),
        Member(b"etc/passwd", FILE, size=5, mode=0o4755, xattrs={"security.capability": b"x", "user.a": b""}),
        Member(b"etc/link", LINK, link=b"etc/passwd"),
        Member(b"etc/again", LINK, link=b"etc/link"),
        Member(b"etc/symlink", SYMLINK, link=b"/../../../etc/shadow"),
        Member(b"etc/fifo", FIFO),
        Member(b"etc/null", CHARACTER, device=(1, 3)),
        Member(b"etc/.wh.gone", FILE),
        Member(b"caf\xff", FILE),
    ):
        plan.place(member)
    assert (plan.entries, plan.taken) == (10, 5)
