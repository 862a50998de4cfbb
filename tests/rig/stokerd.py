"""A real stokerd as a process of its own, and the state of a node's containerd as ctr sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.client import Client, DaemonUnreachable
from stoker.objects.images import JobStatus, WarmRequest
from tests.rig.daemon import DaemonProcess
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


class Stokerd(DaemonProcess):
    """Start it with `start`; every method but those of `client` blocks."""

    def __init__(self, node: Node, directory: Path, *, settings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__("stokerd", "stokerd.main", directory)
        self.socket = directory / "stokerd.sock"
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

    def start(self, *, ready: bool = True) -> None:
        """Start and wait until /readyz (or, without *ready*, any answer) says so."""
        self.spawn()
        until("stokerd answers", lambda: self._answers(ready=ready), timeout=30)

    def _answers(self, *, ready: bool) -> bool:
        self.must_run()
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
