"""What is given to one clone alone: what may be, and that it is written into its root and nowhere else."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.checkpoints.clone_types import CloneWish
from stokerd.checkpoints.giving import ENV_FILE, environment, given_files, hook_process, owner_of
from stokerd.checkpoints.planting import plant
from stokerd.errors import InvalidInput

SPEC = {
    "process": {"user": {"uid": 1000, "gid": 2000}, "args": ["main"], "env": ["PATH=/bin"], "terminal": True},
    "mounts": [{"destination": "/data"}, {"destination": "/etc/resolv.conf"}, {"destination": "/proc"}],
}
OWN = {"/etc/resolv.conf"}


class TestWhatMayBe:
    def test_environment_becomes_a_file(self) -> None:
        files = given_files(CloneWish(env={"B": "it's", "A": "1\n2"}, files={"/a": b"x"}), SPEC, OWN)
        assert files == {"/a": b"x", ENV_FILE: b"A='1\n2'\nB='it'\"'\"'s'\n"}

    @given(
        st.dictionaries(
            st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True), st.text().filter(lambda t: "\0" not in t)
        )
    )
    def test_a_shell_reads_what_was_given(self, env: dict[str, str]) -> None:
        words = shlex.split(environment(env).decode("utf-8", "surrogateescape"))
        assert dict(word.split("=", 1) for word in words) == env

    @pytest.mark.parametrize(
        "path", ["a", "", "/", "/a/", "/a//b", "/../a", "/a/./b", "/a/..", "/a\0", "/" + "a" * 5000]
    )
    def test_paths_that_are_none(self, path: str) -> None:
        with pytest.raises(InvalidInput):
            given_files(CloneWish(files={path: b""}), SPEC, OWN)

    @pytest.mark.parametrize("path", ["/data", "/data/a", "/proc/sys/x"])
    def test_mounts_are_shared(self, path: str) -> None:
        with pytest.raises(InvalidInput, match="mount"):
            given_files(CloneWish(files={path: b""}), SPEC, OWN)

    def test_what_each_has_for_itself(self) -> None:
        assert given_files(CloneWish(files={"/etc/resolv.conf": b"x", "/database": b"y"}), SPEC, OWN)

    @pytest.mark.parametrize(
        "wish",
        [
            CloneWish(env={"1A": "x"}),
            CloneWish(env={"A=B": "x"}),
            CloneWish(env={"A": "x\0y"}),
            CloneWish(env={"A": "x"}, files={ENV_FILE: b""}),
            CloneWish(files={"/big": bytes(17 << 20)}),
        ],
    )
    def test_what_cannot_be(self, wish: CloneWish) -> None:
        with pytest.raises(InvalidInput):
            given_files(wish, SPEC, OWN)

    def test_values_are_not_shown(self) -> None:
        wish = CloneWish(env={"TOKEN": "secret"}, files={"/key": b"secret"})
        assert "secret" not in repr(wish)
        assert "TOKEN" in repr(wish)

    def test_a_hook_is_the_containers_own_process(self) -> None:
        process = hook_process(SPEC, CloneWish(hook=("run", "me"), env={"A": "1"}))
        assert process["args"] == ["run", "me"]
        assert process["env"] == ["PATH=/bin", "A=1"]
        assert process["user"] == {"uid": 1000, "gid": 2000}
        assert process["terminal"] is False
        assert owner_of(SPEC) == (1000, 2000)
        assert owner_of({}) == (0, 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "etc").mkdir(parents=True)
    return made


ME = (os.getuid(), os.getgid())


class TestPlanting:
    def test_new_and_replaced(self, root: Path) -> None:
        (root / "etc" / "old").write_bytes(b"longer than the new one")
        (root / "etc" / "old").chmod(0o644)
        plant(str(root), {"/etc/old": b"new", "/run/stoker/env": b"A=1\n"}, ME)
        assert (root / "etc" / "old").read_bytes() == b"new"
        assert stat.S_IMODE((root / "etc" / "old").stat().st_mode) == 0o644
        assert (root / "run" / "stoker" / "env").read_bytes() == b"A=1\n"
        assert stat.S_IMODE((root / "run" / "stoker" / "env").stat().st_mode) == 0o600
        assert [path.name for path in (root / "etc").iterdir()] == ["old"]

    @pytest.mark.parametrize("target", ["{outside}", "../../../../../../..{outside}", "/etc/../..{outside}"])
    def test_no_link_leads_out(self, root: Path, tmp_path: Path, target: str) -> None:
        """A link is what it would be in the container: absolute within its root, and nothing is above that."""
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "there").write_bytes(b"mine")
        (root / "evil").symlink_to(target.format(outside=outside))
        (root / str(outside).lstrip("/")).mkdir(parents=True)
        plant(str(root), {"/evil/there": b"given", "/evil/new/er": b"given"}, ME)
        assert (outside / "there").read_bytes() == b"mine"
        assert [path.name for path in outside.iterdir()] == ["there"]
        assert (root / str(outside).lstrip("/") / "there").read_bytes() == b"given"
        assert (root / str(outside).lstrip("/") / "new" / "er").read_bytes() == b"given"

    def test_a_link_in_its_place_is_replaced(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(b"mine")
        (root / "etc" / "file").symlink_to(tmp_path / "secret")
        os.mkfifo(root / "etc" / "fifo")
        plant(str(root), {"/etc/file": b"given", "/etc/fifo": b"given"}, ME)
        assert (tmp_path / "secret").read_bytes() == b"mine"
        for name in ("file", "fifo"):
            assert not (root / "etc" / name).is_symlink()
            assert (root / "etc" / name).read_bytes() == b"given"

    @pytest.mark.parametrize("path", ["/file/below", "/dangling/below", "/loop/below", "/etc"])
    def test_what_cannot_be(self, root: Path, path: str) -> None:
        (root / "file").write_bytes(b"")
        (root / "dangling").symlink_to("/nowhere")
        (root / "loop").symlink_to("loop")
        with pytest.raises(InvalidInput, match=path):
            plant(str(root), {path: b"x"}, ME)
        assert not list(root.rglob(".stoker-*"))
