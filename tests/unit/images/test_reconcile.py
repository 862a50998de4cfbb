"""Leases after a start, a crash, or containerd's absence: ours that nobody wants go, all others stay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stokerd.errors import RuntimeTimeout, RuntimeUnavailable
from stokerd.images.jobs import Pull
from stokerd.images.leases import (
    DAEMON_LABEL,
    IMAGE_LABEL,
    PREFIX,
    lease_id,
    lease_labels,
    leased,
    orphaned,
)
from stokerd.images.reconcile import drop_orphans
from stokerd.registry.references import Reference, parse_reference
from stokerd.runtime.memory import MemoryRuntime
from stokerd.runtime.types import GC_EXPIRE_LABEL, Lease
from tests.unit.images.node import DAEMON, MIB, Node, full
from tests.unit.images.virtual import at_every_step, virtual, virtual_loop

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def ours(image: str, daemon: str = DAEMON) -> Lease:
    return Lease(lease_id(daemon, image), lease_labels(daemon, image, NOW))


# ------------------------------------------------------------------------------------------------ pure


def test_a_lease_is_named_by_daemon_and_image() -> None:
    assert lease_id("a", "x") == lease_id("a", "x")
    assert len({lease_id(daemon, image) for daemon in "ab" for image in "xy"}) == 4
    assert lease_labels("a", "x", NOW)[GC_EXPIRE_LABEL] == "2030-01-08T00:00:00Z"


@given(st.integers(0, 9000))
def test_labels_stay_within_containerds_limit(length: int) -> None:
    assert all(len(key) + len(value) <= 4096 for key, value in lease_labels("a", "x" * length, NOW).items())


def test_leases_are_ours_by_name_and_label_both() -> None:
    mine, image = ours(full("app:v1")), full("app:v1")
    others = [
        ours(image, "another-daemon"),
        Lease(mine.id, {**mine.labels, DAEMON_LABEL: "another-daemon"}),
        Lease(mine.id, {**mine.labels, IMAGE_LABEL: full("other:v1")}),
        Lease("kubelet", mine.labels),
        Lease("kubelet", {}),
    ]
    assert leased([mine, *others], DAEMON) == {mine.id: parse_reference(image)}
    unreadable = Lease(f"{PREFIX}1", {DAEMON_LABEL: DAEMON, IMAGE_LABEL: "UPPER case"})
    nameless = Lease(f"{PREFIX}2", {DAEMON_LABEL: DAEMON})
    assert leased([unreadable, nameless], DAEMON) == {}
    assert orphaned([mine, unreadable, nameless, others[0], others[3]], DAEMON, {mine.id}) == (
        unreadable.id,
        nameless.id,
    )


# ------------------------------------------------------------------------------------------------ the sweep


class Cleaner:
    """Wants some images; the others are gone as soon as they were handed over."""

    def __init__(self, *wanted: str) -> None:
        self.wanted = {full(name) for name in wanted}
        self.handed: list[str] = []

    def found(self, reference: Reference) -> Pull | None:
        if reference.pull_spec in self.wanted:
            return None
        self.handed.append(reference.pull_spec)
        pull = Pull(reference.pull_spec, reference, 1)
        pull.gone.set()
        return pull


@virtual
async def test_the_scheduler_is_told_of_images_and_what_has_no_name_is_deleted() -> None:
    runtime = MemoryRuntime()
    for lease in (ours(full("wanted:v1")), ours(full("orphan:v1")), ours(full("app:v1"), "other")):
        runtime.store.create_lease(lease.id, lease.labels)
    runtime.store.create_lease(f"{PREFIX}odd", {DAEMON_LABEL: DAEMON})
    runtime.store.create_lease("kubelet", {})
    cleaner = Cleaner("wanted:v1")
    assert await drop_orphans(runtime, DAEMON, cleaner) == 2
    assert cleaner.handed == [full("orphan:v1")]
    assert set(runtime.store.leases) == {
        "kubelet",
        lease_id(DAEMON, full("wanted:v1")),
        lease_id(DAEMON, full("orphan:v1")),  # the cleaner of this test does nothing
        lease_id("other", full("app:v1")),
    }


# ------------------------------------------------------------------------------------------------ in the service


async def leave_something(node: Node, name: str = "app:v1") -> None:
    """Let an earlier daemon have been killed in the middle of a pull that nobody asks for now."""
    node.image(name, layers=[2 * MIB, MIB])
    hold = node.runtime.remote.hold(full(name), "layer:1")
    await node.start()
    await node.warm(name)
    await hold.reached.wait()
    await node.kill()
    for path in node.directory.glob("journal.db*"):
        path.unlink()
    node.runtime.clear_faults()


@virtual
async def test_what_a_dead_daemon_left_is_removed_before_the_node_is_ready(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await leave_something(node)
    assert node.leftovers(collected=True)
    await node.start()
    hold = node.runtime.hold("leases.Delete")
    await hold.reached.wait()
    await asyncio.sleep(10)
    assert not node.service.reconciled
    hold.release()
    await node.quiet()
    node.check(collected=False)
    await node.stop()


def test_whoever_wants_the_image_just_then_is_served(tmp_path: Path) -> None:
    """Between the look at the leases and their removal, a pull begins that goes on with one of them."""

    async def wanted(step: int) -> bool:
        node = Node(tmp_path / str(step), attempts=1)
        await leave_something(node)
        await node.start()
        moment = asyncio.Event()
        virtual_loop().at_step(step, moment.set)
        await asyncio.wait({asyncio.create_task(moment.wait())}, timeout=1)
        disturbed = moment.is_set()
        moment.set()
        job = await node.warmed("app:v1")
        assert job.state == "Succeeded", job.items[0]
        await node.quiet()
        node.check()
        await node.stop()
        return disturbed

    at_every_step(wanted, least=5)


def test_cancelled_whenever_after_a_restart_nothing_is_left(tmp_path: Path) -> None:
    """The job is taken up again, and cancelled before, while or after the leases are gone through."""

    async def cancelled(step: int) -> bool:
        node = Node(tmp_path / str(step), max_parallel=1)
        node.image("blocker:v1")
        node.image(layers=[2 * MIB, MIB])
        await node.start()
        hold = node.runtime.remote.hold(full("app:v1"), "layer:1")
        job = await node.warm("app:v1")
        await hold.reached.wait()
        await node.kill()
        await node.start(run=False)
        blocked = node.runtime.remote.hold(full("blocker:v1"), "resolve")
        blocker = await node.warm("blocker:v1", priority=9)
        moment = asyncio.Event()
        virtual_loop().at_step(step, moment.set)
        node.run()
        await asyncio.wait({asyncio.create_task(moment.wait())}, timeout=1)
        disturbed = moment.is_set()
        moment.set()
        assert (await node.service.cancel(job)).state == "Cancelled"
        blocked.release()
        await node.ended(blocker)
        await node.quiet()
        assert not node.present()
        node.check()
        await node.stop()
        return disturbed

    at_every_step(cancelled, least=5)


@virtual
async def test_a_containerd_that_fails_is_asked_again_with_pauses(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await leave_something(node)
    node.runtime.fail("leases.List", RuntimeTimeout("slow"), times=3)
    node.runtime.fail("leases.List", RuntimeUnavailable("away"), times=20)
    await node.start()
    before = node.runtime.calls["leases.List"]
    await asyncio.sleep(14)
    assert node.runtime.calls["leases.List"] - before == 3
    assert not node.service.reconciled
    await asyncio.sleep(60)
    assert node.runtime.calls["leases.List"] - before < 40
    assert node.service.reconciled
    node.check()
    await node.stop()


@virtual
async def test_leases_are_gone_through_again_when_containerd_comes_back(tmp_path: Path) -> None:
    """A pull was given up while containerd was away: nothing could be removed then."""
    async with Node(tmp_path) as node:
        node.image(layers=[2 * MIB])
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=MIB)
        job = await node.warm("app:v1")
        await hold.reached.wait()
        node.runtime.crash()
        await asyncio.sleep(5)
        await asyncio.wait_for(node.service.cancel(job), 1)
        assert node.runtime.store.leases
        node.runtime.restart()
        await asyncio.sleep(5)
        node.check(collected=False)
