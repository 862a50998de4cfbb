"""Checkpoints, clones and commits against containerd's CRI, podman and CRIU alone: the same program, in turns.

A freeze is the longest time for which the program did not tick; a clone is there when it ticks again.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from bench import pushing, ticking
from bench.checkpoint_peers import Peers, Running, peers
from bench.figures import Figure, ratio
from bench.ticking import now
from stokerd.checkpoints.manifest import Manifest
from tests.rig.images import Image
from tests.rig.node import Node
from tests.rig.push import Pushed

Say = Callable[[str], None]
Measure = Callable[[], Awaitable[float]]
Times = dict[str, list[float]]
MIB = 1 << 20
LARGE_MIB = 1024
CLONES = 20
BIG_SIZE, BIG_FILES, BIG_LAYERS = 400 * MIB, 6000, 4
CHANGED = 10 * MIB
SMALL_NAME, BIG_NAME = "stoker.test/tick:1", "stoker.test/big:1"


async def run(workdir: Path, runs: int, say: Say) -> list[Figure]:
    """Measure all figures of checkpoints, clones and commits."""
    say("podman, nodes and images")
    async with peers(workdir) as here:
        image = await _provide(here, ticking.image, SMALL_NAME)
        figures = await _small(here, image, 2 * runs, say)
        figures += await _commits(here, "small", image, SMALL_NAME, 2 * runs, say)
        figures += await _large(here, image, runs, say)
        image = await _provide(here, lambda: ticking.big_image(BIG_SIZE, BIG_FILES, BIG_LAYERS), BIG_NAME)
        figures += await _commits(here, "10mib_on_big", image, BIG_NAME, runs, say)
        figures += await pushing.run(here, await here.stoker.run(image), runs, say)
    return figures


async def _provide(here: Peers, build: Callable[[], Image], name: str) -> Pushed:
    """Bring an image to all."""
    image = await asyncio.to_thread(build)
    pushed = await asyncio.to_thread(here.registry.push, f"bench/{name.partition('/')[2].partition(':')[0]}", image)
    await asyncio.gather(here.stoker.pull(pushed), here.cri.pull(pushed))
    await asyncio.to_thread(here.podman.node.load, name, image)
    return pushed


async def _turns(measures: Mapping[str, Measure], runs: int, what: str, say: Say, *, settle: bool = False) -> Times:
    """Measure all in turns, in another order each time; a first round warms the machine up."""
    times: Times = {name: [] for name in measures}
    order = list(measures)
    for number in range(runs + 1):
        turn = number % len(order)
        for name in order[turn:] + order[:turn]:
            if settle:
                await asyncio.to_thread(os.sync)
            took = await measures[name]()
            if number:
                times[name].append(took)
    say(f"{what}: " + ", ".join(f"{name} {statistics.median(each):.1f} ms" for name, each in times.items()))
    return times


def _milliseconds(name: str, samples: list[float], target: float, against: str) -> Figure:
    detail = f"all: {min(samples):.1f}-{max(samples):.1f}"
    return Figure(name, round(statistics.median(samples), 1), "ms", target, len(samples), against, detail=detail)


async def _timed(work: Awaitable[object]) -> float:
    began = now()
    await work
    return (now() - began) * 1000


# -------------------------------------------------------------------------------------------------- small


async def _small(here: Peers, image: Pushed, runs: int, say: Say) -> list[Figure]:
    ours, cri, podman = await _everywhere(here, image, SMALL_NAME)
    frozen = await _turns(
        {
            "stoker": lambda: here.stoker.freeze(ours),
            "cri": lambda: here.cri.freeze(cri),
            "podman": lambda: here.podman.freeze(podman),
        },
        runs,
        "small, frozen",
        say,
    )
    figures = [
        _milliseconds("checkpoint.freeze_ms.small", frozen["stoker"], 50, "the longest time without a tick"),
        _against("checkpoint.freeze.small.vs_cri", frozen, "cri", 0.4, "CRI CheckpointContainer"),
        _against("checkpoint.freeze.small.vs_podman", frozen, "podman", 0.25, "podman container checkpoint"),
    ]
    kept = await here.stoker.checkpoints.create(ours.id)
    archives = {name: node.artifacts_dir / "small.tar" for name, node in _others(here)}
    await here.cri.checkpoint(cri, archives["cri"])
    await here.podman.checkpoint(podman, archives["podman"])
    cloned = await _turns(
        {
            "stoker": lambda: here.stoker.clone(kept),
            "stoker, network made before": lambda: here.stoker.clone(kept, connected=True),
            "cri": lambda: here.cri.restore(archives["cri"]),
            "podman": lambda: here.podman.clone(archives["podman"]),
        },
        runs,
        "small, cloned",
        say,
    )
    ready = {**cloned, "stoker": cloned["stoker, network made before"]}
    figures.append(_against("clone.small.vs_cri_restore", ready, "cri", 0.35, "CRI's restore into a ready sandbox"))
    figures.append(_against("clone.small.vs_podman", cloned, "podman", 0.2, "podman container restore"))
    figures.append(await _parallel(here, kept, max(runs // 2, 2), say))
    await here.stoker.checkpoints.remove(kept.id)
    return figures


def _against(name: str, times: Times, peer: str, target: float, against: str) -> Figure:
    return ratio(name, times["stoker"], times[peer], target=target, against=against, unit="ms")


async def _parallel(here: Peers, kept: Manifest, runs: int, say: Say) -> Figure:
    """Twenty clones at once, until all run, against one after another."""
    checkpoints = here.stoker.checkpoints

    async def at_once() -> float:
        began = now()
        clones = await asyncio.gather(*(checkpoints.clone(kept.id) for _ in range(CLONES)))
        took = (now() - began) * 1000
        await asyncio.gather(*(checkpoints.remove_clone(clone.id) for clone in clones))
        return took

    async def in_turn() -> float:
        began = now()
        clones = [await checkpoints.clone(kept.id) for _ in range(CLONES)]
        took = (now() - began) * 1000
        await asyncio.gather(*(checkpoints.remove_clone(clone.id) for clone in clones))
        return took

    times = await _turns({"stoker": at_once, "in turn": in_turn}, runs, f"{CLONES} clones", say)
    return _against("clone.20_parallel.vs_sequential", times, "in turn", 0.75, f"{CLONES} clones one after another")


# -------------------------------------------------------------------------------------------------- 1 GiB


async def _large(here: Peers, image: Pushed, runs: int, say: Say) -> list[Figure]:
    ours, cri = await here.stoker.run(image, LARGE_MIB), await here.cri.run(image, LARGE_MIB)
    bare = await here.cri.run_bare(LARGE_MIB)
    frozen = await _turns(
        {
            "stoker": lambda: here.stoker.freeze(ours),
            "cri": lambda: here.cri.freeze(cri),
            "criu": lambda: here.cri.freeze_bare(bare),
        },
        runs,
        "1 GiB, frozen",
        say,
        settle=True,
    )
    kept = await here.stoker.checkpoints.create(ours.id)
    cloned = await _turns(
        {
            "stoker": lambda: here.stoker.clone_cold(kept, "lazy"),
            "eager": lambda: here.stoker.clone_cold(kept, "eager"),
        },
        runs,
        "1 GiB, cloned",
        say,
    )
    await here.stoker.checkpoints.remove(kept.id)
    for node, running in ((here.stoker, ours), (here.cri, cri)):
        await node.bare.stop(running.id, 0)
    await here.cri.end_bare(bare)
    lazy = "from the request to the first tick; network there before, memory on the disk"
    return [
        _against("checkpoint.freeze.1gib.vs_cri", frozen, "cri", 0.3, "CRI CheckpointContainer"),
        _against("checkpoint.freeze.1gib.vs_bare_criu", frozen, "criu", 1.1, "criu dump of the program alone"),
        _milliseconds("clone.1gib.lazy.first_progress_ms", cloned["stoker"], 150, lazy),
        _against("clone.1gib.lazy.vs_eager", cloned, "eager", 0.05, "the same with all memory first"),
    ]


# -------------------------------------------------------------------------------------------------- commits


async def _commits(here: Peers, what: str, image: Pushed, name: str, runs: int, say: Say) -> list[Figure]:
    """Commit a container; on the big image one that has written so much."""
    large = what != "small"
    ours, cri, podman = await _everywhere(here, image, name)
    if large:
        content = os.urandom(CHANGED)
        for each in (ours, cri, podman):
            (each.directory / "changed").write_bytes(content)
    measures: dict[str, Measure] = {
        "stoker": lambda: _timed(here.stoker.commit(ours.id, "stoker.test/committed:1")),
        "podman": lambda: _timed(here.podman.commit(podman.id, "stoker.test/committed:1")),
    }
    if large:
        measures["diff service"] = lambda: _timed(here.cri.diff(cri.id))
    times = await _turns(measures, runs, f"commit {what}", say, settle=True)
    for node, running in ((here.stoker, ours), (here.cri, cri)):
        await node.bare.stop(running.id, 0)
    target = 0.6
    figures = [_against(f"commit.{what}.vs_podman", times, "podman", target, "podman commit")]
    if large:
        against = "containerd's diff service, which makes the layer alone"
        figures.append(_against(f"commit.{what}.vs_diff_service", times, "diff service", target, against))
    return figures


# -------------------------------------------------------------------------------------------------- shared


async def _everywhere(here: Peers, image: Pushed, name: str) -> tuple[Running, Running, Running]:
    return await here.stoker.run(image), await here.cri.run(image), await here.podman.run(name)


def _others(here: Peers) -> tuple[tuple[str, Node], ...]:
    return ("cri", here.cri.node), ("podman", here.podman.node)
