"""Containers recreated in place against the bare CRI calls, and against the whole pod made anew."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, ratio
from cri_stubs.cri.v1 import runtime_pb2
from stoker.client import Client
from stoker.objects.containers import RecreateRequest, RecreateStatus, RecreateStrategy, RecreateTarget
from tests.rig import bundled
from tests.rig.node import Node
from tests.rig.pods import SLEEP, BareCri, RigPod, own_pids
from tests.rig.stokerd import Stokerd

Say = Callable[[str], None]
ROUNDS = 20
PODS = 20
GRACE = 2
NAME = "main"


@dataclass
class Bench:
    """What the comparisons share."""

    cri: BareCri
    client: Client


async def run(workdir: Path, runs: int, say: Say) -> list[Figure]:
    """Measure all figures of recreating in place."""
    with Node("bench-recreate", "forky", workdir=workdir) as node:
        stokerd = Stokerd(node, workdir / "stokerd-recreate", settings={"daemon": {"log_level": "info"}})
        await asyncio.to_thread(stokerd.start)
        try:
            async with BareCri(node) as cri, Client(stokerd.socket) as client:
                bench = Bench(cri, client)
                return [
                    await _overhead(bench, say),
                    await _against_pod(bench, say),
                    await _parallel(bench, runs, say),
                ]
        finally:
            await asyncio.to_thread(stokerd.stop)


async def _overhead(bench: Bench, say: Say) -> Figure:
    pod = await bench.cri.run_pod("overhead")
    await bench.cri.run(pod, NAME, config=_config(0))
    ours, bare = [], []
    for number in range(ROUNDS + 2):
        pair = (await _stoker(bench, pod), await _bare(bench, pod))
        if number >= 2:  # the first rounds warm the machine up
            ours.append(pair[0] * 1000)
            bare.append(pair[1] * 1000)
    await bench.cri.remove_pod(pod)
    mine, other = statistics.median(ours), statistics.median(bare)
    say(f"recreate one container: stoker {mine:.1f} ms, bare CRI {other:.1f} ms")
    detail = f"{mine:.1f} to {other:.1f} ms (all: {min(ours):.1f}-{max(ours):.1f} to {min(bare):.1f}-{max(bare):.1f})"
    return Figure(
        "recreate.overhead_ms", round(mine - other, 2), "ms", 10, ROUNDS, "bare stop, create, start", detail=detail
    )


async def _against_pod(bench: Bench, say: Say) -> Figure:
    pod = await bench.cri.run_pod("against")
    await bench.cri.run(pod, NAME, config=_config(0))
    ours, anew = [], []
    for number in range(ROUNDS // 2 + 1):
        in_place = await _stoker(bench, pod)
        started = time.perf_counter()
        await bench.cri.remove_pod(pod)
        pod = await bench.cri.run_pod("against")
        await bench.cri.run(pod, NAME, config=_config(0))
        if number:
            ours.append(in_place)
            anew.append(time.perf_counter() - started)
    await bench.cri.remove_pod(pod)
    say(f"against a new pod: {statistics.median(ours):.3f} s to {statistics.median(anew):.3f} s")
    return ratio("recreate.vs_pod", ours, anew, target=0.6, against="the pod removed and run again")


async def _parallel(bench: Bench, runs: int, say: Say) -> Figure:
    pods = [await bench.cri.run_pod(f"parallel-{number}") for number in range(PODS)]
    await asyncio.gather(*(bench.cri.run(pod, NAME, config=_config(0)) for pod in pods))
    times: dict[str, list[float]] = {"stoker": [], "cri": []}
    for number in range(runs + 1):
        for name in ("stoker", "cri") if number % 2 else ("cri", "stoker"):
            one = _stoker if name == "stoker" else _bare
            started = time.perf_counter()
            await asyncio.gather(*(one(bench, pod) for pod in pods))
            if number:
                times[name].append(time.perf_counter() - started)
        if number:
            say(f"{PODS} pods, run {number} of {runs}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in times.items()))
    for pod in pods:
        await bench.cri.remove_pod(pod)
    return ratio(
        "recreate.parallel",
        times["stoker"],
        times["cri"],
        target=1.15,
        against=f"bare CRI calls for {PODS} pods at once",
    )


def _config(attempt: int) -> runtime_pb2.ContainerConfig:
    return runtime_pb2.ContainerConfig(
        metadata=runtime_pb2.ContainerMetadata(name=NAME, attempt=attempt),
        image=runtime_pb2.ImageSpec(image=bundled.BUSYBOX_REFERENCE),
        command=list(SLEEP),
        log_path=f"{NAME}.log",
        linux=own_pids(),
    )


async def _bare(bench: Bench, pod: RigPod) -> float:
    """Stop, create, start, as somebody who knows the configuration would; and remove, as Stoker does too."""
    old = (await bench.cri.list(pod))[-1]
    started = time.perf_counter()
    await bench.cri.stop(old.id, GRACE)
    await bench.cri.start(await bench.cri.create(pod, NAME, config=_config(old.attempt + 1)))
    took = time.perf_counter() - started
    await bench.cri.remove(old.id)
    return took


async def _stoker(bench: Bench, pod: RigPod) -> float:
    """A request over the local API, until it says that the container runs."""
    request = RecreateRequest(
        pod=pod.id,
        containers=[RecreateTarget(name=NAME)],
        strategy=RecreateStrategy(termination_grace_period_seconds=GRACE),
    )
    started = time.perf_counter()
    status: RecreateStatus = await bench.client.recreate(request)
    if status.phase != "Completed":
        async for event in bench.client.follow_recreate(status.id):
            status = event.recreate
    took = time.perf_counter() - started
    if status.result != "Succeeded":
        raise RuntimeError(f"recreate failed: {[each.message for each in status.containers]}")
    return took
