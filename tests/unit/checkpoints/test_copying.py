"""Trees copied as they are: every kind of entry, and nothing through a name that leads elsewhere."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stokerd.checkpoints.copying import copy_tree
from stokerd.checkpoints.digests import file_digest, tree_digest
from stokerd.checkpoints.errors import Stopped, TreeUnsupported
from stokerd.checkpoints.trees import opened, walk
from tests.unit.checkpoints.trees import build_upper, seen


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    root = tmp_path / "upper"
    root.mkdir()
    build_upper(root)
    return root


def test_every_kind_of_entry(upper: Path, target: Path) -> None:
    copied = copy_tree(str(upper), str(target))
    assert seen(target) == seen(upper)
    assert copied.entries == len(seen(upper)) - 1
    assert tree_digest(str(target)) == tree_digest(str(upper))


def test_hardlinks_share_an_inode(upper: Path, target: Path) -> None:
    copy_tree(str(upper), str(target))
    assert len({(target / name).stat().st_ino for name in ("a", "etc/b", "zz")}) == 1


def test_holes_stay_holes(upper: Path, target: Path) -> None:
    copied = copy_tree(str(upper), str(target))
    for name in ("sparse", "hole"):
        assert (target / name).stat().st_blocks <= (upper / name).stat().st_blocks
    assert copied.bytes < 1 << 20


@pytest.mark.parametrize("refuse", ["copy_file_range", "both"])
def test_file_systems_that_cannot_clone(
    upper: Path, target: Path, monkeypatch: pytest.MonkeyPatch, refuse: str
) -> None:
    """From a tmpfs to a disk nothing but reading and writing works."""

    def no(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(fcntl, "ioctl", no)
    if refuse == "both":
        monkeypatch.setattr(os, "copy_file_range", no)
    copy_tree(str(upper), str(target))
    assert seen(target) == seen(upper)


def test_a_disk_that_is_full(upper: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fcntl, "ioctl", full)
    with pytest.raises(OSError, match="No space left"):
        copy_tree(str(upper), str(target))


@pytest.mark.parametrize(("mark", "what"), [("redirect", "redirect_dir"), ("metacopy", "metacopy")])
def test_what_only_overlay_understands(upper: Path, target: Path, mark: str, what: str) -> None:
    path = upper / "etc" if mark == "redirect" else upper / "program"
    os.setxattr(path, f"user.overlay.{mark}", b"/old")
    with pytest.raises(TreeUnsupported, match=what) as caught:
        copy_tree(str(upper), str(target))
    assert caught.value.path == path.name


def test_stops_when_it_is_told(upper: Path, target: Path) -> None:
    calls = iter(range(100))
    with pytest.raises(Stopped):
        copy_tree(str(upper), str(target), lambda: next(calls) > 5)


def test_deep_trees_take_few_descriptors(tmp_path: Path, target: Path) -> None:
    """Programs can make trees that are deeper than any path may be long."""
    root = tmp_path / "deep"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    descriptor = opened(str(root))
    before = _descriptors()
    most = 0
    for entry in walk(descriptor):
        most = max(most, _descriptors() if len(entry.path) % 100 == 1 else 0)
    assert most <= before + 3
    assert _descriptors() == before
    assert copy_tree(str(root), str(target)).entries == 2000
    assert tree_digest(str(root)) == tree_digest(str(target))
    os.close(descriptor)
    for each in (root, target):
        _remove(each, 2000)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _remove(root: Path, depth: int) -> None:
    """What is deeper than a path may be long is removed from its middle on."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    for _ in range(depth):
        above = os.open("..", os.O_RDONLY, dir_fd=here)
        os.rmdir("d", dir_fd=above)
        os.close(here)
        here = above
    os.close(here)


def test_too_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stokerd.checkpoints import trees

    monkeypatch.setattr(trees, "_MAX_PATH", 20)
    (tmp_path / "one" / "two" / "three" / "four" / "five").mkdir(parents=True)
    descriptor = opened(str(tmp_path))
    with pytest.raises(TreeUnsupported, match="nested deeper"):
        list(walk(descriptor))
    os.close(descriptor)


def test_a_directory_that_was_moved_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "tree" / "one" / "two").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    descriptor = opened(str(tmp_path / "tree"))
    walking = walk(descriptor)
    assert [next(walking).name, next(walking).name] == ["one", "two"]
    (tmp_path / "tree" / "one" / "two").rename(tmp_path / "elsewhere" / "two")
    with pytest.raises(TreeUnsupported, match="moved"):
        list(walking)
    os.close(descriptor)


def test_a_file_that_was_replaced_meanwhile(upper: Path, target: Path) -> None:
    descriptor = opened(str(upper))
    entry = next(each for each in walk(descriptor) if each.name == "a")
    os.close(descriptor)
    entry.parent = opened(str(upper))
    (upper / "a").unlink()
    (upper / "a").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        entry.open()
    (upper / "a").unlink()
    (upper / "a").write_text("another")
    with pytest.raises(TreeUnsupported, match="replaced"):
        entry.open()
    os.close(entry.parent)


def test_digests_tell_changes(upper: Path) -> None:
    before = tree_digest(str(upper))
    assert tree_digest(str(upper)) == before
    changes: list[Callable[[], object]] = [
        lambda: os.utime(upper / "empty", ns=(1, 1)),
        lambda: (upper / "program").chmod(0o755),
        lambda: os.setxattr(upper / "program", "user.note", b"other"),
        lambda: (upper / "etc" / "config").write_text("other"),
        (upper / "etc" / "gone").unlink,
        (upper / "zz").unlink,
    ]
    found = {before}
    for change in changes:
        change()
        found.add(tree_digest(str(upper)))
    assert len(found) == len(changes) + 1
    (upper / "x").write_bytes(b"abc")
    assert file_digest(str(upper / "x")) == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
