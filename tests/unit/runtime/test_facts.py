"""Parsers of what the machine says of itself, by tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stokerd.runtime import facts
from stokerd.runtime.types import CgroupMode

V1 = """\
proc /proc proc rw,nosuid 0 0
tmpfs /sys/fs/cgroup tmpfs ro,nosuid 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,nosuid,memory 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0
"""


@pytest.mark.parametrize(
    ("mounts", "mode"),
    [
        ("", CgroupMode.UNKNOWN),
        ("proc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\n", CgroupMode.UNKNOWN),
        ("a line\n\nand another one\n", CgroupMode.UNKNOWN),
        (V1, CgroupMode.V1),
        (f"{V1}cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n", CgroupMode.HYBRID),
        ("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", CgroupMode.UNIFIED),
        ("cgroup2 /run/cgroup cgroup2 rw 0 0\n", CgroupMode.UNIFIED),
        (
            "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0\n",
            CgroupMode.HYBRID,
        ),
    ],
)
def test_cgroup_modes(mounts: str, mode: CgroupMode) -> None:
    assert facts.cgroup_mode(mounts) is mode


def test_cgroup_mode_of_this_machine() -> None:
    assert facts.cgroup_mode(facts.read_text("/proc/mounts")) in set(CgroupMode)


MOUNTINFO = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /var rw,relatime shared:2 master:1 - btrfs /dev/vdb rw,space_cache
24 23 0:22 / /var/lib/my\\040disk rw - xfs /dev/vdc rw
25 22 0:23 / /mnt/back\\134slash rw - ext2 /dev/vdd rw
26 22 0:24 / /mnt/größe rw - ext3 /dev/vde rw
27 22 0:25 / /stacked rw - ext4 /dev/vdf rw
28 27 0:26 / /stacked rw - tmpfs tmpfs rw
29 22 0:27 / /tab\\011and\\012line rw - squashfs /dev/loop0 ro
30 22 0:28 / /broken
31 22 0:29 / /short - ext4
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/user", "ext4"),
        ("/var", "btrfs"),
        ("/var/lib/containerd", "btrfs"),
        ("/variable", "ext4"),
        ("/var/lib/my disk", "xfs"),
        ("/var/lib/my disk/containerd", "xfs"),
        ("/var/lib/my diskette", "btrfs"),
        ("/mnt/back\\slash/x", "ext2"),
        ("/mnt/größe/x", "ext3"),
        ("/stacked/x", "tmpfs"),
        ("/tab\tand\nline/x", "squashfs"),
        ("/broken/x", "ext4"),
    ],
)
def test_file_system_types(path: str, kind: str) -> None:
    assert facts.file_system_type(MOUNTINFO, path) == kind


def test_file_system_type_that_is_not_told() -> None:
    assert facts.file_system_type("", "/var/lib/containerd") == ""
    assert facts.file_system_type("23 22 0:21 / /var rw - btrfs /dev/vdb rw\n", "/srv") == ""


def test_file_system_type_of_this_machine() -> None:
    assert facts.file_system_type(facts.read_text("/proc/self/mountinfo"), "/proc/self") == "proc"


@pytest.mark.parametrize(
    ("info", "config"),
    [
        ({}, {}),
        ({"config": "{"}, {}),
        ({"config": "[]"}, {}),
        ({"config": "null"}, {}),
        ({"config": '{"containerdRootDir": "/var/lib/containerd"}'}, {"containerdRootDir": "/var/lib/containerd"}),
    ],
)
def test_cri_configuration(info: dict[str, str], config: dict[str, object]) -> None:
    assert facts.cri_config(info) == config


def test_dig() -> None:
    document = {"a": {"b": {"c": 1}, "list": [1]}}
    assert facts.dig(document, "a", "b", "c") == 1
    assert facts.dig(document) is document
    assert facts.dig(document, "a", "x", "c") is None
    assert facts.dig(document, "a", "list", "c") is None
    assert facts.dig(None, "a") is None


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["/usr/bin/containerd"], "/etc/containerd/config.toml"),
        ([], "/etc/containerd/config.toml"),
        (["containerd", "-c", "/a.toml"], "/a.toml"),
        (["containerd", "--log-level", "debug", "--config", "/a.toml", ""], "/a.toml"),
        (["containerd", "--config=/a.toml"], "/a.toml"),
        (["containerd", "-config=/a.toml"], "/a.toml"),
        (["containerd", "-c=/a=b.toml"], "/a=b.toml"),
        (["containerd", "--config"], "/etc/containerd/config.toml"),
    ],
)
def test_configuration_file(arguments: list[str], file: str) -> None:
    assert facts.config_file_of(arguments) == file


VERSION_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "/etc/v2/certs.d"
"""
VERSION_3 = """
version = 3
[plugins."io.containerd.cri.v1.images".registry]
config_path = "/etc/v3/certs.d"
"""
TRANSFER = """
version = 3
[plugins."io.containerd.transfer.v1.local"]
config_path = "/etc/transfer/certs.d"
"""


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ""),
        ("version = 2\n", ""),
        ("version = [", ""),
        ("plugins = 3\n", ""),
        ('[plugins."io.containerd.grpc.v1.cri".registry]\nconfig_path = 7\n', ""),
        ('[plugins."io.containerd.grpc.v1.cri".registry]\nconfig_path = ""\n', ""),
        (VERSION_2, "/etc/v2/certs.d"),
        (VERSION_3, "/etc/v3/certs.d"),
        (TRANSFER, "/etc/transfer/certs.d"),
        (VERSION_3 + TRANSFER.replace("version = 3", ""), "/etc/v3/certs.d"),
    ],
)
def test_registry_configuration(text: str, path: str) -> None:
    assert facts.registry_config_path(text) == path


class TestProcesses:
    def test_of_this_mount_namespace(self) -> None:
        assert facts.shares_mounts(os.getpid())
        assert facts.host_root_of(os.getpid()) == ""

    def test_that_are_not_there(self) -> None:
        for read in (facts.shares_mounts, facts.host_root_of):
            with pytest.raises(ProcessLookupError, match=str(1 << 30)):
                read(1 << 30)
        assert facts.host_root_of(0) == ""
        assert facts.host_root_of(-1) == ""
        assert facts.process_path(1 << 30)[-1] == "/bin"

    def test_that_have_ended_and_nobody_has_waited_for(self) -> None:
        process = os.fork()
        if not process:
            os._exit(0)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        try:
            with pytest.raises(ProcessLookupError):
                facts.host_root_of(process)
        finally:
            os.waitpid(process, 0)

    def test_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told = "HOME=/root\0PATH=/opt/bin:relative::/usr/bin\0"
        monkeypatch.setattr(facts, "read_text", lambda _path: told)
        assert facts.process_path(1) == ("/opt/bin", "/usr/bin")

    def test_find_program(self, tmp_path: Path) -> None:
        for name, mode in (("igzip", 0o755), ("unpigz", 0o644)):
            file = tmp_path / "usr/bin" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            file.chmod(mode)
        assert facts.find_program("igzip", ["/bin", "/usr/bin"], str(tmp_path)) == "/usr/bin/igzip"
        assert facts.find_program("unpigz", ["/bin", "/usr/bin"], str(tmp_path)) == ""
        assert facts.find_program("igzip", [], str(tmp_path)) == ""


class TestReading:
    def test_gives_nothing_for_what_cannot_be_read(self, tmp_path: Path) -> None:
        assert facts.read_text(str(tmp_path / "none")) == ""
        assert facts.read_text(str(tmp_path)) == ""

    def test_is_limited_and_takes_any_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"ab\xffcd")
        assert facts.read_text(str(tmp_path / "file")) == "ab\ufffdcd"
        assert facts.read_text(str(tmp_path / "file"), 2) == "ab"


def test_where_network_plugins_are() -> None:
    assert facts.cni_bin_dirs({"cni": {"binDirs": ["/a", "/b"], "binDir": ""}}) == ("/a", "/b")
    assert facts.cni_bin_dirs({"cni": {"binDir": "/opt/x"}}) == ("/opt/x",)
    assert facts.cni_bin_dirs({}) == ("/opt/cni/bin",)
