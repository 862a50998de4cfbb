"""Pins and kept images, over whatever happens to them, to the journal, to containerd and to the daemon."""

from __future__ import annotations

import asyncio
import errno
import itertools
from pathlib import Path

import pytest

from stoker.objects.images import ImageChange, KeepRequest, PinRequest
from stokerd.errors import InvalidInput, JournalError, LimitExceeded, NotFound, RuntimeTimeout, StokerError
from stokerd.images.pins import MARK
from stokerd.runtime.memory import MemoryOptions
from stokerd.runtime.types import PIN_LABEL
from tests.unit.images.node import MIB, Node, full
from tests.unit.images.virtual import at_every_step, virtual, virtual_loop

GIB = 1 << 30


def pinned(node: Node) -> set[str]:
    """The records that carry a pin, ours or another's."""
    return {name for name, record in node.runtime.store.records.items() if PIN_LABEL in record.labels}


def marked(node: Node) -> set[str]:
    return {name for name, record in node.runtime.store.records.items() if MARK in record.labels}


async def pin(node: Node, name: str = "app:v1", seconds: float = 0) -> None:
    await node.service.pin(PinRequest(image=full(name), seconds=seconds))


# ------------------------------------------------------------------------------------------------ pins


@virtual
async def test_a_pin_is_on_every_record_and_verified_by_the_runtime(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        image = node.image()
        await node.warmed("app:v1")
        status = await node.service.pin(PinRequest(image=full("app:v1"), seconds=60))
        assert (status.verified, status.message, status.digest) == (True, "", image.digest)
        assert pinned(node) == set(node.runtime.store.records)
        listed = await node.service.pins()
        assert [entry.reference for entry in listed.pins] == [full("app:v1")]
        assert listed.total_bytes == status.size > 0
        assert listed.limit_bytes == 50 * GIB
        gone = await node.service.unpin(full("app:v1"))
        assert (gone.verified, gone.message) == (False, "")
        assert pinned(node) == set()
        with pytest.raises(NotFound):
            await node.service.unpin(full("app:v1"))


@virtual
async def test_what_is_not_there_and_what_has_no_sense_is_refused(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        with pytest.raises(NotFound):
            await pin(node)
        node.image()
        await node.warmed("app:v1")
        for seconds in (-1, float("nan"), 1e11):
            with pytest.raises(InvalidInput):
                await pin(node, seconds=seconds)
        assert await node.journal.pins() == []


@virtual
async def test_containerd_that_does_not_know_pins_is_told_of(tmp_path: Path) -> None:
    async with Node(tmp_path, options=MemoryOptions("1.6")) as node:
        node.image()
        await node.warmed("app:v1")
        status = await node.service.pin(PinRequest(image=full("app:v1")))
        assert not status.verified
        assert "1.7" in status.message


@virtual
async def test_pins_end_in_time(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1", pin_seconds=100)
        watched = asyncio.create_task(_changes(node, 2))
        await asyncio.sleep(99)
        assert pinned(node)
        await asyncio.sleep(3)
        assert not pinned(node)
        assert (await node.service.pins()).pins == []
        assert await node.journal.pins() == []
        watched.cancel()
        await asyncio.wait({watched})


async def _changes(node: Node, count: int) -> list[str]:
    events = node.service.watch()
    kinds: list[str] = []
    try:
        async for event in events:
            if isinstance(event, ImageChange):
                kinds.append(event.kind)
            if len(kinds) == count:
                return kinds
    finally:
        await events.aclose()
    return kinds


@virtual
async def test_a_pin_that_is_made_again_counts_from_now(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1", pin_seconds=100)
        await asyncio.sleep(90)
        await pin(node, seconds=100)
        await asyncio.sleep(90)
        assert pinned(node)
        await pin(node)
        await asyncio.sleep(10_000)
        assert pinned(node)


@virtual
async def test_a_pin_follows_its_tag_with_digest_and_size(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        old = node.image(layers=[MIB], seed="old")
        await node.warmed("app:v1", pin_seconds=0)
        new = node.image(layers=[9 * MIB], seed="new")
        await node.warmed("app:v1", policy="Always")
        await asyncio.sleep(5)
        (status,) = (await node.service.pins()).pins
        assert status.digest == new.digest
        assert status.size > 9 * MIB
        assert status.verified
        assert old.by_digest in node.runtime.store.records
        assert pinned(node) == set(node.runtime.store.records) - {old.by_digest, old.id}


@pytest.mark.parametrize("who", ["a pull by the kubelet", "somebody who takes labels"])
def test_a_label_that_is_taken_away_comes_back(tmp_path: Path, who: str) -> None:
    @virtual
    async def back() -> None:
        async with Node(tmp_path) as node:
            node.image()
            await node.warmed("app:v1", pin_seconds=0)
            await asyncio.sleep(5)
            if who == "a pull by the kubelet":
                await node.runtime.cri.pull(full("app:v1"))
            else:
                await node.runtime.images.set_labels(full("app:v1"), {PIN_LABEL: None})
            assert full("app:v1") not in pinned(node)
            await asyncio.sleep(3)
            assert pinned(node) == set(node.runtime.store.records)

    back()


@virtual
async def test_pins_of_others_stay_as_they_are(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        for name in ("pause:v1", "app:v1"):
            node.image(name)
            await node.warmed(name)
        await node.runtime.images.set_labels(full("pause:v1"), {PIN_LABEL: "pinned"})
        await node.runtime.images.set_labels(full("app:v1"), {PIN_LABEL: "pinned"})
        await pin(node)
        assert full("app:v1") not in marked(node)
        await node.service.unpin(full("app:v1"))
        await asyncio.sleep(1000)
        assert pinned(node) == {full("pause:v1"), full("app:v1")}


@virtual
async def test_pinned_images_have_a_limit_and_shared_ones_count_once(tmp_path: Path) -> None:
    async with Node(tmp_path, options=MemoryOptions(disk_bytes=10 * GIB), pin_limit=1) as node:
        for name in ("one:v1", "two:v1"):
            node.image(name, layers=[60 * MIB])
        node.image("one:again", layers=[60 * MIB], seed=full("one:v1"))
        await node.warmed("one:v1", "two:v1", "one:again")
        await pin(node, "one:v1")
        await pin(node, "one:again")
        with pytest.raises(LimitExceeded, match="over the limit"):
            await pin(node, "two:v1")
        assert len((await node.service.pins()).pins) == 2
        job = await node.warmed("two:v1", pin_seconds=0)
        assert job.state == "Succeeded"  # it is warm all the same, and it is said that it could not be pinned
        assert "not pinned" in job.items[0].message


@virtual
async def test_an_image_that_is_away_stays_pinned_and_is_labelled_when_it_is_back(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1", pin_seconds=0)
        await node.runtime.cri.remove(full("app:v1"))
        await asyncio.sleep(5)
        (status,) = (await node.service.pins()).pins
        assert "not on the node" in status.message
        await node.warmed("app:v1")
        await asyncio.sleep(5)
        assert pinned(node) == set(node.runtime.store.records)


@virtual
async def test_what_breaks_is_put_right_within_seconds(tmp_path: Path) -> None:
    """Not only at the next interval: until then the kubelet might remove the image."""
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1")
        await asyncio.sleep(5)
        node.runtime.fail("images.Update", RuntimeTimeout("slow"), times=3)
        with pytest.raises(RuntimeTimeout):
            await pin(node)
        await asyncio.sleep(20)
        assert pinned(node) == set(node.runtime.store.records)
        node.runtime.fail("images.Update", RuntimeTimeout("slow"), times=3)
        with pytest.raises(RuntimeTimeout):
            await node.service.unpin(full("app:v1"))
        await asyncio.sleep(20)
        assert pinned(node) == set()
        assert await node.journal.pins() == []


@virtual
async def test_a_pin_that_cannot_be_written_down_is_not_made(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1")
        hold = node.runtime.hold("cri.PullImage")
        node.image("late:v1")
        job = await node.warm("late:v1", pin_seconds=0)
        node.journal_writable(False)
        hold.release()
        with pytest.raises(JournalError):
            await pin(node)
        done = await node.ended(job)
        assert done.state == "Succeeded"
        assert "not pinned" in done.items[0].message
        assert not pinned(node)


@virtual
async def test_expiries_wait_for_the_journal(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await node.warmed("app:v1", pin_seconds=10)
        node.journal_writable(False)
        await asyncio.sleep(100)
        assert pinned(node)
        node.journal_writable(True)
        await asyncio.sleep(10)
        assert not pinned(node)


@virtual
async def test_a_disk_that_cannot_be_read_costs_the_pin_not_the_daemon(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        node.disk_error = OSError(errno.EIO, "Input/output error", "/x")
        job = await node.warmed("app:v1", pin_seconds=0)
        assert job.state == "Succeeded"
        assert "not pinned" in job.items[0].message
        assert node.alive


@pytest.mark.parametrize("ending", ["unpinned", "expired", "pinned"])
def test_killed_at_any_step_pins_come_right(tmp_path: Path, ending: str) -> None:
    """Between row and labels, and between labels of one image."""

    async def killed(step: int) -> bool:
        node = Node(tmp_path / str(step))
        node.image()
        await node.start()
        await node.warmed("app:v1")
        if ending != "pinned":
            await pin(node, seconds=30 if ending == "expired" else 0)
        if ending == "expired":
            await asyncio.sleep(29.9)
        client = asyncio.create_task(_change(node, ending))
        moment = asyncio.Event()
        virtual_loop().at_step(step, moment.set)
        waits = {client, asyncio.create_task(moment.wait())}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        disturbed = not client.done()
        for task in waits:
            task.cancel()
        await node.kill()
        await asyncio.wait(waits)
        meant = await _meant(node)
        await node.start()
        await asyncio.sleep(40)
        live = {row.reference for row in await node.journal.pins()}
        assert live == {name for name in meant if ending != "expired"}
        records = set(node.runtime.store.records)
        assert pinned(node) == marked(node) == (records if live else set())
        await node.stop()
        return disturbed

    at_every_step(killed, least=5)


async def _change(node: Node, ending: str) -> None:
    if ending == "unpinned":
        await node.service.unpin(full("app:v1"))
    elif ending == "pinned":
        await pin(node)
    else:
        await asyncio.sleep(5)


async def _meant(node: Node) -> set[str]:
    """Return what is pinned by the journal of a daemon that was killed."""
    await node.start(run=False)
    rows = {row.reference for row in await node.journal.pins() if not row.releasing}
    await node.stop()
    return rows


# ------------------------------------------------------------------------------------------------ keeps


async def keep(node: Node, name: str = "app:v1") -> None:
    await node.service.keep(KeepRequest(image=full(name), policy="IfNotPresent", priority=7))


@virtual
async def test_a_kept_image_is_warmed_and_warmed_again(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await keep(node)
        await asyncio.sleep(5)
        assert node.present()
        (job,) = node.service.jobs()
        assert (job.priority, job.state) == (7, "Succeeded")
        assert [(entry.rewarmed, entry.present) for entry in await node.service.keeps()] == [(0, True)]
        await node.runtime.cri.remove(full("app:v1"))
        await asyncio.sleep(10)
        assert node.present()
        assert [entry.rewarmed for entry in await node.service.keeps()] == [1]


@virtual
async def test_keeps_survive_a_kill(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.image()
    await node.start()
    await keep(node)
    await node.kill()
    await node.start()
    await asyncio.sleep(10)
    assert node.present()
    await node.service.unkeep(full("app:v1"))
    await node.kill()
    await node.runtime.cri.remove(full("app:v1"))
    await node.start()
    await asyncio.sleep(1000)
    assert not node.present()
    with pytest.raises(NotFound):
        await node.service.unkeep(full("app:v1"))
    await node.stop()


@virtual
async def test_two_who_disagree_do_not_fight(tmp_path: Path) -> None:
    """Something removes the image as soon as it is there."""
    async with Node(tmp_path, keep_backoff_max=600) as node:
        node.image()
        await keep(node)
        times: list[float] = []
        begun = node.loop_time
        while node.loop_time - begun < 3000:
            await asyncio.sleep(1)
            if node.present():
                times.append(node.loop_time)
                await node.runtime.cri.remove(full("app:v1"))
        pauses = [round(later - earlier) for earlier, later in itertools.pairwise(times)]
        assert len(pauses) < 14
        assert pauses[-1] >= 300
        assert all(later > earlier - 8 for earlier, later in itertools.pairwise(pauses))


@virtual
async def test_what_cannot_be_warmed_is_not_tried_all_the_time(tmp_path: Path) -> None:
    """The node is busy: something happens to images every few seconds."""
    async with Node(tmp_path, keep_backoff_max=600, job_ttl=100_000) as node:
        node.image("other:v1")
        await keep(node, "missing:v1")
        for _ in range(500):
            await asyncio.sleep(6)
            await node.runtime.cri.pull(full("other:v1"))
            await node.runtime.cri.remove(full("other:v1"))
        assert 8 < len(node.service.jobs()) < 14
        assert all(entry.rewarmed == 0 for entry in await node.service.keeps())
        node.image("missing:v1")
        await asyncio.sleep(1300)
        assert node.present("missing:v1")
        await node.runtime.cri.remove(full("missing:v1"))
        await asyncio.sleep(610)
        assert node.present("missing:v1")


@virtual
async def test_an_image_that_is_being_pulled_is_not_asked_for_twice(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0")
        await node.warm("app:v1")
        await hold.reached.wait()
        await keep(node)
        await asyncio.sleep(100)
        assert len(node.service.jobs()) == 1
        (status,) = await node.service.keeps()
        assert (status.present, status.message) == (False, "being warmed")
        hold.release()
        await asyncio.sleep(10)
        assert len(node.service.jobs()) == 1


def test_an_unkeep_at_any_moment_of_a_rewarm_holds(tmp_path: Path) -> None:
    """What ends a keep is not overtaken by what was just writing it down."""

    async def ended(step: int) -> bool:
        node = Node(tmp_path / str(step))
        node.image()
        await node.start()
        await keep(node)
        moment = asyncio.Event()
        virtual_loop().at_step(step, moment.set)
        await asyncio.wait({asyncio.create_task(moment.wait())}, timeout=3)
        disturbed = moment.is_set()
        moment.set()
        await node.service.unkeep(full("app:v1"))
        await asyncio.sleep(10)
        assert node.service._tender.kept == {}
        assert await node.journal.keeps() == []
        await node.stop()
        return disturbed

    at_every_step(ended)


@virtual
async def test_keeps_wait_for_a_journal_that_can_be_written(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await keep(node)
        await asyncio.sleep(10)
        node.journal_writable(False)
        await node.runtime.cri.remove(full("app:v1"))
        await asyncio.sleep(100)
        assert not node.present()
        with pytest.raises(StokerError):
            await keep(node, "other:v1")
        node.journal_writable(True)
        await asyncio.sleep(20)
        assert node.present()


@virtual
async def test_an_idle_node_is_left_in_peace(tmp_path: Path) -> None:
    """Events about images matter to nobody where nothing is pinned or kept."""
    async with Node(tmp_path) as node:
        node.image()
        await node.quiet()
        await asyncio.sleep(5)
        before = node.runtime.calls["images.List"]
        for _ in range(20):
            await node.runtime.cri.pull(full("app:v1"))
            await asyncio.sleep(3)
        assert node.runtime.calls["images.List"] - before <= 1


@virtual
async def test_a_stream_of_events_that_breaks_is_opened_again(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.image()
        await keep(node)
        await asyncio.sleep(10)
        node.runtime.restart()
        await asyncio.sleep(10)
        await node.runtime.cri.remove(full("app:v1"))
        await asyncio.sleep(10)
        assert node.present()
