"""Upper directories packed as layers, read back by Python's own tarfile."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.checkpoints.errors import TreeUnsupported
from stokerd.checkpoints.layers import Packed, pack_layer
from stokerd.checkpoints.tarring import BLOCK, END, FILE, SYMLINK, Member, header, padded
from tests.unit.checkpoints.trees import LONG, MODES, build_upper


def packed(upper: Path) -> tuple[Packed, bytes, dict[str, tarfile.TarInfo]]:
    out = io.BytesIO()
    about = pack_layer(str(upper), out.write)
    body = out.getvalue()
    with tarfile.open(fileobj=io.BytesIO(body), encoding="utf-8", errors="surrogateescape") as archive:
        members = archive.getmembers()
    names = [member.name for member in members]
    assert len(names) == len(set(names))
    return about, body, dict(zip(names, members, strict=True))


def test_every_kind_of_entry(tmp_path: Path) -> None:
    build_upper(tmp_path)
    about, body, members = packed(tmp_path)
    assert about.diff_id == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert (about.size, about.entries, about.skipped) == (len(body), len(members), ["socket"])
    assert "socket" not in members
    assert members["etc/.wh.gone"].size == 0
    assert "etc/gone" not in members
    assert members["replaced/.wh..wh..opq"].isreg()
    assert (members["etc/b"].islnk(), members["etc/b"].linkname) == (True, "a")
    assert (members["zz"].islnk(), members["zz"].linkname) == (True, "a")
    assert members["etc/link"].linkname == "../../outside"
    assert members["fifo"].isfifo()
    assert (members["program"].mode, members["program"].uid) == (MODES, os.getuid())
    assert members["sparse"].size == 32 << 20
    assert f"{LONG}/{LONG}" in members
    assert "naïve ☃" in members
    assert os.fsdecode(b"bytes\xff\xfe") in members
    changed = members["empty"]
    assert (
        changed.pax_headers["mtime"]
        == f"{(tmp_path / 'empty').stat().st_mtime_ns / 1e9:.0f}.000000{_nanos(tmp_path):03d}"
    )
    assert b"SCHILY.xattr.user.note=\x00kept\xff\n" in body
    assert b"user.overlay" not in body


def _nanos(root: Path) -> int:
    return (root / "empty").stat().st_mtime_ns % 1000


def test_opaque_markers_come_before_what_is_in_the_directory(tmp_path: Path) -> None:
    build_upper(tmp_path)
    names = list(packed(tmp_path)[2])
    assert names.index("replaced") < names.index("replaced/.wh..wh..opq") < names.index("replaced/new")


def test_the_same_tree_gives_the_same_layer(tmp_path: Path) -> None:
    build_upper(tmp_path)
    assert packed(tmp_path)[1] == packed(tmp_path)[1]


def test_nothing(tmp_path: Path) -> None:
    about, body, members = packed(tmp_path)
    assert (body, members, about.entries) == (END, {}, 0)


@pytest.mark.parametrize("name", [".wh.passwd", ".wh..wh..opq", ".wh."])
def test_names_that_would_delete_something_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / name).write_text("user data")
    with pytest.raises(TreeUnsupported, match=r"etc/\.wh\."):
        packed(tmp_path)


def test_whiteouts_by_attribute(tmp_path: Path) -> None:
    """How nested overlays keep them."""
    (tmp_path / "gone").touch()
    os.setxattr(tmp_path / "gone", "user.overlay.whiteout", b"")
    assert list(packed(tmp_path)[2]) == [".wh.gone"]


@pytest.mark.parametrize("mark", ["redirect", "metacopy"])
def test_what_only_overlay_understands(tmp_path: Path, mark: str) -> None:
    (tmp_path / "x").mkdir() if mark == "redirect" else (tmp_path / "x").touch()
    os.setxattr(tmp_path / "x", f"user.overlay.{mark}", b"")
    with pytest.raises(TreeUnsupported) as caught:
        packed(tmp_path)
    assert caught.value.path == "x"


NAMES = st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name and not name.endswith(b"/"))


@given(
    name=NAMES,
    link=NAMES,
    uid=st.integers(0, 2**32 - 1),
    size=st.integers(0, 2**40),
    mtime=st.integers(-(2**62), 2**62),
    xattrs=st.dictionaries(st.text("abc.", min_size=1, max_size=9), st.binary(max_size=50), max_size=3),
)
def test_headers_say_what_they_were_given(
    name: bytes, link: bytes, uid: int, size: int, mtime: int, xattrs: dict[str, bytes]
) -> None:
    member = Member(name, SYMLINK, 0o755, uid, uid, 0, mtime, link, xattrs=xattrs)
    block = header(member)
    assert len(block) % BLOCK == 0
    read = _first(block)
    assert os.fsencode(read.name.rstrip("/")) == name.rstrip(b"/")
    assert (os.fsencode(read.linkname), read.uid, read.gid) == (link, uid, uid)
    assert abs(read.mtime - mtime / 1e9) < 1e-6 * max(1, abs(mtime / 1e9))
    for key, value in xattrs.items():
        assert f"SCHILY.xattr.{key}=".encode() + value + b"\n" in block
    large = header(Member(name, FILE, size=size))
    assert _first(large).size == size


def _first(block: bytes) -> tarfile.TarInfo:
    with tarfile.open(fileobj=io.BytesIO(block + END), encoding="utf-8", errors="surrogateescape") as archive:
        found = archive.next()
    assert found is not None
    return found


def test_padding() -> None:
    assert [len(padded(b"x" * size)) for size in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]
