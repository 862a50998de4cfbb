"""The runtime specification of a container from elsewhere: compared, or made anew; never taken as it came."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.checkpoints.errors import ArchiveRefused
from stokerd.checkpoints.trusting import read_spec, trusted, unlike

HOSTS = "/etc/hosts"
SPEC: dict[str, Any] = {
    "ociVersion": "1.1.0",
    "process": {
        "user": {"uid": 1000, "gid": 1000, "additionalGids": [10], "username": "x"},
        "args": ["serve"],
        "env": ["A=1"],
        "cwd": "/srv",
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_KILL"], "effective": ["CAP_CHOWN"]},
        "noNewPrivileges": True,
        "apparmorProfile": "evil",
        "selinuxLabel": "evil",
        "oomScoreAdj": -999,
    },
    "root": {"path": "/run/evil", "readonly": True},
    "hostname": "web",
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro", "rshared"]},
        {"destination": HOSTS, "type": "bind", "source": "/var/lib/containerd/sandboxes/1/hosts", "options": ["rbind"]},
        {"destination": "/dev/shm", "type": "bind", "source": "/run/containerd/sandboxes/1/shm", "options": ["rbind"]},
    ],
    "annotations": {"cdi.k8s.io/x": "vendor.com/gpu=all", "org.criu.config": "/tmp/evil", "io.kubernetes.cri.x": "y"},
    "linux": {
        "namespaces": [
            {"type": "pid"},
            {"type": "ipc", "path": "/proc/1/ns/ipc"},
            {"type": "uts", "path": "/proc/1/ns/uts"},
            {"type": "mount"},
            {"type": "network", "path": "/proc/1/ns/net"},
        ],
        "cgroupsPath": "/../../evil",
        "resources": {
            "devices": [{"allow": True, "access": "rwm"}],
            "memory": {"limit": 1 << 30, "swap": "x"},
            "cpu": {"shares": 100},
        },
        "maskedPaths": ["/proc/kcore", "/etc/../x"],
        "readonlyPaths": ["/proc/sys"],
        "rootfsPropagation": "shared",
        "seccomp": {"defaultAction": "SCMP_ACT_ERRNO"},
    },
}
FILES = {HOSTS: b"127.0.0.1 localhost"}


def test_a_plain_container_is_made_anew() -> None:
    frame = trusted(SPEC, FILES, shm=True)
    spec = frame.spec
    assert frame.files == FILES
    text = msgspec.json.encode(spec).decode()
    for evil in ("evil", "vendor.com", "/run/containerd", "/proc/1/ns", "oomScoreAdj", "rshared", "selinux", "-999"):
        assert evil not in text
    assert spec["process"]["args"] == ["serve"]
    assert spec["process"]["user"] == {"uid": 1000, "gid": 1000, "additionalGids": [10]}
    assert spec["root"] == {"path": "rootfs", "readonly": True}
    assert spec["linux"]["resources"]["devices"][0] == {"allow": False, "access": "rwm"}
    assert spec["linux"]["resources"]["memory"] == {"limit": 1 << 30}
    assert spec["linux"]["maskedPaths"] == ["/proc/kcore"]
    assert {each["type"] for each in spec["linux"]["namespaces"]} == {"pid", "ipc", "uts", "mount", "network"}
    assert all(set(each) == {"type"} for each in spec["linux"]["namespaces"])


Change = Callable[[dict[str, Any]], object]
MORE: dict[str, tuple[Change, str]] = {
    "a volume": (lambda spec: spec["mounts"].append({"destination": "/data", "type": "bind", "source": "/"}), "/data"),
    "the node's root": (
        lambda spec: spec["mounts"].append({"destination": "/proc", "type": "bind", "source": "/"}),
        "volume at /proc",
    ),
    "a file of the node": (
        lambda spec: spec["mounts"].append(
            {"destination": "/etc/resolv.conf", "type": "bind", "source": "/etc/shadow"}
        ),
        "volume",
    ),
    "a disk": (lambda spec: spec["mounts"].append({"destination": "/x", "type": "ext4", "source": "/dev/sda"}), "/x"),
    "rights": (lambda spec: spec["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN"), "CAP_SYS_ADMIN"),
    "hooks": (lambda spec: spec.update(hooks={"prestart": [{"path": "/evil"}]}), "hooks"),
    "devices": (lambda spec: spec["linux"].update(devices=[{"path": "/dev/kvm"}]), "devices"),
    "parameters": (lambda spec: spec["linux"].update(sysctl={"kernel.x": "1"}), "kernel"),
    "the node's network": (lambda spec: spec["linux"]["namespaces"].pop(), "namespaces"),
    "the node's processes": (lambda spec: spec["linux"]["namespaces"].pop(0), "namespaces"),
    "another's processes": (lambda spec: spec["linux"]["namespaces"][0].update(path="/proc/1/ns/pid"), "processes"),
    "users": (lambda spec: spec["linux"]["namespaces"].append({"type": "user"}), "namespaces"),
    "a terminal": (lambda spec: spec["process"].update(terminal=True), "terminal"),
}


@pytest.mark.parametrize("what", MORE)
def test_more_than_plain_is_refused_by_name(what: str) -> None:
    change, why = MORE[what]
    spec = copy.deepcopy(SPEC)
    change(spec)
    with pytest.raises(ArchiveRefused, match=why) as caught:
        trusted(spec, FILES, shm=True)
    assert "--like" in (caught.value.hint or "")


def test_what_did_not_come_along_is_not_taken_from_the_node() -> None:
    with pytest.raises(ArchiveRefused, match=r"/etc/hosts.*shm"):
        trusted(SPEC, {}, shm=False)


def test_what_both_must_have() -> None:
    assert unlike(SPEC, SPEC) == ()
    here = copy.deepcopy(SPEC)
    here["mounts"] = here["mounts"][1:]
    here["mounts"].append({"destination": "/data"})
    here["linux"]["namespaces"].pop()
    here["process"]["terminal"] = True
    causes = unlike(SPEC, here)
    assert len(causes) == 4
    assert "/proc" in causes[0]
    assert "/data" in causes[1]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["process", "linux", "mounts", "root", "hostname", "annotations", "hooks"])


@given(st.dictionaries(KEYS, VALUES), st.sampled_from(["process", "linux", "root"]), st.text(max_size=12), VALUES)
def test_nonsense_is_refused_or_made_plain(document: dict[str, Any], part: str, name: str, value: Any) -> None:
    spec = copy.deepcopy(SPEC)
    spec[part][name] = value
    for each in ({**SPEC, **document}, document, spec):
        try:
            found = trusted(read_spec(msgspec.json.encode(each)), FILES, shm=True)
        except ArchiveRefused:
            continue
        assert found.spec["process"]["terminal"] is False
        assert "hooks" not in found.spec
        assert found.spec["linux"]["cgroupsPath"] == ""
