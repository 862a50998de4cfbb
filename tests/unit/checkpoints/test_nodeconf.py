"""The node's configuration of CRIU: ours by its version, another one's never."""

from __future__ import annotations

import stat
from pathlib import Path

from stokerd.checkpoints.nodeconf import MARKER, ensure_node_config


def test_ours_follows_the_version(tmp_path: Path) -> None:
    file = tmp_path / "etc/criu/runc.conf"
    assert ensure_node_config(str(tmp_path), "4.2.1") == "ours"
    assert file.read_text() == f"{MARKER}network-lock skip\nghost-limit 268435456\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    before = file.stat().st_mtime_ns
    assert ensure_node_config(str(tmp_path), "4.2.1") == "ours"
    assert file.stat().st_mtime_ns == before
    assert ensure_node_config(str(tmp_path), "4.1.1") == "ours"
    assert file.read_text() == f"{MARKER}ghost-limit 268435456\n"  # it would crash on the other


def test_another_ones_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "etc/criu/runc.conf"
    file.parent.mkdir(parents=True)
    file.write_text("tcp-established\n")
    assert ensure_node_config(str(tmp_path), "4.2.1") == "foreign"
    assert file.read_text() == "tcp-established\n"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "etc/criu/runc.conf"
    file.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").write_text(MARKER)
    file.symlink_to(tmp_path / "elsewhere")
    assert ensure_node_config(str(tmp_path), "4.2.1") == "ours"
    assert not file.is_symlink()
    assert (tmp_path / "elsewhere").read_text() == MARKER
