"""The life of a real process: reload, logs, stop and hurry, without containerd and with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ClientError
from stoker.objects.images import ItemEvent, PlanRequest, WarmRequest
from tests.integration.conftest import MakeStokerd, Publish
from tests.integration.pods import GRACE, completed, only, request, tidy, whole
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Gate, Hold
from tests.rig.images import ImageSpec
from tests.rig.layers import LayerSpec
from tests.rig.node import Node
from tests.rig.pods import STUBBORN, BareCri
from tests.rig.stokerd import Stokerd, ended
from tests.rig.toml import dump
from tests.rig.waiting import until

# Becomes Python with the socket at descriptor 3: the process id must be known where the variables are made.
PASS = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="api")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


# stokerd whose images room breaks twice, and that believes in a recovery sooner.
BREAKS = """
import sys
from stokerd import main
from stokerd.images.service import ImageService
from stoker.service import supervise
supervise.HEALTHY_AFTER = 1.0
whole, left = ImageService.run, 2
async def run(self):
    global left
    left -= 1
    if left >= 0:
        raise ValueError("planted")
    await whole(self)
ImageService.run = run
main.run(sys.argv[1:])
"""


class Process:
    """stokerd by itself, on a machine without containerd; told apart from `Stokerd`, it needs no rig."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "stokerd.toml"
        self.socket = directory / "s.sock"
        self.log_file = directory / "log"
        self.state = directory / "state"
        self.child: subprocess.Popen[bytes] | None = None
        self.configure()

    def configure(self, **tables: dict[str, Any]) -> None:
        wanted: dict[str, dict[str, Any]] = {
            "daemon": {"state_dir": str(self.state), "log_format": "json"},
            "api": {"socket": str(self.socket), "group": ""},
            "runtime": {"endpoint": str(self.state / "none.sock"), "connect_backoff_max": "20ms"},
        }
        for table, values in tables.items():
            wanted[table] = {**wanted.get(table, {}), **values}
        self.config.write_text(dump(wanted), encoding="utf-8")

    def start(self, *, program: tuple[str, ...] = ("-m", "stokerd.main"), **environment: str) -> None:
        before = len(self.said("stokerd is up"))
        with self.log_file.open("ab") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-W", "error", *program, "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        until("stokerd is up", lambda: len(self.said("stokerd is up")) > before, timeout=30)

    def tell(self, number: signal.Signals) -> None:
        assert self.child is not None
        self.child.send_signal(number)

    def stop(self) -> int:
        child, self.child = self.child, None
        if child is None:
            return 0
        child.terminate()
        return child.wait(30)

    def lines(self) -> list[dict[str, Any]]:
        text = self.log_file.read_text() if self.log_file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    def text(self, path: str, method: str = "GET") -> str:
        command = [
            "curl",
            "-sS",
            "-X",
            method,
            "--max-time",
            "20",
            "--unix-socket",
            str(self.socket),
            f"http://x{path}",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    def get(self, path: str, method: str = "GET") -> Any:
        return json.loads(self.text(path, method))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if made.child is not None and made.child.poll() is None:
        assert made.stop() == 0


def test_it_says_ready_reloading_and_stopping(process: Process, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        process.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000")
        told: list[str] = []

        def next_is(start: str) -> bool:
            told.append(manager.recv(4096).decode())
            return told[-1].startswith(start)

        until("READY", lambda: next_is("READY=1"), interval=0)
        until("the watchdog is fed", lambda: next_is("WATCHDOG=1"), interval=0)
        process.tell(signal.SIGHUP)
        until("RELOADING", lambda: next_is("RELOADING=1\nMONOTONIC_USEC="), interval=0)
        until("READY again", lambda: next_is("READY=1"), interval=0)
        process.tell(signal.SIGTERM)
        until("STOPPING", lambda: next_is("STOPPING=1\nEXTEND_TIMEOUT_USEC="), interval=0)
        assert any(line.startswith("STATUS=waiting for containerd") for line in told)
    assert process.child is not None
    assert process.child.wait(20) == 0


def test_containerd_may_be_absent_for_as_long_as_it_likes(process: Process) -> None:
    """It asks for it dozens of times meanwhile, lives on, and says so once."""
    process.configure(daemon={"log_level": "debug"})
    process.start()
    began = time.monotonic()
    while time.monotonic() - began < 2:
        health = process.get("/healthz")
        assert health["ok"] is False
        assert "none.sock" in health["message"]
        assert process.get("/readyz")["parts"]["images"] == "ok"
    assert process.child is not None
    assert process.child.poll() is None
    assert len(process.said("containerd cannot be used; waiting for it")) == 1
    warnings = [line for line in process.lines() if line["level"] in {"warning", "error"}]
    assert len(warnings) == 1


def test_reload_by_the_api_and_by_a_signal(process: Process) -> None:
    process.start()
    process.configure(images={"max_parallel": 9}, daemon={"log_level": "debug"}, api={"heartbeat": "3s"})
    result = process.get("/v1/reload", "POST")
    assert sorted(result["applied"]) == ["daemon.log_level", "images.max_parallel"]
    assert result["restartNeeded"] == ["api.heartbeat"]
    assert process.get("/v1/settings")["images"]["max_parallel"] == 9
    process.config.write_text("[images]\nmax_parallel = 0\n")
    process.tell(signal.SIGHUP)
    until("it is told", lambda: process.said("configuration not reloaded; the settings are as before"))
    refused = process.get("/v1/reload", "POST")
    assert refused["reason"] == "InvalidConfig"
    assert "images.max_parallel: 0 must be at least 1" in refused["message"]
    assert process.get("/v1/settings")["images"]["max_parallel"] == 9
    advice = process.get("/v1/node")["advice"]
    assert any(entry["subject"] == "configuration" for entry in advice)
    process.configure()
    process.tell(signal.SIGHUP)
    until("it holds", lambda: process.get("/v1/settings")["images"]["max_parallel"] == 2)


def test_a_subsystem_that_fails_is_told_and_takes_no_other_down(process: Process) -> None:
    process.start(program=("-c", BREAKS))
    until("it is told", lambda: process.get("/healthz")["parts"]["images"].startswith("failed"))
    parts = process.get("/readyz")["parts"]
    assert parts["images"] == "failed and is started again: ValueError: planted"
    assert parts["containers"] == "ok"
    metrics = process.text("/metrics")
    assert 'stoker_subsystem_up{subsystem="images"} 0.0' in metrics
    assert 'stoker_subsystem_up{subsystem="containers"} 1.0' in metrics
    assert process.get("/v1/recreates") == []  # the other rooms answer
    until("it has recovered", lambda: process.get("/healthz")["parts"]["images"] == "ok")
    metrics = process.text("/metrics")
    assert 'stoker_subsystem_up{subsystem="images"} 1.0' in metrics
    assert 'stoker_subsystem_failures_total{subsystem="images"} 2.0' in metrics
    (failure,) = process.said("subsystem failed; it is started again")
    assert "ValueError: planted" in failure["exception"]
    assert len(process.said("subsystem runs again")) == 1


def test_where_it_hung_is_told_when_the_watchdog_ends_it(process: Process) -> None:
    process.start()
    process.tell(signal.SIGABRT)  # what systemd sends
    assert process.child is not None
    assert process.child.wait(20) == -signal.SIGABRT
    text = process.log_file.read_text()
    assert "Fatal Python error: Aborted" in text
    assert "in run_forever" in text


def test_what_was_logged_can_be_asked_for(process: Process) -> None:
    process.start()
    found = [json.loads(line) for line in process.text("/v1/logs").splitlines()]
    assert found == process.lines()[: len(found)]
    assert "stokerd is up" in [line["event"] for line in found]


def test_a_passed_socket_is_used_and_left(process: Process, tmp_path: Path) -> None:
    path = tmp_path / "passed.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        command = [sys.executable, "-c", PASS, str(theirs.fileno()), "-m", "stokerd.main", "--config"]
        with process.log_file.open("ab") as log:
            child = subprocess.Popen(
                [*command, str(process.config)], stdout=log, stderr=log, pass_fds=(theirs.fileno(),)
            )
        process.child = child
        process.socket = path
        assert process.get("/healthz")["ok"] is False  # the connection waits until somebody is there
        assert process.stop() == 0
        assert path.is_socket()


def test_secrets_are_made_once_for_root_alone(process: Process) -> None:
    process.start()
    first = {name: (process.state / name).read_text() for name in ("identity", "salt")}
    assert first["identity"] != first["salt"]
    assert {(process.state / name).stat().st_mode & 0o777 for name in first} == {0o600}
    assert process.stop() == 0
    process.start()
    assert {name: (process.state / name).read_text() for name in first} == first


async def test_a_pull_is_parked_and_gone_on_with(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    """SIGTERM in the middle: the stop is quick, and the next start fetches only the rest."""
    pushed = publish(ImageSpec(layers=(LayerSpec(size=12 << 20, seed="park"),)))
    layer = pushed.layers[0]
    gate = Gate()
    rule = proxy.rule(Hold(gate, after=8 << 20), path=layer.digest, method="GET")
    stokerd = make_stokerd(clean_node)
    async with stokerd.client() as client:
        job = await client.warm(WarmRequest(images=[f"{proxy.address}/{pushed.repository}:{pushed.tag}"]))
        async for event in client.follow(job.id):
            if isinstance(event, ItemEvent) and event.item.progress.bytes_done >= 7 << 20:
                break
    began = time.monotonic()
    assert stokerd.stop() == 0
    assert time.monotonic() - began < 10
    proxy.remove(rule)
    gate.release()
    stokerd.start()
    async with stokerd.client() as client:
        done = await ended(client, job.id)
    assert done.state == "Succeeded"
    assert proxy.bytes_sent(layer.digest) < layer.size + (6 << 20)


async def test_a_container_that_is_between_two_is_not_left_there(make_stokerd: MakeStokerd, node: Node) -> None:
    """SIGTERM while the old container is being stopped: the new one runs before stokerd ends."""
    stokerd = make_stokerd(node)
    async with BareCri(node) as bare:
        pod = await bare.run_pod("parked")
        old = await bare.run(pod, "main", command=STUBBORN)
        await bare.ready(old)
        began = time.monotonic()
        async with stokerd.client() as client:
            asked = await client.recreate(request(pod, "main"))
            async for event in client.follow_recreate(asked.id):
                if only(event.recreate).step == "Stopping":
                    break
        assert await asyncio.to_thread(stokerd.stop) == 0
        assert time.monotonic() - began >= GRACE  # the old one has had its time
        running = await whole(bare, pod, "main")
        assert running["main"].id != old
        assert running["main"].attempt == 1
        stokerd.start()
        async with stokerd.client() as client:
            assert (await completed(client, asked.id)).result == "Succeeded"
        await tidy(bare, pod, "main")


async def test_a_second_signal_waits_for_nobody(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    """A request hangs on a registry; the first SIGTERM lets it finish, the second does not."""
    pushed = publish()
    gate = Gate()
    proxy.rule(Hold(gate), path="manifests")
    stokerd = make_stokerd(clean_node, daemon={"stop_timeout": "10m"})
    async with stokerd.client() as client:
        request = PlanRequest(images=[f"{proxy.address}/{pushed.repository}:{pushed.tag}"])
        planning = asyncio.create_task(client.plan(request))
        await proxy.seen(path="manifests")
        os.kill(stokerd.pid, signal.SIGTERM)
        until("it stops", lambda: any(line["event"] == "stopping" for line in stokerd.events()))
        assert stokerd.running
        began = time.monotonic()
        assert stokerd.stop() == 0
        assert time.monotonic() - began < 10
        gate.release()
        with pytest.raises(ClientError):
            await planning


async def test_limits_of_a_running_daemon_change_without_losing_a_pull(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, publish: Publish
) -> None:
    images = [publish(ImageSpec(layers=(LayerSpec(size=1 << 20, seed=f"limits {n}"),))) for n in range(3)]
    gate = Gate()
    for pushed in images:
        proxy.rule(Hold(gate), path=pushed.layers[0].digest, method="GET")
    stokerd = make_stokerd(clean_node, images={"max_parallel": 1})
    async with stokerd.client() as client:
        names = [f"{proxy.address}/{pushed.repository}:{pushed.tag}" for pushed in images]
        job = await client.warm(WarmRequest(images=names))
        until("one is pulled", lambda: _pulling(stokerd) == 1)
        text = stokerd.config.read_text()
        stokerd.config.write_text(text.replace("max_parallel = 1", "max_parallel = 3\nmax_parallel_per_registry = 3"))
        os.kill(stokerd.pid, signal.SIGHUP)
        until("all are pulled", lambda: _pulling(stokerd) == 3)
        gate.release()
        done = await ended(client, job.id)
    assert done.state == "Succeeded"
    assert all(item.attempt == 1 for item in done.items)


def _pulling(stokerd: Stokerd) -> int:
    command = ["curl", "-sS", "--unix-socket", str(stokerd.socket), "http://x/metrics"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("stoker_image_pulls_running ")]
    return int(float(line.split()[1]))
