"""What CRIU does in a container's /tmp while it dumps is not in the copy of its files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stokerd.checkpoints.copying import copy_tree
from stokerd.checkpoints.scratch import Tried, look
from stokerd.checkpoints.trees import walk
from tests.unit.checkpoints.trees import build_upper, seen

OURS = "cr-tmpfs.kept00"
CRIUS = "cr-tmpfs.Ab3dEf"
LONG_AGO = (1_500_000_000 * 10**9, 1_500_000_000 * 10**9 + 7)


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    root = tmp_path / "upper"
    root.mkdir()
    (root / "tmp").mkdir(mode=0o777)
    (root / "tmp" / "session").write_text("theirs")
    (root / "tmp" / OURS).mkdir()
    build_upper(root)
    os.utime(root / "tmp", ns=LONG_AGO)
    os.utime(root, ns=LONG_AGO)
    return root


def dump(root: Path, place: str, *, ended: bool) -> None:
    """Do what CRIU does, and is seen to do."""
    (root / place / CRIUS).mkdir()
    if ended:
        (root / place / CRIUS).rmdir()


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "amid"])
@pytest.mark.parametrize("place", ["tmp", ""])
def test_the_copy_is_as_it_was_before(upper: Path, target: Path, place: str, *, ended: bool) -> None:
    wanted = seen(upper)
    before = look(str(upper))
    dump(upper, place, ended=ended)
    copied = copy_tree(str(upper), str(target), skip=before.is_criu)
    before.mend(str(target), copied)
    assert seen(target) == wanted
    assert copied.entries == len(wanted) - 1


def test_what_goes_while_it_is_walked_is_no_error(upper: Path) -> None:
    """The directory is listed, and is gone when it would be looked at."""
    before = look(str(upper))
    dump(upper, "tmp", ended=False)
    root = os.open(upper, os.O_RDONLY)
    try:
        found = []
        for entry in walk(root, skip=before.is_criu):
            found.append(entry.path)
            if entry.path == "tmp" and not entry.leaving:
                (upper / "tmp" / CRIUS).rmdir()
    finally:
        os.close(root)
    assert f"tmp/{OURS}" in found
    assert f"tmp/{CRIUS}" not in found


@pytest.mark.parametrize(
    ("mark", "content", "stays"), [("origin", "", False), ("origin", "file", True), ("", "", True)]
)
def test_a_directory_that_was_copied_up_for_criu_alone(
    tmp_path: Path, target: Path, mark: str, content: str, *, stays: bool
) -> None:
    """One that the container made, or put something into, stays, whenever it did so."""
    upper = tmp_path / "upper"
    upper.mkdir()
    before = look(str(upper))
    (upper / "tmp").mkdir()
    if mark:
        os.setxattr(upper / "tmp", f"user.overlay.{mark}", b"\0")
    if content:
        (upper / "tmp" / content).touch()
    copied = copy_tree(str(upper), str(target), skip=before.is_criu)
    before.mend(str(target), copied)
    assert (target / "tmp").exists() == stays
    assert copied.entries == len(list(target.rglob("*")))


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_place_that_is_no_directory(tmp_path: Path, target: Path, kind: str) -> None:
    """Nothing outside is touched, and nothing fails."""
    outside = tmp_path / "outside"
    outside.mkdir()
    upper = tmp_path / "upper"
    upper.mkdir()
    if kind == "link":
        (upper / "tmp").symlink_to(outside)
    else:
        (upper / "tmp").touch()
    wanted, before = seen(upper), look(str(upper))
    os.utime(outside, ns=LONG_AGO)
    before.mend(str(target), copy_tree(str(upper), str(target), skip=before.is_criu))
    assert seen(target) == wanted
    assert outside.stat().st_mtime_ns == LONG_AGO[1]


@pytest.mark.parametrize(("who", "right"), [("container", "later"), ("CRIU", "first")])
def test_what_changed_just_before_the_processes_stood(upper: Path, who: str, right: str) -> None:
    first = look(str(upper))
    since, now = time.perf_counter(), time.time_ns()
    changed = now - 10**9 if who == "container" else now + 10**6
    os.utime(upper / "tmp", ns=(changed, changed))
    found = first.looked_again(look(str(upper)), since).places["tmp"]
    assert found is not None
    assert found.st_mtime_ns == (changed if right == "later" else LONG_AGO[1])


@pytest.mark.parametrize(
    ("seconds", "right"), [(-3.0, "later"), (-1.0, "first"), (1.0, "later")], ids=["before CRIU", "amid", "after it"]
)
def test_a_dump_that_is_made_once_more(upper: Path, seconds: float, right: str) -> None:
    """CRIU was at work from two seconds ago until now: what changed then may be its doing, all else is not."""
    now, clock = time.time_ns(), time.perf_counter()
    tried = Tried(look(str(upper)), clock - 2, clock)
    changed = now + int(seconds * 10**9)
    os.utime(upper / "tmp", ns=(changed, changed))
    found = tried.and_now(look(str(upper))).places["tmp"]
    assert found is not None
    assert found.st_mtime_ns == (changed if right == "later" else LONG_AGO[1])
