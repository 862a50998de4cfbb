"""stokerd and the coordinator as services of a real systemd, with the units that `make install` puts on a machine."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Publish
from tests.rig import paths
from tests.rig.machine import Machine
from tests.rig.node import Node
from tests.rig.stokerd import QUICK
from tests.rig.toml import dump
from tests.rig.waiting import until

SOCKET = "/run/stoker/stokerd.sock"
CONFIG = "/etc/stoker/stokerd.toml"
SERVICE = "stokerd.service"
NODES_URL = "http://127.0.0.1:7400/apis/stoker.dev/v1/nodes"


class Service:
    """stokerd on the machine, as its operator sees it."""

    def __init__(self, machine: Machine, node: Node) -> None:
        self.machine = machine
        self.node = node

    def configure(self, **tables: Mapping[str, Any]) -> None:
        wanted = {
            "runtime": {"endpoint": str(self.node.endpoint), "connect_backoff_max": "300ms"},
            "images": dict(QUICK),
            "credentials": {"docker_configs": []},
        }
        self.machine.write(CONFIG, dump({**wanted, **tables}))

    def override(self, text: str) -> None:
        self.machine.write(f"/etc/systemd/system/{SERVICE}.d/test.conf", text)
        self.machine.systemctl("daemon-reload")

    def get(self, path: str) -> dict[str, Any]:
        answer = self.machine.run("curl", "-sS", "--max-time", "20", "--unix-socket", SOCKET, f"http://x{path}").stdout
        found: dict[str, Any] = json.loads(answer)
        return found

    def is_ready(self) -> bool:
        return bool(self.get("/readyz")["ok"])

    def state(self, name: str = "ActiveState") -> str:
        return self.machine.show(SERVICE, name)[name]

    def pid(self) -> int:
        return int(self.state("MainPID"))

    def log(self) -> list[dict[str, Any]]:
        """What it has logged, each with the priority under which the journal has it."""
        entries = [json.loads(line) for line in self.machine.journal(SERVICE).splitlines()]
        ours = [entry for entry in entries if str(entry.get("MESSAGE", "")).startswith("{")]
        return [{**json.loads(entry["MESSAGE"]), "priority": entry["PRIORITY"]} for entry in ours]


@pytest.fixture(scope="module")
def machine(rig: Path, node: Node) -> Iterator[Machine]:
    """A machine with the units installed; containerd of the shared node is at its place there, too."""
    install = [sys.executable, paths.REPOSITORY / "systemd" / "install.py", "install", "--venv", sys.prefix]
    python = Path(os.path.realpath(sys.executable)).parents[1]
    binds = [node.run_dir, node.data_dir, *([] if python.is_relative_to("/usr") else [python])]
    name = f"systemd-{node.suite}-{os.getpid()}"
    with Machine(name, workdir=rig, binds=binds, setup=shlex.join(map(str, install))) as made:
        yield made


@pytest.fixture
def service(machine: Machine, node: Node) -> Iterator[Service]:
    """The service, configured and started; stopped and as installed again afterwards."""
    made = Service(machine, node)
    made.configure()
    if Path(sys.prefix).is_relative_to("/tmp"):  # a checkout there is hidden from a service with a /tmp of its own
        machine.write(f"/etc/systemd/system/{SERVICE}.d/place.conf", "[Service]\nPrivateTmp=no\n")
        machine.systemctl("daemon-reload")
    machine.systemctl("enable", "--quiet", "stokerd.socket", SERVICE)
    machine.systemctl("start", SERVICE)
    yield made
    machine.systemctl("stop", "stokerd.socket", SERVICE)
    machine.run("rm", "-rf", f"/etc/systemd/system/{SERVICE}.d", "/var/lib/stoker")
    machine.systemctl("daemon-reload")
    machine.systemctl("reset-failed", check=False)


def test_the_units_are_sound(machine: Machine) -> None:
    done = machine.run("systemd-analyze", "verify", SERVICE, "stokerd.socket")
    assert (done.stdout + done.stderr).strip() == ""
    exposure = machine.run("systemd-analyze", "security", "--no-pager", SERVICE).stdout.splitlines()[-1]
    assert float(exposure.split(":")[1].split()[0]) < 5.5, exposure  # docs/install.md names the figure
    assert machine.run("getent", "group", "stoker").stdout.startswith("stoker:")


def let_others_run_it(machine: Machine, unit: str) -> None:
    """Where the programs lie in root's home or in /tmp, let a service have them that may see neither."""
    places = (Path(sys.prefix), Path(os.path.realpath(sys.executable)))
    lines = ["PrivateTmp=no"] if any(place.is_relative_to("/tmp") for place in places) else []
    if any(place.is_relative_to("/root") for place in places):
        machine.run("chmod", "o+x", "/root")  # of the machine: this one's stays as it is
        lines.append("ProtectHome=no")
    machine.write(f"/etc/systemd/system/{unit}.d/place.conf", "\n".join(["[Service]", *lines, ""]))
    machine.systemctl("daemon-reload")


def test_the_coordinator_is_nobody_s_root(machine: Machine) -> None:
    """It serves people and nodes as a user of its own; tokens that root makes are tokens that it can read."""
    unit = "stoker-coordinator.service"
    done = machine.run("systemd-analyze", "verify", unit)
    assert (done.stdout + done.stderr).strip() == ""
    exposure = machine.run("systemd-analyze", "security", "--no-pager", unit).stdout.splitlines()[-1]
    assert float(exposure.split(":")[1].split()[0]) < 2, exposure  # docs/coordinator.md names the figure
    let_others_run_it(machine, unit)
    machine.systemctl("start", unit)
    try:
        assert machine.show(unit, "StatusText")["StatusText"] == "serving"
        socket, state = "/run/stoker-coordinator/api.sock", "/var/lib/stoker-coordinator"
        seen = machine.run("stat", "-c", "%U:%G %a", socket, state).stdout.splitlines()
        assert seen == ["stoker-coordinator:stoker-coordinator 660", "stoker-coordinator:stoker-coordinator 700"]
        assert machine.run("stoker", "--server", f"unix:{socket}", "nodes").returncode == 0
        assert "BEGIN CERTIFICATE" in machine.run("stoker", "--server", f"unix:{socket}", "nodes", "authority").stdout
        config = ("--config", "/etc/stoker/coordinator.toml")
        token = machine.run("stoker-coordinator", *config, "token", "create", "ann", "--role", "viewer").stdout.strip()
        header = f"Authorization: Bearer {token}"
        answer = machine.run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", header, NODES_URL).stdout
        assert answer == "200"
        fence = machine.run("cat", f"/proc/{machine.show(unit, 'MainPID')['MainPID']}/status").stdout
        assert "CapEff:\t0000000000000000" in fence
        assert "Seccomp:\t2" in fence
    finally:
        machine.systemctl("stop", unit)
    assert machine.show(unit, "Result")["Result"] == "success"
    machine.run("rm", "-rf", f"/etc/systemd/system/{unit}.d", state)


def test_it_starts_and_says_what_it_is_at(service: Service) -> None:
    until("stokerd is ready", service.is_ready)
    assert service.state() == "active"
    found = service.machine.show(SERVICE, "StatusText", "NRestarts", "Type")
    assert found["StatusText"].startswith("containerd ")
    assert found["NRestarts"] == "0"
    assert service.machine.run("stat", "-c", "%U:%G %a", SOCKET).stdout.strip() == "root:stoker 660"
    assert service.machine.run("stat", "-c", "%U %a", "/var/lib/stoker").stdout.strip() == "root 700"
    (up,) = until("the journal has it", lambda: logged(service, "stokerd is up"))
    assert up["priority"] == "6"


def test_it_works_behind_its_fences(service: Service, publish: Publish) -> None:
    """Warming needs containerd's socket, its files, the network and the journal."""
    pushed = publish()
    until("stokerd is ready", service.is_ready)
    done = service.machine.run("stoker", "image", "warm", pushed.reference)
    assert done.returncode == 0
    images = service.machine.run("stoker", "image", "ls").stdout
    assert pushed.repository in images
    assert service.machine.run("stoker", "pods").returncode == 0
    fence = service.machine.run("cat", f"/proc/{service.pid()}/status").stdout
    assert "NoNewPrivs:\t1" in fence
    assert "Seccomp:\t2" in fence
    denied = service.machine.run("nsenter", "-t", str(service.pid()), "-m", "touch", "/usr/denied", check=False)
    assert "Read-only file system" in denied.stderr
    service.machine.run("stoker", "image", "rm", pushed.reference)


def test_reload_applies_what_can_be_and_a_wrong_file_changes_nothing(service: Service) -> None:
    pid = service.pid()
    service.configure(images={**QUICK, "max_parallel": 7}, daemon={"log_level": "debug", "stop_timeout": "11s"})
    service.machine.systemctl("reload", SERVICE)
    until("the reload is over", lambda: _reloads(service) == 1)
    last = logged(service, "configuration reloaded")[-1]
    assert set(last["applied"]) == {"images.max_parallel", "daemon.log_level", "daemon.stop_timeout"}
    assert last["restart_needed"] == []
    assert service.machine.run("stoker", "reload").returncode == 0
    service.machine.write(CONFIG, "images.max_parallel = 0\ncolour = 3\n")
    service.machine.systemctl("reload", SERVICE)
    until("the status tells it", lambda: "2 error(s)" in service.state("StatusText"))
    (wrong,) = until("the journal has it", lambda: logged(service, "configuration not reloaded"))
    assert len(wrong["problems"]) == 2
    assert wrong["priority"] == "3"
    refused = service.machine.run("stoker", "reload", check=False)
    assert refused.returncode != 0
    assert "images.max_parallel: 0 must be at least 1" in refused.stdout + refused.stderr
    until("it is active again", lambda: service.state() == "active")
    assert service.pid() == pid


def _reloads(service: Service) -> int:
    return len(logged(service, "configuration reloaded"))


def logged(service: Service, event: str) -> list[dict[str, Any]]:
    """Return the lines of an event that are in the journal by now: it gets them a moment after they are written."""
    return [line for line in service.log() if line["event"].startswith(event)]


def test_the_socket_outlives_the_service(service: Service) -> None:
    service.machine.systemctl("stop", SERVICE)
    assert service.state() == "inactive"
    assert service.state("Result") == "success"
    assert service.machine.run("test", "-S", SOCKET, check=False).returncode == 0
    assert "parts" in service.get("/healthz")  # the connection waits until the service is there
    assert service.state() == "active"
    before = service.pid()
    service.machine.systemctl("restart", SERVICE)
    assert "parts" in service.get("/healthz")
    assert service.pid() != before


def test_without_a_socket_unit_it_makes_its_own(service: Service) -> None:
    service.machine.systemctl("stop", "stokerd.socket", SERVICE)
    service.machine.systemctl("mask", "--runtime", "--quiet", "stokerd.socket")
    try:
        service.machine.systemctl("start", SERVICE)
        assert "parts" in service.get("/healthz")
        assert service.machine.run("stat", "-c", "%G %a", SOCKET).stdout.strip() == "stoker 660"
        service.machine.systemctl("stop", SERVICE)
        assert service.machine.run("test", "-e", SOCKET, check=False).returncode == 1
    finally:
        service.machine.systemctl("unmask", "--runtime", "--quiet", "stokerd.socket")


def test_no_containerd_is_no_reason_to_end(service: Service) -> None:
    service.configure(runtime={"endpoint": "/run/none.sock", "connect_backoff_max": "50ms"})
    service.machine.systemctl("restart", SERVICE)
    pid = service.pid()
    assert "waiting for containerd" in service.state("StatusText")
    health = service.get("/healthz")
    assert not health["ok"]
    for _ in range(20):  # each asks for containerd anew
        assert not service.get("/readyz")["ok"]
    assert service.pid() == pid
    assert service.state("NRestarts") == "0"
    complaints = until("the journal has it", lambda: logged(service, "containerd cannot be used"))
    assert len(complaints) == 1


def test_a_crash_is_followed_by_a_start_and_a_wrong_configuration_is_not(service: Service) -> None:
    pid = service.pid()
    service.override("[Service]\nRestartSec=100ms\n")
    service.machine.run("kill", "-9", str(pid))
    until("it runs again", lambda: service.state() == "active" and service.pid() not in {0, pid})
    assert service.state("NRestarts") == "1"
    service.machine.write(CONFIG, "images.max_parallel = 0\n")
    service.machine.systemctl("restart", SERVICE, check=False)
    until("it is given up", lambda: service.state() == "failed")
    assert service.state("ExecMainStatus") == "2"
    service.configure()


def test_a_hung_daemon_is_killed_and_started_again(service: Service) -> None:
    service.override("[Service]\nWatchdogSec=1s\nTimeoutAbortSec=1s\nRestartSec=100ms\n")
    service.machine.systemctl("restart", SERVICE)
    pid = service.pid()
    service.machine.run("kill", "-STOP", str(pid))
    until("another one runs", lambda: service.state() == "active" and service.pid() not in {0, pid})
    assert int(service.state("NRestarts")) >= 1
