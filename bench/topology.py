"""Topology: a whole report, what it costs while nothing happens, a fabric's dump, and a real link that goes down."""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import Figure
from stoker.client import Client
from stoker.fabrics import dumps
from stoker.objects.topology import TopologyEvent
from stokerd.settings import TopologySettings
from stokerd.topology import nvml_probe
from stokerd.topology.knowledge import Knowledge, learn, note_health, note_report
from stokerd.topology.sources import Sources
from tests.rig.hardware import texts
from tests.rig.hardware.fabrics import two_tiers
from tests.rig.hardware.machines import at_root, cpu_node, h100
from tests.rig.hardware.tree import lay_out
from tests.rig.node import Node
from tests.rig.nvml import FakeNvml
from tests.rig.processes import run as command
from tests.rig.stokerd import Stokerd

Say = Callable[[str], None]
REPORTS = 30
STEADY_SECONDS = 60.0
CABLES = 6
PROBES = 5
CALM = 1.2
SWITCHES, ADAPTERS = 400, 2300


async def run(workdir: Path, runs: int, say: Say) -> list[Figure]:
    """Measure all figures of the topology."""
    settings = _machine(workdir / "machine")
    figures = [await _reports(settings, say), _dump(runs, say)]
    with Node("bench-topology", "forky", workdir=workdir) as node:
        figures.append(await _steady(node, workdir, settings, say))
        figures.append(await _link_events(node, workdir, say))
    return figures


def _machine(root: Path) -> dict[str, str]:
    """Lay out a node of 8 GPUs and 12 NICs, and what the tools print on it; return the settings."""
    machine = h100()
    lay_out(machine, root)
    outputs = {
        "nvidia_file": texts.nvidia_smi(machine),
        "nvidia_matrix_file": texts.topo_m(machine).encode(),
        "lldp_file": texts.lldpcli(machine).encode(),
        "fabric_file": texts.ibnetdiscover(machine).encode(),
    }
    for name, data in outputs.items():
        (root / name).write_bytes(data)
    return {"root": str(root), **{name: str(root / name) for name in outputs}}


async def _reports(settings: dict[str, str], say: Say) -> Figure:
    """Everything read and parsed anew, and the report made of it."""
    fresh = replace(TopologySettings(), **{**settings, "root": Path(settings["root"])})  # type: ignore[arg-type]
    samples = []
    for number in range(REPORTS + 3):
        sources, known = Sources(fresh, time.monotonic), Knowledge("node")
        began = time.perf_counter()
        for name in sources.names:
            known = learn(known, name, await sources.collect(name))
        known = note_report(note_health(known, 0.0), datetime.now(UTC))
        took = (time.perf_counter() - began) * 1000
        assert known.report is not None
        assert (len(known.report.gpus), len(known.report.nics)) == (8, 12)
        if number >= 3:
            samples.append(took)
    return _figure("topology.full_report_ms", samples, 50, "8 GPUs, 12 NICs, all sources read anew", say)


def _dump(runs: int, say: Say) -> Figure:
    text = two_tiers(SWITCHES, ADAPTERS)
    samples = []
    for _ in range(max(runs, 3)):
        began = time.perf_counter()
        fabric = dumps.parse(text)
        samples.append((time.perf_counter() - began) * 1000)
        assert (len(fabric.of_kind("switch")), len(fabric.of_kind("adapter"))) == (SWITCHES, ADAPTERS)
    return _figure("ibnetdiscover.parse_ms", samples, 300, f"{SWITCHES} switches, {ADAPTERS} adapters", say)


async def _steady(node: Node, workdir: Path, settings: dict[str, str], say: Say) -> Figure:
    """What the topology adds to an idle stokerd at the default intervals: the same process before and after."""
    stokerd = Stokerd(
        node, workdir / "stokerd-steady", settings={"topology": settings, "daemon": {"log_level": "info"}}
    )
    await asyncio.to_thread(stokerd.start)
    try:
        async with Client(stokerd.socket) as client:
            await asyncio.sleep(3)
            without = await _cpu_percent(stokerd.pid)
            resident = _resident_mib(stokerd.pid)
            await client.topology()
            await asyncio.sleep(3)
            with_it = await _cpu_percent(stokerd.pid)
            more = _resident_mib(stokerd.pid) - resident
    finally:
        await asyncio.to_thread(stokerd.stop)
    probe = 100 * _probe_seconds(workdir) / TopologySettings().gpu_interval
    percent = with_it - without + probe
    say(
        f"steady topology: {percent:.3f} % of a core ({with_it:.3f} to {without:.3f} without it, "
        f"{probe:.3f} for NVML), {more:.1f} MiB"
    )
    return Figure(
        "topology.steady_cpu_percent",
        round(percent, 3),
        "%",
        0.3,
        1,
        f"CPU time over {STEADY_SECONDS:g} s, above stokerd without it; NVML's process at its interval",
        detail=f"{with_it:.3f} to {without:.3f} %, NVML {probe:.3f} %; {more:.1f} MiB more",
    )


def _probe_seconds(workdir: Path) -> float:
    """Return the CPU time of asking NVIDIA's library once, of eight GPUs."""
    fake = FakeNvml(h100(), workdir / "driver")
    before = _children()
    for _ in range(PROBES):
        command([sys.executable, "-I", nvml_probe.__file__, str(fake.path)])
    return (_children() - before) / PROBES


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _link_events(node: Node, workdir: Path, say: Say) -> Figure:
    """From the command that takes a real carrier away (or gives it back) to the change at a client."""
    root = workdir / "real-links"
    cables = [(f"vb{os.getpid() % 10**6}a{number}", f"vb{os.getpid() % 10**6}b{number}") for number in range(CABLES)]
    _lay_out_cables(root, [ours for ours, _ in cables])
    stokerd = Stokerd(node, workdir / "stokerd-link", settings={"topology": {"root": str(root)}})
    samples = []
    try:
        for ours, theirs in cables:
            command(["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs])
            command(["ip", "link", "set", ours, "up"])
            command(["ip", "link", "set", theirs, "up"])
        await asyncio.to_thread(stokerd.start)
        async with Client(stokerd.socket) as client, aclosing(client.follow_topology()) as events:
            await anext(events)
            # Each cable twice: from the third time on it would be flapping, which is one change and not many.
            for state in ("down", "up") * 2:
                for ours, theirs in cables:
                    await asyncio.sleep(CALM)
                    began = time.perf_counter()
                    await asyncio.to_thread(command, ["ip", "link", "set", theirs, state])
                    await _told(events, f"nic {ours} port 1")
                    samples.append((time.perf_counter() - began) * 1000)
    finally:
        await asyncio.to_thread(stokerd.stop)
        for ours, _ in cables:
            command(["ip", "link", "del", ours])
    return _figure("topology.link_event_to_report_ms", samples, 200, "a real carrier, seen by a client's events", say)


def _lay_out_cables(root: Path, names: list[str]) -> None:
    """Lay out a machine that has a NIC for each of the network devices; their carriers are the real ones."""
    machine = cpu_node()
    nics = [
        replace(machine.nics[1], netdev=name, path=at_root(0x20 + 0x10 * number), number=1 + number)
        for number, name in enumerate(names)
    ]
    lay_out(replace(machine, nics=(machine.nics[0], *nics)), root)
    for name in names:
        for file in ("carrier", "operstate"):
            path = root / "sys/class/net" / name / file
            path.unlink()
            path.symlink_to(f"/sys/class/net/{name}/{file}")


async def _told(events: AsyncIterator[TopologyEvent], subject: str) -> None:
    async for event in events:
        if any(change.subject == subject for change in event.changes):
            return


def _figure(name: str, samples: list[float], target: float, against: str, say: Say) -> Figure:
    value = statistics.median(samples)
    say(f"{name}: {value:.1f} (all: {min(samples):.1f}-{max(samples):.1f})")
    detail = f"all: {min(samples):.1f}-{max(samples):.1f}"
    return Figure(name, round(value, 2), "ms", target, len(samples), against, detail=detail)


async def _cpu_percent(pid: int) -> float:
    before, began = _cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(STEADY_SECONDS)
    return 100 * (_cpu_seconds(pid) - before) / (time.perf_counter() - began)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")
