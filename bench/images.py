"""Warm images against bare CRI and ctr: the same images, the same node, in turns."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, ratio
from bench.peers import BareCri, Stoker, clear, ctr_pull
from stoker.client import Client
from stoker.objects.images import WarmRequest
from tests.rig.images import build, family, random_image
from tests.rig.layers import LayerSpec
from tests.rig.node import Node, NodeOptions
from tests.rig.registry import Registry
from tests.rig.stokerd import Stokerd

MIB = 1 << 20
Say = Callable[[str], None]
BIG_SIZE, BIG_FILES, BIG_LAYERS = 400 * MIB, 6000, 4
LIST_LENGTH = 10


@dataclass
class Bench:
    """What the comparisons share."""

    node: Node
    registry: Registry
    stokerd: Stokerd
    client: Client
    cri: BareCri


async def run(workdir: Path, runs: int, say: Say) -> list[Figure]:
    """Measure all figures of warm images and of the daemon that warms them."""
    imports = await _imports(say)  # first: the disk has work to do for a while after the others
    with Registry("bench-registry", workdir=workdir) as registry:
        node = Node("bench-node", "forky", workdir=workdir, options=NodeOptions(network="host"))
        with node:
            node.hosts(registry.address)
            stokerd = Stokerd(node, workdir / "stokerd", settings={"images": DEFAULTS, "daemon": {"log_level": "info"}})
            await asyncio.to_thread(stokerd.start)
            cri = BareCri(node)
            try:
                async with Client(stokerd.socket) as client:
                    bench = Bench(node, registry, stokerd, client, cri)
                    figures = await _single(bench, runs, say)
                    figures += await _list(bench, runs, say)
                    figures.append(await _present(bench, say))
                    figures += await _idle(bench, say)
            finally:
                await cri.close()
                await asyncio.to_thread(stokerd.stop)
    return [*figures, imports]


DEFAULTS = {
    "backoff_initial": "1s",
    "backoff_max": "60s",
    "poll_interval": "100ms",
    "disk_reserve": "1GiB",
    "disk_floor": "512MiB",
    "io_pressure_limit": 80,
}
"""The daemon's own defaults: what is measured is what people run."""


async def _single(bench: Bench, runs: int, say: Say) -> list[Figure]:
    say(f"building one image of {BIG_SIZE // MIB} MiB, {BIG_FILES} files, {BIG_LAYERS} layers")
    spec = random_image(layers=BIG_LAYERS, size=BIG_SIZE, files=BIG_FILES, compressible=0.5, seed="bench big")
    pushed = bench.registry.push("bench/big", await asyncio.to_thread(build, spec))
    times: dict[str, list[float]] = {"stoker": [], "cri": [], "ctr": []}
    stoker = Stoker(bench.client)
    for number in range(runs + 1):
        order = list(times)
        for name in order[number % 3 :] + order[: number % 3]:
            await clear(bench.node, [bench.registry.address])
            if name == "stoker":
                took = await stoker.warm(pushed.reference)
            elif name == "cri":
                took = await bench.cri.pull(pushed.reference)
            else:
                took = await ctr_pull(bench.node, pushed.reference)
            if number:  # the first round warms the machine up
                times[name].append(took)
        if number:
            say(f"single image, run {number} of {runs}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in times.items()))
    await clear(bench.node, [bench.registry.address])
    return [
        ratio("images.single.vs_cri", times["stoker"], times["cri"], target=1.05, against="bare CRI PullImage"),
        ratio("images.single.vs_ctr", times["stoker"], times["ctr"], target=0.95, against="ctr images pull"),
    ]


async def _list(bench: Bench, runs: int, say: Say) -> list[Figure]:
    say(f"building {LIST_LENGTH} images on shared bases")
    bases = [
        tuple(LayerSpec(size=24 * MIB, files=300, seed=f"bench base {base}/{n}", compressible=0.5) for n in range(2))
        for base in range(2)
    ]
    references = []
    for number, base in enumerate(bases):
        specs = family(LIST_LENGTH // 2, base=base, own_size=12 * MIB, seed=f"bench own {number}")
        for position, spec in enumerate(specs):
            image = await asyncio.to_thread(build, spec)
            references.append(bench.registry.push(f"bench/list{number}-{position}", image).reference)
    times: dict[str, list[float]] = {"stoker": [], "cri": []}
    stoker = Stoker(bench.client)
    for number in range(runs + 1):
        for name in ("stoker", "cri") if number % 2 else ("cri", "stoker"):
            await clear(bench.node, [bench.registry.address])
            took = await (stoker.warm(*references) if name == "stoker" else bench.cri.pull_all(references))
            if number:
                times[name].append(took)
        if number:
            say(f"list, run {number} of {runs}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in times.items()))
    return [
        ratio(
            "images.list.vs_sequential",
            times["stoker"],
            times["cri"],
            target=0.75,
            against="bare CRI pulls one after another",
        )
    ]


async def _present(bench: Bench, say: Say, runs: int = 50) -> Figure:
    """The whole round trip: request, check, answer."""
    pushed = bench.registry.push("bench/present", build(random_image(layers=4, size=MIB, seed="bench present")))
    stoker = Stoker(bench.client)
    await stoker.warm(pushed.reference)
    samples = []
    for _ in range(runs):
        started = time.perf_counter()
        job = await bench.client.warm(WarmRequest(images=[pushed.reference]))
        samples.append((time.perf_counter() - started) * 1000)
        assert job.state == "Succeeded"
    value = round(statistics.median(samples), 2)
    say(f"present image: {value} ms")
    return Figure("images.present_check_ms", value, "ms", 5, runs, "a warm request for an image that is there")


async def _idle(bench: Bench, say: Say, seconds: float = 20.0) -> list[Figure]:
    """Memory and CPU of a daemon that has worked and now rests."""
    await clear(bench.node, [bench.registry.address])
    await asyncio.to_thread(bench.stokerd.stop)
    await asyncio.to_thread(_forget_libraries)
    await asyncio.to_thread(bench.stokerd.start)
    pushed = bench.registry.push("bench/idle", build(random_image(layers=2, size=MIB, seed="bench idle")))
    await Stoker(bench.client).warm(pushed.reference)
    await asyncio.sleep(3)
    before, started = _cpu_seconds(bench.stokerd.pid), time.perf_counter()
    await asyncio.sleep(seconds)
    percent = 100 * (_cpu_seconds(bench.stokerd.pid) - before) / (time.perf_counter() - started)
    resident = _resident_mib(bench.stokerd.pid)
    say(f"idle stokerd: {resident:.1f} MiB, {percent:.2f} % of a core")
    return [
        Figure("stokerd.idle_rss_mib", round(resident, 1), "MiB", 64, 1, "VmRSS, connected, after a first job"),
        Figure("stokerd.idle_cpu_percent", round(percent, 3), "%", 0.5, 1, f"CPU time over {seconds:g} s"),
    ]


async def _imports(say: Say, runs: int = 9) -> Figure:
    samples = []
    code = "import time; t = time.perf_counter(); import stokerd.main; print((time.perf_counter() - t) * 1000)"
    for _ in range(runs + 1):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        samples.append(float(output))
    value = round(statistics.median(samples[1:]), 1)
    say(f"import of stokerd: {value} ms")
    return Figure("stokerd.import_ms", value, "ms", 400, runs, "import of stokerd.main in a new process")


def _forget_libraries() -> None:
    """Drop the libraries from the page cache, so that they are read from the disk as on a node that has booted.

    Files that pip has just written lie in large folios; of those the kernel maps up to 6 MiB that nobody touches.
    """
    for path in (Path(sys.prefix) / "lib").rglob("*.so*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")
