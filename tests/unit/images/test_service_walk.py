"""Long random lives of a node: requests, cancels, faults, crashes of containerd and of stokerd, and time.

Whatever happened, once it is over and nothing fails any more: every job ends, what was promised is there, and nothing
is left of what was not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stoker.objects.images import ItemStatus, JobStatus, KeepRequest, PinRequest
from stokerd.errors import RuntimeFailure, RuntimeTimeout, RuntimeUnavailable, StokerError
from stokerd.images.pins import MARK
from stokerd.runtime.memory import MemoryOptions
from stokerd.runtime.memory_artifacts import Layer
from tests.unit.images.node import MIB, Node, full
from tests.unit.images.test_service_crashes import check_counts, check_history
from tests.unit.images.virtual import run_virtual

STEPS = 200
GOOD = [f"good:{number}" for number in range(5)]
FOREIGN, MISSING, LOCKED = "foreign:v1", "missing:v1", "private.test/locked:v1"
CALLS = (
    "images.Get",
    "images.List",
    "images.Update",
    "images.Delete",
    "cri.ImageStatus",
    "content.Info",
    "content.Read",
    "content.ListStatuses",
    "snapshots.Stat",
    "leases.Create",
    "leases.List",
    "leases.ListResources",
    "leases.Delete",
)


@dataclass
class Walk:
    """One life. ``removed`` is when each image was last taken away by somebody else, by the clock of the epoch."""

    node: Node
    chance: random.Random
    kills: int = 0
    moved: int = 0
    removed: dict[str, float] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    calls: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    # ---------------------------------------------------------------------------------------- what is done

    def some(self) -> list[str]:
        pool = [*GOOD, *GOOD, FOREIGN, MISSING, LOCKED]
        return self.chance.sample(sorted(set(pool)), self.chance.randint(1, 3))

    def call(self, work: Awaitable[Any]) -> None:
        """A client asks, and does not wait for the answer."""

        async def answered() -> None:
            with contextlib.suppress(StokerError):
                await work

        task = asyncio.create_task(answered())
        self.calls[task] = None
        task.add_done_callback(self.calls.pop)

    async def warm(self) -> None:
        chance = self.chance
        self.call(
            self.node.warm(
                *self.some(),
                policy=chance.choice(["IfNotPresent", "IfNotPresent", "Always"]),
                priority=chance.randint(-3, 3),
                attempts=chance.choice([None, 1, 2, 5]),
                timeout_seconds=chance.choice([None, None, 3.0, 30.0]),
                pin_seconds=chance.choice([None, None, 0, 20.0]),
            )
        )

    async def cancel(self) -> None:
        jobs = self.node.service.jobs()
        if jobs:
            self.call(self.node.service.cancel(self.chance.choice(jobs).id))

    async def registry_fails(self) -> None:
        name = full(self.chance.choice(GOOD))
        remote, times = self.node.runtime.remote, self.chance.randint(1, 3)
        match self.chance.randint(0, 4):
            case 0:
                remote.answer(name, self.chance.choice([429, 503, 404, 401]), times=times)
            case 1:
                remote.fail(name, "layer:0", "connection reset by peer", after=MIB, times=times)
            case 2:
                remote.fail(name, "unpack:1", "failed to extract layer: odd", times=times)
            case 3:
                remote.fail(name, "record", "context canceled", times=times)
            case _:
                remote.fail(name, "layer:1", "unexpected commit digest", times=times)

    async def registry_hangs(self) -> None:
        self.node.runtime.remote.hold(
            full(self.chance.choice(GOOD)), self.chance.choice(["resolve", "layer:0", "unpack:0", "record"]), times=1
        )

    async def call_fails(self) -> None:
        error = self.chance.choice([RuntimeTimeout("slow"), RuntimeUnavailable("away"), RuntimeFailure("odd")])
        self.node.runtime.fail(self.chance.choice(CALLS), error, times=self.chance.randint(1, 2))

    async def containerd_crashes(self) -> None:
        self.node.runtime.crash()

    async def containerd_starts(self) -> None:
        self.node.runtime.restart()

    async def kill(self) -> None:
        self.kills += 1
        await self.node.kill()
        await self.hang_up()
        await self.node.start()

    async def stop(self) -> None:
        await self.node.stop()
        await self.hang_up()
        await self.node.start()

    async def hang_up(self) -> None:
        for task in self.calls:
            task.cancel()
        if self.calls:
            await asyncio.wait(self.calls)

    async def journal_fills(self) -> None:
        self.node.journal_writable(False)

    async def journal_has_room(self) -> None:
        self.node.journal_writable(True)

    async def disk_unreadable(self) -> None:
        self.node.disk_error = OSError("gone") if self.node.disk_error is None else None

    async def pressure(self) -> None:
        self.node.pressure = self.chance.choice([None, 10.0, 95.0])

    async def tag_moves(self) -> None:
        self.moved += 1
        put(self.node, self.chance.choice(GOOD), self.moved)

    async def image_removed(self) -> None:
        name = self.chance.choice(GOOD)
        with contextlib.suppress(StokerError):
            await self.node.runtime.cri.remove(full(name))
            self.removed[full(name)] = self.node.clock.time()

    async def keep(self) -> None:
        name = self.chance.choice(GOOD)
        self.call(self.node.service.keep(KeepRequest(image=full(name))))

    async def unkeep(self) -> None:
        self.call(self.node.service.unkeep(full(self.chance.choice(GOOD))))

    async def pin(self) -> None:
        self.call(self.node.service.pin(PinRequest(image=full(self.chance.choice(GOOD)))))

    async def unpin(self) -> None:
        self.call(self.node.service.unpin(full(self.chance.choice(GOOD))))

    async def wait(self) -> None:
        await asyncio.sleep(self.chance.choice([0.0, 0.01, 0.3, 1.0, 7.0, 40.0]))

    async def turn(self) -> None:
        for _ in range(self.chance.randint(1, 30)):
            await asyncio.sleep(0)

    async def step(self) -> None:
        often: list[Callable[[], Awaitable[None]]] = [self.warm, self.cancel, self.wait, self.turn, self.turn]
        seldom: list[Callable[[], Awaitable[None]]] = [
            self.registry_fails,
            self.registry_hangs,
            self.call_fails,
            self.containerd_crashes,
            self.containerd_starts,
            self.containerd_starts,
            self.kill,
            self.stop,
            self.journal_fills,
            self.journal_has_room,
            self.journal_has_room,
            self.disk_unreadable,
            self.pressure,
            self.tag_moves,
            self.image_removed,
            self.keep,
            self.unkeep,
            self.pin,
            self.unpin,
        ]
        act = self.chance.choice(often if self.chance.random() < 0.6 else seldom)
        self.said.append(getattr(act, "__name__", ""))
        await act()
        assert self.node.alive

    # ---------------------------------------------------------------------------------------- how it ends

    async def heal(self) -> None:
        """From here on nothing fails."""
        node = self.node
        node.journal_writable(True)
        node.disk_error, node.pressure = None, None
        node.runtime.clear_faults()
        if not node.runtime.ready:
            node.runtime.restart()

    async def check(self) -> None:
        node = self.node
        if self.calls:
            await asyncio.wait(self.calls)
        jobs = [await node.ended(job.id) for job in node.service.jobs()]
        await asyncio.sleep(2 * node.settings.keep_backoff_max + 60)
        await node.quiet()
        jobs = [node.service.job(job.id) for job in node.service.jobs()]
        node.check()
        history = await node.service.history(limit=10_000)
        for job in jobs:
            check_counts(job)
            check_history(job, history, lost=self.kills)
        self.check_presence(jobs)
        await self.check_pins()

    def check_presence(self, jobs: list[JobStatus]) -> None:
        for name in map(full, (*GOOD, FOREIGN, MISSING, LOCKED)):
            items = [item for job in jobs for item in job.items if item.reference == name]
            since = self.removed.get(name, 0.0)
            # An image may be removed between the look at it and the word that it is there.
            promised = any(item.phase == "Succeeded" and _end(item) > since + 0.1 for item in items)
            if promised or name in self.node.service._tender.kept:
                assert self.node.present(name), name
            if name in {full(FOREIGN), full(MISSING), full(LOCKED)}:
                assert not self.node.present(name), name

    async def check_pins(self) -> None:
        store, pins = self.node.runtime.store, self.node.service._tender.pinned
        assert {row.reference for row in await self.node.journal.pins()} == set(pins)
        pinned = {store.records[name].target.digest for name in pins if name in store.records}
        for name, record in store.records.items():
            assert (MARK in record.labels) == (record.target.digest in pinned), name
            assert record.pinned == (record.target.digest in pinned), name


def _end(item: ItemStatus) -> float:
    return item.finished_at.timestamp() if item.finished_at is not None else 0.0


def put(node: Node, name: str, version: int) -> None:
    node.image(name, layers=[Layer.of(2 * MIB, "base"), Layer.of(MIB, f"{name} {version}")], seed=f"{name} {version}")


async def live(directory: Path, seed: int) -> None:
    generation = ("1.6", "1.7", "2.1")[seed % 3]
    options = MemoryOptions(generation, "linux/amd64")  # type: ignore[arg-type]
    node = Node(directory, options=options, seed=seed, keep_backoff_max=120, job_ttl=1e6, keep_interval=60)
    node.runtime.remote.rate = node.runtime.remote.unpack_rate = 2.0 * MIB
    node.runtime.remote.chunk = MIB // 2
    for name in GOOD:
        put(node, name, 0)
    node.image(FOREIGN, platforms=["linux/s390x"], index=True)
    node.image(LOCKED)
    node.runtime.remote.require_auth("private.test", "me", "secret")
    walk = Walk(node, random.Random(seed))
    await node.start()
    try:
        for _ in range(STEPS):
            await walk.step()
        await walk.heal()
        await walk.check()
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(walk.said)}")
        raise
    await node.stop()


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_all_ends_well(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(1)
    monkeypatch.setattr("stokerd.images.service.secrets.token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
    run_virtual(live(tmp_path, seed))
