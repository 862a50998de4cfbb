"""CRIU's options by version, preflight, manifests, retention: tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stokerd.checkpoints import manifest as manifests
from stokerd.checkpoints.criu import Tuning, Version, config, parse_version, tcp_closed_by
from stokerd.checkpoints.errors import CheckpointDamaged
from stokerd.checkpoints.manifest import Manifest, Node, Part, Root, Source
from stokerd.checkpoints.overlay import Root as OverlayRoot
from stokerd.checkpoints.overlay import kind_of, marks_of, root_of
from stokerd.checkpoints.preflight import Facts, OpenFile, Space, obstacles
from stokerd.checkpoints.retention import Kept, Limits, expired
from stokerd.runtime.task_types import Mount

NOW = datetime(2026, 5, 1, tzinfo=UTC)
FINE = Facts("4.2.1", "running")


class TestCriu:
    @pytest.mark.parametrize(
        ("text", "version"),
        [("Version: 4.2.1\nGitID: 0", "4.2.1"), ("3.17", "3.17"), ("", "0.0"), ("none", "0.0"), ("4.2", "4.2")],
    )
    def test_versions(self, text: str, version: str) -> None:
        assert str(parse_version(text)) == version
        assert parse_version("3.17.1") < parse_version("4.1") < parse_version("4.2")

    def test_the_setting_that_kills_4_1_is_for_later_ones(self) -> None:
        tuning = Tuning(tcp="close", skip_network_lock=True)
        assert config(Version(4, 2, 1), "dump", tuning) == "network-lock skip\ntcp-close\n"
        assert config(Version(4, 1, 1), "dump", tuning) == "tcp-close\n"
        assert config(Version(3, 17), "dump", tuning) == ""

    def test_each_step_has_its_own(self) -> None:
        tuning = Tuning(lazy_pages=True, ghost_limit=1 << 20, link_remap=True, tcp="established")
        assert config(Version(4, 2), "restore", tuning) == "tcp-established\nfile-locks\nlazy-pages\n"
        outside = Tuning(external_unix_sockets=True)
        assert config(Version(4, 2), "restore", outside) == "file-locks\next-unix-sk\n"
        assert config(Version(4, 2), "dump", tuning) == "tcp-established\nghost-limit 1048576\nlink-remap\n"

    def test_the_files_are_read_too(self) -> None:
        assert tcp_closed_by("network-lock skip\n tcp-close # all\n")
        assert not tcp_closed_by("# tcp-close\ntcp-established")


class TestOverlay:
    def test_roots(self) -> None:
        overlay = Mount("overlay", "overlay", ("index=off", "workdir=/w", "upperdir=/u", "lowerdir=/b:/a"))
        assert root_of([overlay]) == OverlayRoot("/u", ("/b", "/a"))
        assert root_of([Mount("bind", "/s", ("rw", "rbind"))]) == OverlayRoot("/s")
        assert root_of([Mount("bind", "/s", ("ro", "rbind"))]) == OverlayRoot("", ("/s",))
        assert root_of([Mount("ext4", "/dev/dm-1")]) is None
        assert root_of([]) is None

    def test_kinds(self) -> None:
        modes = [(0o100644, 0), (0o40755, 0), (0o120777, 0), (0o10644, 0), (0o140755, 0), (0o20000, 0), (0o20666, 259)]
        assert [kind_of(*each) for each in modes] == [
            "file",
            "directory",
            "symlink",
            "fifo",
            "socket",
            "whiteout",
            "device",
        ]

    def test_marks(self) -> None:
        marks = marks_of({"user.mine": b"1", "trusted.overlay.opaque": b"y", "trusted.overlay.origin": b"\0"})
        assert (marks.own, marks.opaque, marks.unsupported) == ({"user.mine": b"1"}, True, "")
        assert not marks_of({"trusted.overlay.opaque": b"n"}).opaque
        assert "redirect" in marks_of({"trusted.overlay.redirect": b"/x"}).unsupported


class TestPreflight:
    def test_nothing_in_the_way(self) -> None:
        names = ("/dev/null", "/dev/pts/0", "socket:[1]", "pipe:[2]", "anon_inode:[eventpoll]", "anon_inode:inotify")
        files = tuple(OpenFile(1, name) for name in (*names, "/var/log/x", "/dev/shm/x"))
        assert obstacles(replace(FINE, files=files, tcp_closed=True, established=3), "refuse") == ()

    @pytest.mark.parametrize(
        ("change", "check", "word"),
        [
            ({"criu": ""}, "criu", "no criu"),
            ({"criu": "3.15"}, "criu", "too old"),
            ({"state": "stopped"}, "state", "stopped"),
            ({"overlay": False}, "root", "overlayfs"),
            ({"own_pids": False}, "pid-namespace", "shares"),
            ({"files": (OpenFile(7, "anon_inode:[io_uring]"),)}, "io-uring", "process 7"),
            ({"files": (OpenFile(7, "/dev/nvidia0"),)}, "device", "/dev/nvidia0"),
            ({"files": (OpenFile(7, "anon_inode:[perf_event]"),)}, "device", "perf_event"),
            ({"files": (OpenFile(7, "/dev/pts/0"),), "terminal": True}, "terminal", "process 7"),
            ({"established": 2}, "tcp", "2 established"),
            ({"strangers": (7, 8), "sees_all": False}, "user", "process 7, 8"),
            ({"inner_namespaces": (4, 5)}, "namespace", "4, 5"),
            ({"memory": 5 << 30, "images": Space("/c", 1 << 30)}, "space", "5120 MiB"),
            ({"upper_inodes": 9000, "snapshots": Space("/s", 1 << 40, 9500)}, "inodes", "9000"),
        ],
    )
    def test_each_obstacle(self, change: dict[str, object], check: str, word: str) -> None:
        (found,) = obstacles(replace(FINE, **change), "refuse")
        assert found.check == check
        assert word in found.message

    def test_what_is_allowed(self) -> None:
        assert obstacles(replace(FINE, strangers=(7,)), "refuse") == ()
        assert obstacles(replace(FINE, established=2, tcp_closed=True), "close") == ()
        (found,) = obstacles(replace(FINE, established=2), "close")
        assert "/etc/criu/runc.conf" in found.hint
        assert obstacles(replace(FINE, established=2), "established") == ()

    def test_memory_and_files_on_one_disk_are_added_up(self) -> None:
        both = Space("/disk", 1 << 30)
        facts = replace(FINE, memory=600 << 20, upper_bytes=600 << 20, images=both, snapshots=both)
        (found,) = obstacles(facts, "refuse")
        assert found.check == "space"
        assert obstacles(replace(facts, snapshots=Space("/other", 1 << 30)), "refuse") == ()


MANIFEST = Manifest(
    version=1,
    id="cp-1",
    name="first",
    created_at=NOW,
    source=Source("c1", "app", "p1", "web", "default", "app:v1", "sha256:1", "io.containerd.runc.v2"),
    node=Node("6.18", "x86_64", "fpu", "4.2", "1.3", "2.1"),
    root=Root("snap", "parent", "overlayfs", "sha256:2", 100, 3),
    parts=(Part("images/a.img", 3, "sha256:a"), Part("spec.json", 5, "sha256:b")),
)


class TestManifest:
    def test_reads_what_it_wrote(self) -> None:
        assert manifests.decode(manifests.encode(MANIFEST), "x") == MANIFEST
        assert MANIFEST.bytes == 108

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"{}",
            b"[]",
            manifests.encode(replace(MANIFEST, version=2)),
            manifests.encode(MANIFEST)[:-20],
            manifests.encode(replace(MANIFEST, id="../x")),
            *(
                manifests.encode(replace(MANIFEST, parts=(Part(path, 1, "x"),)))
                for path in ("/etc/passwd", "../x", "a/../b", "", "a//b")
            ),
        ],
    )
    def test_what_is_none(self, text: bytes) -> None:
        with pytest.raises(CheckpointDamaged):
            manifests.decode(text, "x")

    @given(st.binary(max_size=200))
    def test_anything_else_is_refused_quietly(self, text: bytes) -> None:
        with pytest.raises(CheckpointDamaged):
            manifests.decode(text, "x")

    def test_differences(self) -> None:
        whole = {"images/a.img": (3, "sha256:a"), "spec.json": (5, "sha256:b")}
        assert manifests.differences(MANIFEST, whole) == ()
        broken = {"images/a.img": (3, "sha256:x"), "more": (1, "")}
        assert manifests.differences(MANIFEST, broken) == (
            "images/a.img has other content than was written",
            "spec.json is missing",
            "more does not belong to it",
        )
        assert "4 bytes instead of 5" in manifests.differences(MANIFEST, whole | {"spec.json": (4, "")})[0]


def kept(number: int, **more: object) -> Kept:
    return msgspec.convert(
        {"id": f"c{number}", "created_at": NOW - timedelta(hours=number), "bytes": 10, **more}, type=Kept
    )


class TestRetention:
    def test_limits(self) -> None:
        found = [kept(number) for number in range(5)]
        assert expired(found, Limits(), NOW) == ()
        assert expired(found, Limits(age=timedelta(hours=3)), NOW) == ("c4",)
        assert expired(found, Limits(count=2), NOW) == ("c4", "c3", "c2")
        assert expired(found, Limits(bytes=25), NOW) == ("c4", "c3", "c2")
        assert expired(found, Limits(bytes=5), NOW) == ("c4", "c3", "c2", "c1")

    def test_what_is_needed_stays(self) -> None:
        found = [kept(0), kept(1, pinned=True), kept(2, in_use=True), kept(3)]
        assert expired(found, Limits(count=1), NOW) == ("c3",)
        assert expired(found, Limits(count=2, age=timedelta(minutes=1)), NOW) == ("c3",)

    @given(
        st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50), st.booleans()), max_size=12),
        st.integers(0, 5),
        st.integers(0, 200),
    )
    def test_limits_hold_or_only_what_must_stay_is_left(
        self, rows: list[tuple[int, int, bool]], count: int, size: int
    ) -> None:
        found = [
            Kept(f"c{number}", NOW - timedelta(minutes=age), weight, pinned=pinned)
            for number, (age, weight, pinned) in enumerate(rows)
        ]
        gone = set(expired(found, Limits(count=count, bytes=size), NOW))
        left = [each for each in found if each.id not in gone]
        assert all(not each.pinned for each in found if each.id in gone)
        loose = [each for each in left if not each.pinned]
        assert not count or len(left) <= count or len(loose) <= 1
        assert not size or sum(each.bytes for each in left) <= size or len(loose) <= 1
