"""Wishes and what stands in their way: rooms that refuse, a journal that fails, a coordinator that changes its mind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from stoker.objects.checkpoints import CheckpointRequest, CommitRequest, Operation
from stoker.objects.containers import RecreateRequest, RecreateStatus
from stoker.objects.images import JobStatus, WarmRequest
from stoker.objects.link import CheckpointWish, Desired, Result, ResultKey, Wish, WishKind
from stokerd.errors import InvalidInput, JournalError, RuntimeUnavailable
from stokerd.journal.database import Database
from stokerd.journal.rows import WishRow
from stokerd.journal.uplink import UplinkJournal
from stokerd.uplink.doers import CommitDoer, RecreateDoer, WarmDoer
from stokerd.uplink.staged import CheckpointDoer
from stokerd.uplink.wishes import Wishes
from tests.unit.uplink.fakes import FakeNode
from tests.unit.uplink.test_service import eventually


class Fickle(UplinkJournal):
    """A journal on a disk that is full for a while."""

    full = False

    async def save(self, rows: Iterable[WishRow]) -> None:
        if self.full:
            raise JournalError("the disk is full")
        await super().save(rows)


class Bench:
    """Wishes on fakes; everything that was said is kept."""

    def __init__(self, journal: Fickle, node: FakeNode) -> None:
        self.node, self.journal, self.said = node, journal, list[Result]()
        self.wishes = Wishes(
            journal,
            {
                "warm": WarmDoer(node.images),
                "recreate": RecreateDoer(node.containers),
                "checkpoint": CheckpointDoer(node.checkpoints),
                "commit": CommitDoer(node.checkpoints),
            },
            lambda: 1.0,
            lambda: self.said.extend(self.wishes.take_results()),
            sleep=self._sleep,
        )
        self.generation = 0

    @staticmethod
    async def _sleep(_: float) -> None:
        await asyncio.sleep(0.005)

    def desire(self, *wishes: Wish, paused: bool = False) -> None:
        self.generation += 1
        self.wishes.take(Desired(generation=self.generation, wishes=list(wishes), paused=paused))

    def last(self, uid: str) -> Result | None:
        return next((each for each in reversed(self.said) if each.uid == uid), None)

    async def phase(self, uid: str, phase: str) -> Result:
        await eventually(lambda: (found := self.last(uid)) is not None and found.phase == phase)
        found = self.last(uid)
        assert found is not None
        return found


@asynccontextmanager
async def bench(directory: Path, node: FakeNode | None = None) -> AsyncIterator[Bench]:
    database = Database(directory)
    await database.open()
    made = Bench(Fickle(database), node or FakeNode())
    await made.wishes.load()
    run = asyncio.create_task(made.wishes.run())
    try:
        yield made
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        await database.close()


def wish(uid: str, kind: WishKind | str, spec: Any, generation: int = 1) -> Wish:
    return Wish(uid=uid, generation=generation, kind=kind, spec=msgspec.Raw(msgspec.msgpack.encode(spec)))


WARM = wish("u1", "warm", WarmRequest(images=["a"]))


async def test_a_room_that_cannot_now_is_asked_again_and_one_that_will_not_is_believed(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.node.images.refuses = RuntimeUnavailable("containerd is away")
        made.desire(WARM)
        waiting = await made.phase("u1", "Pending")
        assert waiting.reason == "RuntimeUnavailable"
        made.node.images.refuses = InvalidInput("no reference", hint="write it otherwise")
        over = await made.phase("u1", "Failed")
        assert (over.reason, over.message, over.hint) == ("InvalidInput", "no reference", "write it otherwise")
        # It has failed, and is not tried again by being said again.
        made.node.images.refuses = None
        made.desire(WARM)
        await asyncio.sleep(0.05)
        assert made.node.images.requests == []


async def test_a_full_disk_holds_wishes_up_and_loses_none(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.journal.full = True
        made.desire(WARM)
        await asyncio.sleep(0.05)
        assert made.node.images.requests == []  # nothing is begun that is not written down
        made.journal.full = False
        await eventually(lambda: made.node.images.requests)
        made.journal.full = True
        made.node.images.end("warm-1", "Succeeded")
        await asyncio.sleep(0.05)
        made.journal.full = False
        await made.phase("u1", "Succeeded")


async def test_every_kind_becomes_what_it_is_here_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.desire(
            wish("u2", "recreate", RecreateRequest(pod="web", all=True)),
            wish("u3", "checkpoint", CheckpointWish(request=CheckpointRequest(pod="web"))),
            wish("u4", "commit", CommitRequest(container="web", image="x:1")),
            wish("u5", "sandbox", {"anything": 1}),
            wish("u6", "warm", {"no": "images"}),
        )
        await made.phase("u2", "Running")
        made.node.containers.end("recreate-1", "Succeeded")
        recreated = await made.phase("u2", "Succeeded")
        assert msgspec.msgpack.decode(recreated.detail, type=RecreateStatus).id == "recreate-1"
        assert made.node.containers.requests[0].name == "u2"
        checkpointed = await made.phase("u3", "Succeeded")
        assert msgspec.msgpack.decode(checkpointed.detail, type=Operation).request == "u3"
        await made.phase("u4", "Succeeded")
        assert (await made.phase("u5", "Failed")).reason == "Unsupported"
        assert (await made.phase("u6", "Failed")).reason == "InvalidInput"


async def test_a_paused_node_begins_nothing_and_ends_what_runs(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.desire(WARM)
        await eventually(lambda: made.node.images.requests)
        made.desire(WARM, wish("u2", "warm", WarmRequest(images=["b"])), paused=True)
        made.node.images.end("warm-1", "Succeeded")
        await made.phase("u1", "Succeeded")
        assert len(made.node.images.requests) == 1
        made.desire(WARM, wish("u2", "warm", WarmRequest(images=["b"])))
        await eventually(lambda: len(made.node.images.requests) == 2)


async def test_a_killed_stokerd_does_not_begin_twice_what_it_did_not_get_to_write_down(tmp_path: Path) -> None:
    node = FakeNode()
    async with bench(tmp_path, node) as made:
        made.desire(WARM)
        await eventually(lambda: node.images.requests)
    database = Database(tmp_path)
    await database.open()
    await UplinkJournal(database).save([WishRow("u1", 1, "warm", "", 1.0)])  # as it was before warm() returned
    await database.close()
    async with bench(tmp_path, node) as made:
        made.desire(WARM)
        await made.phase("u1", "Pending")
        node.images.end("warm-1", "Succeeded")
        over = await made.phase("u1", "Succeeded")
        assert msgspec.msgpack.decode(over.detail, type=JobStatus).id == "warm-1"
    assert len(node.images.requests) == 1


async def test_a_job_that_is_gone_is_told_as_lost(tmp_path: Path) -> None:
    node = FakeNode()
    async with bench(tmp_path, node) as made:
        made.desire(WARM)
        await eventually(lambda: node.images.requests)
    node.images.by_id.clear()
    async with bench(tmp_path, node) as made:
        assert (await made.phase("u1", "Failed")).reason == "Lost"


async def test_what_waits_to_begin_can_be_broken_off(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.node.images.refuses = RuntimeUnavailable("containerd is away")
        made.desire(WARM)
        await made.phase("u1", "Pending")
        made.desire()
        assert (await made.phase("u1", "Cancelled")).reason == "NoLongerWanted"
        made.node.images.refuses = None
        await asyncio.sleep(0.05)
        assert made.node.images.requests == []


async def test_old_news_of_the_coordinator_is_no_news(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.wishes.take(Desired(generation=7, wishes=[WARM]))
        await eventually(lambda: made.node.images.requests)
        made.wishes.take(Desired(generation=6, wishes=[]))
        await asyncio.sleep(0.05)
        assert made.node.images.by_id["warm-1"].state == "Active"


async def test_results_go_when_they_are_acknowledged_and_wished_for_no_more(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.desire(WARM)
        await eventually(lambda: made.node.images.requests)
        made.node.images.end("warm-1", "Succeeded")
        await made.phase("u1", "Succeeded")
        assert made.wishes.unacknowledged
        await made.wishes.acknowledge([ResultKey("u1", 1), ResultKey("unknown", 1)])
        assert not made.wishes.unacknowledged
        made.desire()
        await eventually(lambda: not made.wishes._rows)
        assert await made.journal.wishes() == []
