"""A real stokerd as a process of its own, and the state of a node's containerd as ctr sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.client import Client, DaemonUnreachable
from stoker.objects.images import JobStatus, WarmRequest
from tests.rig.node import Node
from tests.rig.toml import dump
from tests.rig.waiting import until

QUICK: Mapping[str, Any] = {
    "backoff_initial": "100ms",
    "backoff_max": "1s",
    "poll_interval": "50ms",
    "disk_reserve": "1MiB",
    "disk_floor": "512KiB",
    "inode_reserve": 10,
    "inode_floor": 5,
    "io_pressure_limit": 100,
}
"""Image settings under which tests need not wait, and are not at the mercy of the machine's disk."""


class Stokerd:
    """Start it with `start`; every method but those of `client` blocks."""

    def __init__(self, node: Node, directory: Path, *, settings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.socket = directory / "stokerd.sock"
        self.config = directory / "stokerd.toml"
        self.log_file = directory / "stokerd.log"
        self._process: subprocess.Popen[bytes] | None = None
        wanted: dict[str, dict[str, Any]] = {
            "daemon": {"state_dir": str(directory / "state"), "log_format": "json", "log_level": "debug"},
            "api": {"socket": str(self.socket), "group": ""},
            "runtime": {"endpoint": str(node.endpoint), "connect_backoff_max": "300ms"},
            "images": dict(QUICK),
            "credentials": {"docker_configs": []},
        }
        for table, values in (settings or {}).items():
            wanted[table] = {**wanted.get(table, {}), **values}
        self.config.write_text(dump(wanted), encoding="utf-8")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Start the process and do not wait for anything."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "stokerd.main", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start(self, *, ready: bool = True) -> None:
        """Start and wait until /readyz (or, without *ready*, any answer) says so."""
        self.spawn()
        until("stokerd answers", lambda: self._answers(ready=ready), timeout=30)

    def _answers(self, *, ready: bool) -> bool:
        process = self._process
        assert process is not None
        if process.poll() is not None:
            raise AssertionError(f"stokerd ended with {process.returncode}:\n{self.log()[-3000:]}")
        path = "/readyz" if ready else "/healthz"
        answer = self.curl(path)
        return answer == "200" if ready else answer in {"200", "503"}

    def curl(self, path: str) -> str:
        """Return the status of a GET, "" when nobody answers."""
        done = subprocess.run(
            [
                "curl",
                "-s",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--unix-socket",
                str(self.socket),
                f"http://x{path}",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        return done.stdout if done.returncode == 0 else ""

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM; returns the exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise AssertionError(f"stokerd did not stop within {timeout} s:\n{self.log()[-3000:]}") from None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        """Return the log's structured lines."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client(self.socket) as client:
            yield client

    async def warm(self, *images: str, **options: Any) -> JobStatus:
        """Warm images and return the job as it ended."""
        async with self.client() as client:
            job = await client.warm(WarmRequest(images=list(images), **options))
            return await ended(client, job.id)

    def cli(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run the command line against this daemon."""
        return subprocess.run(
            [sys.executable, "-m", "stoker", "--socket", str(self.socket), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        )


async def ended(client: Client, job_id: str) -> JobStatus:
    """Follow a job to its end."""
    async for _ in client.follow(job_id):
        pass
    try:
        return await client.job(job_id)
    except DaemonUnreachable as error:
        raise AssertionError(f"job {job_id} cannot be asked for: {error}") from error


@dataclass(frozen=True)
class Store:
    """What containerd holds, as ctr prints it. Two of them compare; `-` shows what one has more."""

    content: frozenset[str]
    ingests: frozenset[str]
    snapshots: frozenset[str]
    leases: frozenset[str]
    images: frozenset[str]
    pinned: frozenset[str] = field(compare=False, default=frozenset())

    @classmethod
    def of(cls, node: Node) -> Store:
        """Look now."""
        images = _rows(node, "images", "ls")
        return cls(
            content=_words(node, "content", "ls", "-q"),
            ingests=frozenset(row.split()[0] for row in _rows(node, "content", "active")),
            snapshots=frozenset(row.split()[0] for row in _rows(node, "snapshots", "ls")),
            leases=frozenset(row.split()[0] for row in _rows(node, "leases", "ls")),
            images=frozenset(row.split()[0] for row in images),
            pinned=frozenset(row.split()[0] for row in images if re.search(r"io\.cri-containerd\.pinned=pinned", row)),
        )

    def __sub__(self, other: Store) -> dict[str, list[str]]:
        parts = ("content", "ingests", "snapshots", "leases", "images")
        more = {part: sorted(getattr(self, part) - getattr(other, part)) for part in parts}
        return {part: names for part, names in more.items() if names}


def _rows(node: Node, *arguments: str) -> list[str]:
    lines = node.ctr(*arguments).stdout.splitlines()
    return [line for line in lines[1:] if line.strip()]


def _words(node: Node, *arguments: str) -> frozenset[str]:
    return frozenset(node.ctr(*arguments).stdout.split())


def settle(node: Node, before: Store, timeout: float = 20) -> Store:
    """Wait until containerd's collector has brought the store back to *before*; return what is there at last."""
    state = Store.of(node)

    def same() -> bool:
        nonlocal state
        state = Store.of(node)
        return state == before

    try:
        until("the store is as before", same, timeout=timeout, interval=0.2)
    except Exception as error:
        raise AssertionError(f"left over: {state - before}; lost: {before - state}") from error
    return state


def remove_all(node: Node, references: Sequence[str]) -> None:
    """Take images off the node with ctr, tag and digest names alike, and collect."""
    names = sorted(Store.of(node).images)
    doomed = [name for name in names if any(name.startswith(prefix) for prefix in references)]
    if doomed:
        node.ctr("images", "rm", "--sync", *doomed)
