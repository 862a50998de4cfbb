"""A real stoker-coordinator as a process of its own, on loopback."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.objects import kinds
from tests.rig.daemon import DaemonProcess
from tests.rig.registry import free_ports
from tests.rig.toml import dump
from tests.rig.waiting import until


class Coordinator(DaemonProcess):
    """Start it with `start`; every method blocks."""

    def __init__(self, directory: Path, *, settings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__("coordinator", "stoker_coordinator.main", directory)
        self.state, self.socket = directory / "state", directory / "api.sock"
        self.port, self.link_port, self.join_port = free_ports(3)
        wanted: dict[str, dict[str, Any]] = {
            "coordinator": {"state_dir": str(self.state), "log_format": "json", "log_level": "debug"},
            "api": {"listen": f"127.0.0.1:{self.port}", "socket": str(self.socket), "group": ""},
            "link": {
                "listen": f"127.0.0.1:{self.link_port}",
                "join_listen": f"127.0.0.1:{self.join_port}",
                "names": ["127.0.0.1"],
                "heartbeat": "500ms",
                "silent_after": "3s",
                "dropped_after": "10s",
            },
        }
        for table, values in (settings or {}).items():
            wanted[table] = {**wanted.get(table, {}), **values}
        self.config.write_text(dump(wanted), encoding="utf-8")

    @property
    def url(self) -> str:
        """Of the API and of the pages; a token is needed."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it serves."""
        self.spawn()
        until("the coordinator serves", self._serves, timeout=30)

    def _serves(self) -> bool:
        self.must_run()
        connection = _UnixConnection(self.socket)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def command(self, *arguments: str) -> str:
        """Run a command of stoker-coordinator; returns what it prints."""
        done = subprocess.run(
            [*self.program, "--config", str(self.config), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout.strip()

    def token(self, role: str = "admin") -> str:
        """Return a new token of the API."""
        return self.command("token", "create", f"test-{role}", "--role", role)

    def cli(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `stoker --server` against it, over its socket."""
        return subprocess.run(
            [sys.executable, "-m", "stoker", "--server", f"unix:{self.socket}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
        )

    def apply(self, *documents: Mapping[str, Any]) -> None:
        """Make objects."""
        text = "\n---\n".join(json.dumps(document) for document in documents)
        done = self.cli("apply", "-f", "-", stdin=text)
        assert done.returncode == 0, done.stderr + done.stdout

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """Return one object; *kind* by any of its names."""
        return self._ask(kind, namespace, f"/{name}")

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        found: list[dict[str, Any]] = self._ask(kind, "", "")["items"]
        return found

    def _ask(self, word: str, namespace: str, rest: str) -> dict[str, Any]:
        """Ask the API over its socket, without a program of its own for each question."""
        kind = kinds.find(word)
        assert kind is not None, word
        within = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
        return self.ask(f"/apis/{kind.version}{within}/{kind.plural}{rest}")

    def ask(self, path: str) -> dict[str, Any]:
        """Return what is at a path of the API, as JSON."""
        connection = _UnixConnection(self.socket)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, f"{path}: {answer.status} {body[:300]!r}"
        found: dict[str, Any] = json.loads(body)
        return found


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("coordinator", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))
