"""The coordinator with 1 000, 3 000 and 10 000 simulated nodes: what it takes, and how soon a lost link is known."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.simulator import PULL_SECONDS
from stoker.objects.kinds import KINDS
from stoker.server_client import Server, ServerClient
from tests.rig.toml import dump
from tests.rig.waiting import until

Say = Callable[[str], None]
SIZES = {"1k": 1_000, "3k": 3_000, "10k": 10_000}
PER_PROCESS = 5_000
STEADY_SECONDS = 30.0
TURNS = 20
"""So many times as many nodes as pull at one time."""
_LOST = re.compile(r"lost at (\d+\.\d+)")
_SETTLE_SECONDS, _LISTING_SECONDS = 20.0, 5.0
_PATIENCE = 300.0


async def run(workdir: Path, runs: int, say: Say) -> list[Figure]:
    """Measure with each number of nodes."""
    del runs
    figures: list[Figure] = []
    for name, size in SIZES.items():
        figures += await _measure(workdir / f"coordinator-{name}", name, size, say)
    return figures


async def _measure(directory: Path, name: str, size: int, say: Say) -> list[Figure]:
    await asyncio.to_thread(directory.mkdir, parents=True)
    async with _coordinator(directory) as process:
        base = resident_kib(process.pid)
        async with _nodes(directory, size) as simulators:
            await asyncio.sleep(_SETTLE_SECONDS)
            delays: list[float] = []
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch(directory, delays))
                await asyncio.sleep(_LISTING_SECONDS)  # else the first link waits for everything that there is
                before, began = cpu_seconds(process.pid), time.monotonic()
                await _flap(simulators, size)
                cores = (cpu_seconds(process.pid) - before) / (time.monotonic() - began)
                each = (resident_kib(process.pid) - base) / size
                await asyncio.sleep(2.0)
                watching.cancel()
            took = await _job(directory, size)
    delays.sort()
    p99 = delays[min(int(len(delays) * 0.99), len(delays) - 1)] * 1000 if delays else float("nan")
    median = statistics.median(delays) * 1000 if delays else float("nan")
    overhead = (took / (TURNS * PULL_SECONDS) - 1) * 100
    say(
        f"{size} nodes: {cores:.2f} cores, {each:.1f} KiB a node, report p99 {p99:.0f} ms ({len(delays)} flaps), "
        f"a job's overhead {overhead:.1f} %"
    )
    how = f"heartbeats every 10 s, one link flap a second, {size} nodes"
    return [
        Figure(f"coordinator.{name}_nodes.cpu_cores", round(cores, 3), "cores", 1, 1, how),
        Figure(f"coordinator.{name}_nodes.kib_per_node", round(each, 1), "KiB", 100, 1, how, detail=f"from {base} KiB"),
        Figure(
            f"coordinator.{name}_nodes.report_p99_ms",
            round(p99, 1),
            "ms",
            500,
            len(delays),
            "from a node's report to a HyperNode's status, durable, with one who watches",
            detail=f"median {median:.1f} ms",
        ),
        Figure(
            f"jobs.{name}_nodes.overhead_percent",
            round(overhead, 1),
            "%",
            5,
            1,
            f"one ImagePullJob with parallelism {size // TURNS} on {size} nodes, against its pulls alone",
            detail=f"{took:.1f} s for {TURNS} turns of {PULL_SECONDS:g} s",
        ),
    ]


async def _job(directory: Path, size: int) -> float:
    """Return how long one ImagePullJob takes on all nodes."""
    kind = KINDS["ImagePullJob"]
    job = {
        "apiVersion": kind.version,
        "kind": kind.name,
        "metadata": {"name": "bench", "namespace": "default"},
        "spec": {"image": "registry.example/bench:1", "parallelism": size // TURNS},
    }
    async with ServerClient(Server(f"unix:{directory}/api.sock")) as client, asyncio.timeout(_PATIENCE):
        began = time.monotonic()
        await client.apply(kind, kind.version, "default", "bench", job)
        async with aclosing(client.watch(kind)) as events:
            async for event in events:
                status = event.get("object", {}).get("status", {})
                if status.get("completionTime"):
                    assert status.get("succeeded") == size, status
                    break
        return time.monotonic() - began


# ---------------------------------------------------------------------------------------------- processes


@asynccontextmanager
async def _coordinator(directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a coordinator, with its link on a socket without TLS."""
    settings = {
        "coordinator": {"state_dir": str(directory / "state"), "log_level": "warning"},
        "api": {"listen": "", "socket": str(directory / "api.sock"), "group": ""},
        "link": {"listen": "", "join_listen": "", "plain_listen": f"unix:{directory}/link.sock"},
    }
    (directory / "coordinator.toml").write_text(dump(settings), encoding="utf-8")
    with (directory / "coordinator.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stoker_coordinator.main", "--config", str(directory / "coordinator.toml"),
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            await asyncio.to_thread(until, "the coordinator listens", lambda: _listens(directory), timeout=30)
            await asyncio.sleep(1.0)
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def _listens(directory: Path) -> bool:
    return (directory / "link.sock").exists() and (directory / "api.sock").exists()


@asynccontextmanager
async def _nodes(directory: Path, size: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Run simulators, and wait until all nodes are connected."""
    simulators: list[asyncio.subprocess.Process] = []
    try:
        for first in range(0, size, PER_PROCESS):
            count = min(PER_PROCESS, size - first)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.simulator", "--address", f"unix:{directory}/link.sock",
                "--first", str(first), "--nodes", str(count),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            simulators.append(process)
        async with asyncio.timeout(_PATIENCE):
            for process in simulators:
                assert process.stdout is not None
                line = await process.stdout.readline()
                assert line, "a simulator ended before its nodes were connected"
                json.loads(line)
        yield simulators
    finally:
        for process in simulators:
            if process.returncode is None:
                process.kill()
            await process.wait()


# ---------------------------------------------------------------------------------------------- measuring


async def _flap(simulators: list[asyncio.subprocess.Process], size: int) -> None:
    """Have one node a second lose a link, and the one before have it again."""
    chance = random.Random(7)
    end, before = time.monotonic() + STEADY_SECONDS, -1
    while time.monotonic() < end:
        number = chance.randrange(size)
        for each in (before, number):
            if each >= 0:
                stdin = simulators[each // PER_PROCESS].stdin
                assert stdin is not None
                stdin.write(f"flap {each}\n".encode())
                await stdin.drain()
        before = number
        await asyncio.sleep(1.0)


async def _watch(directory: Path, delays: list[float]) -> None:
    """Note how long after it happened each lost link is in a HyperNode of tier 1."""
    seen: set[str] = set()
    async with (
        ServerClient(Server(f"unix:{directory}/api.sock")) as client,
        aclosing(client.watch(KINDS["HyperNode"], fields="spec.tier=1")) as events,
    ):
        async for event in events:
            now = time.monotonic()
            for moment in _lost(event):
                if moment not in seen:
                    seen.add(moment)
                    delays.append(now - float(moment))


def _lost(event: dict[str, Any]) -> list[str]:
    return _LOST.findall(json.dumps(event.get("object", {}).get("status", {})))


def resident_kib(pid: int) -> int:
    """Return what a process has in memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no Rss")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
