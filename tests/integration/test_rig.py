"""The rig itself: a node starts, pulls, crashes, fills up, and goes without a trace."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig import bundled, cri_probe, images, netns, records
from tests.rig.errors import CommandError, RigError
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import BLOBS, Gate, Hold
from tests.rig.fixtures import MakeNode
from tests.rig.layers import LayerSpec
from tests.rig.node import Node, NodeOptions
from tests.rig.processes import identified
from tests.rig.registry import Registry
from tests.rig.waiting import until

GENERATIONS = {"bookworm": "1.6.", "trixie": "1.7.", "forky": "2."}


def pull(node: Node, reference: str, *more: str) -> None:
    node.ctr("images", "pull", "--plain-http", *more, reference)


def run_busybox(node: Node, name: str, script: str) -> None:
    """A detached container, natively: enough for processes, shims, mounts and cgroups."""
    node.ctr("run", "--detach", bundled.BUSYBOX_REFERENCE, name, "/bin/sh", "-c", script)


@contextmanager
def watched(node: Node) -> Iterator[None]:
    """Nothing of the node may be left after the block, in which it is stopped."""
    record = records.load(node.name)
    processes = identified(record.cgroup.pids() | {node.pid})
    assert record.left_over() != []
    with netns.held(node.pid) as namespace:
        yield
        assert record.left_over() == []
        assert [each for each in processes if each.alive] == []
        assert not node.run_dir.exists()
        assert not node.data_dir.exists()
        if node.options.network == "own":
            assert namespace not in netns.namespaces()
    assert [link for link in netns.links() if link.startswith("stk-")] == []


def test_is_of_its_suite(node: Node) -> None:
    said = node.ctr("version").stdout
    assert f"Version:  {GENERATIONS[node.suite]}" in said.partition("Server:")[2]
    assert cri_probe.cri_answers(node.endpoint)
    assert node.run("hostname").stdout.strip() == node.name


def test_has_namespaces_of_its_own(node: Node) -> None:
    assert json.loads(node.run("ip", "-j", "link", "show").stdout)[0]["ifname"] == "lo"
    assert "eth0" not in node.run("ls", "/sys/class/net").stdout.split()
    assert node.run("cat", "/proc/self/cgroup").stdout.splitlines()[0].endswith((":/", ":/node"))
    # Paths and process ids are those of the machine.
    (node.artifacts_dir / "from-outside").write_text("seen", encoding="utf-8")
    assert node.run("cat", node.artifacts_dir / "from-outside").stdout == "seen"
    assert Path(f"/proc/{node.containerd_pid}/comm").read_text(encoding="utf-8").strip() == "containerd"


def test_writes_nothing_into_the_cached_root(node: Node) -> None:
    from tests.rig import paths

    node.run("touch", "/etc/only-this-node")
    assert not (paths.node_root(node.suite) / "etc/only-this-node").exists()


def test_the_sandbox_image_is_there(node: Node) -> None:
    assert bundled.PAUSE_REFERENCE in node.ctr("images", "ls", "-q").stdout.split()


def test_pulls_from_the_registry(node: Node, registry: Registry, proxy: FaultProxy) -> None:
    spec = images.random_image(layers=3, size=600_000, files=30, seed=node.suite)
    there = registry.push("rig/pulled", images.build(spec), tag=node.suite)
    through = there.reference.replace(registry.address, proxy.address)
    pull(node, through)
    listed = node.ctr("content", "ls", "-q").stdout.split()
    assert {there.manifest_digest, *there.layer_digests} <= set(listed)
    assert proxy.bytes_sent(BLOBS) == there.compressed_size + len(images.build(spec).config)
    node.ctr("images", "rm", through)


def test_containers_outlive_a_crash_of_containerd(make_node: MakeNode) -> None:
    node = make_node()
    node.import_image(bundled.busybox_archive())
    run_busybox(node, "survivor", "while :; do sleep 1; done")
    before, holder = node.containerd_pid, node.pid
    node.kill_containerd()
    assert node.containerd_pid is None
    with pytest.raises(CommandError):
        node.ctr("--timeout", "1s", "version", timeout=20)
    node.start_containerd()
    assert node.containerd_pid not in {None, before}
    assert node.pid == holder
    tasks = node.ctr("tasks", "ls").stdout
    assert "survivor" in tasks
    assert "RUNNING" in tasks
    with watched(node):
        node.stop()


def test_a_crash_in_the_middle_of_a_pull(make_node: MakeNode, registry: Registry, proxy: FaultProxy) -> None:
    node = make_node()
    image = images.build(images.random_image(layers=1, size=2 << 20, seed="crash"))
    through = registry.push("rig/crash", image).reference.replace(registry.address, proxy.address)
    gate = Gate()
    proxy.rule(Hold(gate, after=1 << 20), path=BLOBS + image.layers[0].digest.removeprefix("sha256:"), times=1)
    puller = threading.Thread(target=lambda: node.ctr("images", "pull", "--plain-http", through, check=False))
    puller.start()
    gate.wait_reached()
    node.kill_containerd()
    gate.release()
    puller.join(30)
    assert not puller.is_alive()
    node.start_containerd()
    pull(node, through)


def test_a_small_disk_fills(make_node: MakeNode, registry: Registry) -> None:
    node = make_node(disk_bytes=48 << 20)
    assert os.path.ismount(node.root_dir)
    image = images.build(images.random_image(layers=2, size=60 << 20, files=40, seed="full"))
    there = registry.push("rig/full", image)
    with pytest.raises(CommandError, match="no space left on device"):
        pull(node, there.reference)
    # It is the disk that is full, not the node: containerd answers, and what fits still goes in.
    assert cri_probe.cri_answers(node.endpoint)
    with watched(node):
        node.stop()


def test_a_disk_runs_out_of_inodes(make_node: MakeNode, registry: Registry) -> None:
    node = make_node(disk_bytes=256 << 20, inodes=2000)
    layer = LayerSpec(size=3000, files=3000, seed="inodes")
    there = registry.push("rig/inodes", images.build(images.ImageSpec(layers=(layer,))))
    with pytest.raises(CommandError, match="no space left on device"):
        pull(node, there.reference)


def test_stops_with_a_frozen_container(make_node: MakeNode) -> None:
    node = make_node()
    node.import_image(bundled.busybox_archive())
    run_busybox(node, "frozen", "trap '' TERM; while :; do sleep 1; done")
    node.ctr("tasks", "pause", "frozen")
    with watched(node):
        node.stop()


def test_two_nodes_side_by_side(make_node: MakeNode, registry: Registry) -> None:
    one, other = make_node(), make_node(network="own", igzip=False)
    assert one.endpoint != other.endpoint
    assert netns.namespace_of(one.pid) != netns.namespace_of(other.pid)
    assert (one.bridge, one.subnet) != (other.bridge, other.subnet)
    there = registry.push("rig/side", images.build(images.random_image(seed="side")))
    pull(one, there.reference)
    assert there.reference in one.ctr("images", "ls", "-q").stdout
    assert there.reference not in other.ctr("images", "ls", "-q").stdout
    assert one.run("sh", "-c", "command -v igzip", check=False).returncode == 0
    assert other.run("sh", "-c", "command -v igzip", check=False).returncode != 0
    with watched(other):
        other.stop()
    assert cri_probe.cri_answers(one.endpoint)


def test_host_network(make_node: MakeNode, registry: Registry) -> None:
    node = make_node(network="host")
    assert netns.namespace_of(node.pid) == netns.namespace_of(os.getpid())
    there = registry.push("rig/host", images.build(images.random_image(seed="host")))
    pull(node, there.reference)
    with watched(node):
        node.stop()


def test_a_node_that_cannot_start_says_why_and_leaves_nothing(rig: Path, suite: str) -> None:
    options = NodeOptions(config={"plugins": "not a table"})
    node = Node(f"broken-{os.getpid()}", suite, workdir=rig, options=options)
    with pytest.raises(RigError, match="containerd ended with"):
        node.start()
    assert not node.run_dir.exists()
    assert not node.data_dir.exists()


def test_containerd_is_configured_as_asked(make_node: MakeNode) -> None:
    from tests.rig.containerd_config import PullOptions

    pulls = PullOptions(max_concurrent_downloads=1, discard_unpacked_layers=True)
    node = make_node(pull=pulls, config={"debug": {"level": "debug"}})
    text = node.run("containerd", "--config", node.config_file, "config", "dump").stdout
    assert "max_concurrent_downloads = 1" in text
    assert "discard_unpacked_layers = true" in text
    until("a debug line", lambda: "level=debug" in node.log_file.read_text(encoding="utf-8"))
