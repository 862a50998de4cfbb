"""The coordinator's store: durable writes at full load, and how soon a change is with those who watch."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from msgspec.structs import replace

from bench.figures import Figure
from stoker.objects.cluster_nodes import Node, NodeStatus
from stoker.objects.meta import Condition, ObjectMeta
from stoker_coordinator.store.sqlite import SqliteStore

Say = Callable[[str], None]
SIZES = (1_000, 3_000, 10_000)
WRITERS = 200
SECONDS = 3.0
WATCHERS = 20
STEADY_PER_S = 500.0
CHANGES = 2_000


async def run(workdir: Path, runs: int, say: Say) -> list[Figure]:
    """Measure with 1 000, 3 000 and 10 000 nodes, so that growth shows; the figures are those of the last."""
    del runs
    writes, delays = [], []
    for size in SIZES:
        store = SqliteStore(workdir / f"store-{size}")
        await store.open()
        try:
            await _fill(store, size)
            writes.append(await _writes(store, size))
            delays.append(await _watch(store, size))
        finally:
            await store.close()
        say(f"store with {size} nodes: {writes[-1]:.0f} writes/s, watch p99 {delays[-1]:.2f} ms")
    sizes = ", ".join(f"{size}" for size in SIZES)
    return [
        Figure(
            "store.writes_per_s",
            round(writes[-1]),
            "/s",
            4_000,
            1,
            f"{WRITERS} writers of statuses, each durable (fsync) before it is answered",
            better="higher",
            detail=f"with {sizes} nodes: {', '.join(f'{each:.0f}' for each in writes)}",
        ),
        Figure(
            "store.watch_p99_ms",
            round(delays[-1], 2),
            "ms",
            50,
            CHANGES,
            f"from a write's call to the last of {WATCHERS} watches, {STEADY_PER_S:g} writes/s",
            detail=f"with {sizes} nodes: {', '.join(f'{each:.2f}' for each in delays)}",
        ),
    ]


async def _fill(store: SqliteStore, size: int) -> None:
    for start in range(0, size, 500):
        await asyncio.gather(*[store.create(_node(number)) for number in range(start, min(size, start + 500))])


def _node(number: int) -> Node:
    return Node(
        metadata=ObjectMeta(name=f"node-{number:05}", labels={"zone": f"z{number % 8}", "rack": f"r{number // 16}"}),
        status=_status(0),
    )


def _status(images: int) -> NodeStatus:
    return NodeStatus(
        conditions=tuple(Condition(type=kind, status="True", reason="AllWell") for kind in ("Ready", "RuntimeReady")),
        stokerd_version="0.1.0",
        runtime_name="containerd",
        runtime_version="2.1.4",
        addresses=("10.0.0.1", "10.1.0.1"),
        connected=True,
        images=images,
    )


async def _writes(store: SqliteStore, size: int) -> float:
    done, end = 0, time.perf_counter() + SECONDS

    async def write(worker: int) -> None:
        nonlocal done
        number = worker
        while time.perf_counter() < end:
            number = (number + WRITERS) % size
            await _change(store, number, done)
            done += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for worker in range(WRITERS):
            group.create_task(write(worker))
    return done / (time.perf_counter() - began)


async def _change(store: SqliteStore, number: int, images: int) -> Node:
    name = f"node-{number:05}"
    return await store.change(
        Node, name, change=lambda node: replace(node, status=replace(node.status, images=images + 1)), status=True
    )


async def _watch(store: SqliteStore, size: int) -> float:
    """Return the 99th percentile of the milliseconds until the last watcher has a change."""
    began: dict[str, float] = {}
    samples: list[float] = []
    first = 10**9

    async def watch(last: bool) -> None:
        seen = 0
        async with aclosing(store.watch([Node], since=store.revision)) as events:
            async for event in events:
                assert event.object is not None
                seen += 1
                if last:
                    samples.append((time.perf_counter() - began[str(event.object.status.images)]) * 1000)
                if seen == CHANGES:
                    return

    async with asyncio.TaskGroup() as group:
        for number in range(WATCHERS):
            group.create_task(watch(last=number == WATCHERS - 1))
        await asyncio.sleep(0)
        start = time.perf_counter()
        for number in range(CHANGES):
            await asyncio.sleep(max(0.0, start + number / STEADY_PER_S - time.perf_counter()))
            began[str(first + number + 1)] = time.perf_counter()
            group.create_task(_change(store, number % size, first + number))
    return statistics.quantiles(samples, n=100)[98]
