"""The runtime spec of a clone, and what network plugins are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stokerd.checkpoints import cni
from stokerd.checkpoints.cloning import Places, cgroup_path, clone_spec, sandbox_files
from stokerd.checkpoints.cni import NetworkError, NetworkList
from stokerd.checkpoints.model import has_own_pids, shared_memory

POD = "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/pod1"
GOLDEN: dict[str, Any] = {
    "hostname": "web",
    "process": {"args": ["app"], "env": ["A=1"]},
    "annotations": {"note": "kept"},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev/shm", "type": "bind", "source": "/run/containerd/x/sandboxes/pod1/shm"},
        {"destination": "/etc/resolv.conf", "type": "bind", "source": f"{POD}/resolv.conf", "options": ["rbind"]},
        {"destination": "/data", "type": "bind", "source": "/srv/data"},
    ],
    "linux": {
        "cgroupsPath": "/kubepods/burstable/pod1/golden",
        "seccomp": {"defaultAction": "SCMP_ACT_ERRNO"},
        "namespaces": [
            {"type": "pid"},
            {"type": "mount"},
            {"type": "ipc", "path": "/proc/1/ns/ipc"},
            {"type": "uts", "path": "/proc/1/ns/uts"},
            {"type": "network", "path": "/proc/1/ns/net"},
        ],
    },
}
PLACES = Places("/run/stoker/netns/c", "/c/shm", "/c/criu.conf", {"/etc/resolv.conf": "/c/file-0"})
CONFLIST = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local"}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall"},
    ],
}


class TestSpec:
    def test_only_what_ties_it_to_the_pod_is_changed(self) -> None:
        before = json.dumps(GOLDEN)
        spec = clone_spec(GOLDEN, "clone-1", PLACES)
        assert json.dumps(GOLDEN) == before
        assert spec["linux"]["namespaces"] == [
            {"type": "pid"},
            {"type": "mount"},
            {"type": "ipc"},
            {"type": "uts"},
            {"type": "network", "path": "/run/stoker/netns/c"},
        ]
        assert spec["linux"]["cgroupsPath"] == "/kubepods/burstable/pod1/clone-1"
        assert spec["annotations"] == {"note": "kept", "org.criu.config": "/c/criu.conf"}
        sources = [mount["source"] for mount in spec["mounts"]]
        assert sources == ["proc", "/c/shm", "/c/file-0", "/srv/data"]
        assert spec["mounts"][2]["options"] == ["rbind"]
        assert (spec["process"], spec["linux"]["seccomp"]) == (GOLDEN["process"], GOLDEN["linux"]["seccomp"])
        assert spec["hostname"] == "web"
        assert clone_spec(GOLDEN, "clone-1", PLACES, "other")["hostname"] == "other"

    def test_the_machines_own_memory_is_left_alone(self) -> None:
        """A pod with the host's IPC has /dev/shm of the machine: there is nothing of its own to give."""
        spec = clone_spec(GOLDEN, "clone-1", Places("/n", "", "/c"))
        assert spec["mounts"][1]["source"] == "/run/containerd/x/sandboxes/pod1/shm"

    @pytest.mark.parametrize(
        ("golden", "clone"),
        [
            ("/k8s.io/abc", "/k8s.io/c"),
            ("kubepods-pod1.slice:cri-containerd:abc", "kubepods-pod1.slice:cri-containerd:c"),
            ("", "/stoker/c"),
            ("/abc", "/c"),
        ],
    )
    def test_cgroups(self, golden: str, clone: str) -> None:
        assert cgroup_path(golden, "c") == clone

    def test_what_goes_with_the_pod(self) -> None:
        assert sandbox_files(GOLDEN) == {"/etc/resolv.conf": f"{POD}/resolv.conf"}
        assert sandbox_files({}) == {}

    def test_shared_memory_and_pids(self) -> None:
        assert shared_memory(GOLDEN) == "/run/containerd/x/sandboxes/pod1/shm"
        assert shared_memory({"mounts": [{"destination": "/dev/shm", "type": "bind", "source": "/dev/shm"}]}) == ""
        assert shared_memory({"mounts": [{"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}]}) == ""
        assert has_own_pids(GOLDEN)
        assert not has_own_pids({"linux": {"namespaces": [{"type": "pid", "path": "/proc/1/ns/pid"}]}})
        assert not has_own_pids({})


def network(**more: Any) -> NetworkList:
    return cni.parse(json.dumps({**CONFLIST, **more}), "x")


class TestNetworks:
    def test_the_first_file_counts(self) -> None:
        assert cni.choose(["20-b.conf", "10-a.conflist", "00-x.txt"]) == "10-a.conflist"
        assert cni.choose(["x.txt"]) is None

    def test_one_plugin_alone(self) -> None:
        found = cni.parse('{"cniVersion": "0.3.1", "name": "n", "type": "bridge"}', "x")
        assert (found.name, [each["type"] for each in found.plugins]) == ("n", ["bridge"])

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "{}", '{"name": "x"}', '{"name": "x", "type": "../sh"}', '{"name": "x", "plugins": []}',
         '{"name": "x", "plugins": [{}]}', '{"cniVersion": "9.9", "name": "x", "type": "y"}',
         '{"name": "x", "plugins": [7]}', '{"name": "x", "type": ""}'],
    )  # fmt: skip
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(NetworkError):
            cni.parse(text, "x")

    def test_add_hands_on_what_the_one_before_answered(self) -> None:
        first = cni.first_call(network())
        assert (first.plugin, first.config["name"], first.config["cniVersion"]) == ("bridge", "pods", "1.0.0")
        assert "prevResult" not in first.config
        second = cni.next_call(network(), 1, {"ips": [1]})
        assert second is not None
        assert (second.plugin, second.config["prevResult"]) == ("portmap", {"ips": [1]})
        assert "capabilities" not in second.config
        assert cni.next_call(network(), 3, {}) is None

    def test_del_goes_backwards(self) -> None:
        calls = cni.calls(network(), "DEL", {"ips": [1]})
        assert [call.plugin for call in calls] == ["firewall", "portmap", "bridge"]
        assert all(call.config["prevResult"] == {"ips": [1]} for call in calls)
        assert all("prevResult" not in call.config for call in cni.calls(network(), "DEL", None))

    def test_old_versions_know_no_results(self) -> None:
        assert all("prevResult" not in call.config for call in cni.calls(network(cniVersion="0.3.1"), "DEL", {"a": 1}))
        assert cni.calls(network(cniVersion="0.3.1"), "CHECK", {"a": 1}) == ()
        assert cni.calls(network(disableCheck=True), "CHECK", {"a": 1}) == ()
        assert [call.plugin for call in cni.calls(network(), "CHECK", {"a": 1})] == ["bridge", "portmap", "firewall"]

    def test_answers(self) -> None:
        result = cni.answer(
            "bridge", "ADD", 0, b'{"ips": [{"address": "10.1.0.2/16"}, {"address": "fd00::2/64"}]}', b""
        )
        assert cni.addresses(result) == ("10.1.0.2", "fd00::2")
        assert cni.answer("bridge", "DEL", 0, b"", b"") == {}
        assert cni.addresses({}) == ()

    @pytest.mark.parametrize(
        ("output", "errors", "words"),
        [
            (b'{"code": 11, "msg": "no addresses", "details": "in 10.0.0.0/30"}', b"", "no addresses in 10.0.0.0/30"),
            (b"", b"panic: oh", "panic: oh"),
            (b"garbage", b"", "exit status 1"),
            (b"[]", b"", "exit status 1"),
        ],
    )
    def test_failures_in_the_plugins_own_words(self, output: bytes, errors: bytes, words: str) -> None:
        with pytest.raises(NetworkError, match=words):
            cni.answer("bridge", "ADD", 1, output, errors)

    def test_environment(self) -> None:
        found = cni.environment("ADD", "c", "/run/stoker/netns/c", ["/opt/cni/bin", "/usr/lib/cni"])
        assert found["CNI_PATH"] == "/opt/cni/bin:/usr/lib/cni"
        assert (found["CNI_COMMAND"], found["CNI_CONTAINERID"], found["CNI_IFNAME"]) == ("ADD", "c", "eth0")
