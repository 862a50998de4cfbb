"""What a killed run leaves is removed, and what a living one has is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig import bundled, cleanup, cri_probe, mounts, netns, paths, records
from tests.rig.errors import RigError
from tests.rig.lock import RunLock
from tests.rig.node import Node
from tests.rig.processes import ProcessId, identified
from tests.rig.waiting import until

OWNER = """
import sys, time
from pathlib import Path
from tests.rig import bundled
from tests.rig.node import Node, NodeOptions
from tests.rig.registry import Registry
name, suite, workdir = sys.argv[1], sys.argv[2], Path(sys.argv[3])
with Registry(name + "-r", workdir=workdir) as registry:
    with Node(name, suite, workdir=workdir, options=NodeOptions(expose=(registry.port,), disk_bytes=64 << 20)) as node:
        node.import_image(bundled.busybox_archive())
        node.ctr("run", "--detach", bundled.BUSYBOX_REFERENCE, "left", "/bin/sleep", "3600")
        print("up", flush=True)
        time.sleep(3600)
"""


@contextmanager
def owner(rig: Path, suite: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a registry and a node with a disk and a container, and waits to be ended."""
    argv = [sys.executable, "-c", OWNER, name, suite, str(rig)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=paths.REPOSITORY) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def name() -> str:
    return f"owned-{os.getpid()}"


def test_sigkill_of_the_owner(rig: Path, suite: str, name: str) -> None:
    with owner(rig, suite, name) as process, netns.held(Node.attach(name).pid) as namespace:
        node, registry = records.load(name), records.load(f"{name}-r")
        processes = identified(node.cgroup.pids() | registry.cgroup.pids())
        assert len(processes) >= 5  # holder, containerd, relay, shim, sleep, registry
        assert name not in cleanup.cleanup()
        assert cri_probe.cri_answers(Path(node.details["endpoint"]))
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        what = " ".join(node.left_over())
        for word in ("process", "cgroup", "mount", "loop device", "directory"):
            assert word in what
        assert {name, f"{name}-r"} <= set(cleanup.cleanup())
        assert node.left_over() + registry.left_over() == []
        assert [each for each in processes if each.alive] == []
        assert namespace not in netns.namespaces()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_clean_up_by_themselves(rig: Path, name: str, number: signal.Signals) -> None:
    """A pytest run that is interrupted or terminated removes what it has."""
    test = rig / "test_waits.py"
    test.write_text(
        "import time\n\ndef test_waits(node):\n    print('up', node.name, flush=True)\n    time.sleep(100)\n",
        encoding="utf-8",
    )
    (rig / "conftest.py").write_text('pytest_plugins = ["tests.rig.fixtures"]\n', encoding="utf-8")
    # The lock is this session's; the run within it has one of its own.
    environment = {**os.environ, "STOKER_RIG_LOCK": str(rig / "lock"), "STOKER_SUITES": "forky"}
    # A shell's background job, and what it starts, does not hear SIGINT; this run is to.
    argv = ["env", "--default-signal=INT", sys.executable]
    argv += ["-m", "pytest", "-s", "-q", "-c", str(paths.REPOSITORY / "pyproject.toml")]
    argv += ["--rootdir", str(rig), "-p", "no:cacheprovider", str(test)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=paths.REPOSITORY, env=environment
    ) as run:
        assert run.stdout is not None
        said = []
        while (line := run.stdout.readline()) and not line.startswith("up "):
            said.append(line)
        assert line.startswith("up "), "".join(said)
        record = records.load(line.split()[1])
        run.send_signal(number)
        run.wait(60)
    assert run.returncode == 2
    assert record.left_over() == []
    assert [each.name for each in records.load_all() if each.name.endswith(str(run.pid))] == []


def test_a_detached_node_lives_until_it_is_stopped(rig: Path, suite: str, name: str) -> None:
    from tests.rig.node import NodeOptions

    node = Node(name, suite, workdir=rig, options=NodeOptions(disk_bytes=64 << 20))
    node.start()
    node.detach()
    node.stop()
    assert name not in cleanup.cleanup()
    again = Node.attach(name)
    again.import_image(bundled.busybox_archive())
    assert bundled.BUSYBOX_REFERENCE in again.ctr("images", "ls", "-q").stdout
    record = records.load(name)
    with pytest.raises(RigError, match="in use"):
        Node(name, suite, workdir=rig).start()
    assert cleanup.stop(name)
    assert record.left_over() == []
    assert not cleanup.stop(name)


def test_a_disk_that_another_mount_namespace_has_a_copy_of_goes_too(rig: Path) -> None:
    """A namespace gets copies of all mounts that there are when it is made, whoever makes it."""
    directory = rig / "copied"
    directory.mkdir()
    mounts.make_disk(directory / "disk.img", directory / "point", 16 << 20, None)
    argv = ["unshare", "--mount", "sh", "-c", "echo up; exec sleep infinity"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "up\n"
            assert mounts.mounts_below(directory, str(other.pid)) == [directory / "point"]
            mounts.remove_below(directory)
            assert mounts.loops_below(directory) == []
            assert mounts.mounts_below(directory, str(other.pid)) == []
            assert other.poll() is None
        finally:
            other.kill()


def test_a_process_id_used_again_is_another_process() -> None:
    own = ProcessId.own()
    assert own.alive
    other = ProcessId(own.pid, own.started - 1)
    assert not other.alive
    assert not other.signal(signal.SIGKILL)


def test_one_run_at_a_time(rig: Path) -> None:
    first, second = RunLock(rig / "a-lock"), RunLock(rig / "a-lock")
    first.acquire()
    with pytest.raises(RigError, match=f"process {os.getpid()} has the rig"):
        second.acquire(timeout=0)
    waiting = threading.Thread(target=second.acquire, args=(20,))
    waiting.start()
    first.release()
    waiting.join(20)
    assert not waiting.is_alive()
    second.release()


def test_processes_of_one_run_share_the_rig_and_others_wait(rig: Path) -> None:
    first, second, other = (RunLock(rig / "b-lock", run=run) for run in ("one", "one", "two"))
    first.acquire()
    second.acquire(timeout=0)
    first.release()
    for stranger in (other, RunLock(rig / "b-lock")):
        with pytest.raises(RigError, match=f"process {os.getpid()} has the rig"):
            stranger.acquire(timeout=0)
    second.release()
    other.acquire(timeout=0)
    with pytest.raises(RigError, match="has the rig"):
        first.acquire(timeout=0)
    other.release()


def test_waiting_has_an_end() -> None:
    with pytest.raises(RigError, match=r"nothing: not within 0\.01 s"):
        until("nothing", lambda: None, timeout=0.01)
