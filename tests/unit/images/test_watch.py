"""One pull seen from outside, and the disk's account that it is held against."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stokerd.errors import RuntimeTimeout, RuntimeUnavailable, StokerError
from stokerd.images.budget import DiskUnreadable
from stokerd.images.failures import Failure, classify
from stokerd.images.progress import PullProgress
from stokerd.images.pull import Pulled, PullOrder
from stokerd.images.space import DiskTooSmall, Need
from stokerd.registry.references import parse_reference
from stokerd.runtime.memory import MemoryOptions
from stokerd.runtime.memory_artifacts import Layer
from tests.unit.images.node import MIB, Node, full
from tests.unit.images.virtual import virtual

GIB = 1 << 30
CALLS = (
    "leases.ListResources",
    "content.ListStatuses",
    "content.Info",
    "content.Read",
    "snapshots.Stat",
    "snapshots.Usage",
)
"""All that watching asks of the runtime."""


@asynccontextmanager
async def parts(directory: Path, **how: Any) -> AsyncIterator[Node]:
    """A node whose registries take their time: a megabyte a second, and as long to unpack two."""
    node = Node(directory, **how)
    node.runtime.remote.rate = float(MIB)
    node.runtime.remote.unpack_rate = 2.0 * MIB
    await node.start(run=False)
    try:
        yield node
    finally:
        await node.stop()


async def attempt(
    node: Node, name: str = "app:v1", report: Callable[[PullProgress], None] | None = None
) -> Pulled | Failure:
    seen: Callable[[PullProgress], None] = report or (lambda _progress: None)
    return await node.puller.attempt(PullOrder(parse_reference(full(name)), (), seen))


def numbers(progress: PullProgress) -> tuple[float, ...]:
    return (
        progress.bytes_done,
        progress.bytes_present,
        progress.layers_unpacked,
        progress.percent,
        *(layer.offset for layer in progress.layers),
    )


# ------------------------------------------------------------------------------------------------ progress


@virtual
async def test_progress_is_fine_grained_and_only_goes_forward(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        image = node.image(layers=[20 * MIB, 10 * MIB])
        reports: list[PullProgress] = []
        assert isinstance(await attempt(node, report=reports.append), Pulled)
        for before, after in itertools.pairwise(map(numbers, reports)):
            assert all(old <= new for old, new in zip(before, after, strict=True))
        assert {progress.bytes_total for progress in reports} == {image.compressed_size}
        percents = {progress.percent for progress in reports}
        assert len(percents) > 30
        assert max(percents) < 100
        assert max(b - a for a, b in itertools.pairwise(sorted(percents))) < 10


@virtual
async def test_what_was_on_the_node_is_present_and_not_fetched(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        base = Layer.of(4 * MIB, "base")
        node.image("base:v1", layers=[base])
        await attempt(node, "base:v1")
        await asyncio.sleep(1)
        node.image(layers=[base, 2 * MIB])
        reports: list[PullProgress] = []
        outcome = await attempt(node, report=reports.append)
        assert isinstance(outcome, Pulled)
        assert outcome.fetched == 2 * MIB
        assert {progress.bytes_present for progress in reports} == {4 * MIB}


@virtual
async def test_a_long_pull_is_looked_at_less_often(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image(layers=[600 * MIB])
        await attempt(node)
        assert 600 < node.runtime.calls["leases.ListResources"] < 1500


@virtual
async def test_snapshots_that_grow_are_measured_seldom(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.runtime.remote.unpack_rate = MIB / 20
        node.image(layers=[4 * MIB])
        reports: list[PullProgress] = []
        await attempt(node, report=reports.append)
        unpacking = {progress.layers[0].unpacked for progress in reports if progress.layers[0].state == "unpacking"}
        assert len(unpacking) > 5
        assert node.runtime.calls["snapshots.Usage"] < 100  # in 160 seconds


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_breaks_off_costs_a_look_and_no_more(tmp_path: Path, call: str) -> None:
    """Whichever of its calls it is: progress, and what was there before, are right in the end."""

    @virtual
    async def broken(times: int, error: StokerError) -> None:
        async with parts(tmp_path / f"{times}-{type(error).__name__}") as node:
            base = Layer.of(4 * MIB, "base")
            node.image("base:v1", layers=[base])
            await attempt(node, "base:v1")
            await asyncio.sleep(1)
            node.image(layers=[base, 20 * MIB], index=True)
            reports: list[PullProgress] = []
            hold = node.runtime.remote.hold(full("app:v1"), "layer:1", after=10 * MIB)
            task = asyncio.create_task(attempt(node, report=reports.append))
            async with asyncio.timeout(0.05):
                while not node.runtime.store.leases:  # noqa: ASYNC110 - one turn of the loop at a time
                    await asyncio.sleep(0)
            node.runtime.fail(call, error, times=times)
            await hold.reached.wait()
            await asyncio.sleep(20)
            assert reports[-1].bytes_done == 14 * MIB
            assert reports[-1].bytes_present == 4 * MIB
            need = node.budget.promised
            assert need.download_bytes == 10 * MIB
            hold.release()
            outcome = await task
            assert isinstance(outcome, Pulled)
            assert outcome.fetched == 20 * MIB

    for times in (1, 3):
        broken(times, RuntimeTimeout("slow", call=call))
        broken(times, RuntimeUnavailable("away", call=call))


# ------------------------------------------------------------------------------------------------ stalls


@virtual
async def test_what_does_not_move_is_broken_off(tmp_path: Path) -> None:
    async with parts(tmp_path, stall_timeout=30) as node:
        node.image(layers=[50 * MIB])
        for stage, where in (("layer:0", "%"), ("resolve", "resolved")):
            hold = node.runtime.remote.hold(full("app:v1"), stage, after=20 * MIB * (stage != "resolve"))
            before = node.loop_time
            failure = await attempt(node)
            assert isinstance(failure, Failure)
            assert (failure.reason, failure.retryable) == ("Stalled", True)
            assert where in failure.message
            assert 30 <= node.loop_time - before < 60
            hold.release()
            node.runtime.clear_faults()
            await node.puller.discard(parse_reference(full("app:v1")))


@virtual
async def test_what_moves_slowly_is_not(tmp_path: Path) -> None:
    async with parts(tmp_path, stall_timeout=30) as node:
        node.runtime.remote.rate = MIB / 20
        node.image(layers=[10 * MIB])
        assert isinstance(await attempt(node), Pulled)


# ------------------------------------------------------------------------------------------------ the disk


@virtual
async def test_what_does_not_fit_is_refused_before_its_layers_come(tmp_path: Path) -> None:
    async with parts(tmp_path, options=MemoryOptions(disk_bytes=2 * GIB)) as node:
        node.image(layers=[400 * MIB])
        failure = await attempt(node)
        assert isinstance(failure, Failure)
        assert (failure.reason, failure.retryable) == ("DiskTooSmall", False)
        assert "needed 1258291200 bytes" in failure.message
        assert node.runtime.remote.fetched.total() < 2 * MIB
        await node.puller.discard(parse_reference(full("app:v1")))
        node.check(collected=False)


@virtual
async def test_what_others_were_promised_is_not_there_for_a_new_pull(tmp_path: Path) -> None:
    async with parts(tmp_path, options=MemoryOptions(disk_bytes=2 * GIB)) as node:
        node.image("one:v1", layers=[200 * MIB])
        node.image("two:v1", layers=[200 * MIB])
        one = asyncio.create_task(attempt(node, "one:v1"))
        await asyncio.sleep(30)
        failure = await attempt(node, "two:v1")
        assert isinstance(failure, Failure)
        assert failure.reason == "DiskTooSmall"
        assert "promised to pulls that run" in failure.message
        assert isinstance(await one, Pulled)


@virtual
async def test_two_that_are_admitted_at_one_time_see_each_other(tmp_path: Path) -> None:
    """Reading the disk takes a moment, in which the other one must not be overlooked."""
    async with parts(tmp_path, options=MemoryOptions(disk_bytes=2 * GIB)) as node:
        need = Need(download_bytes=600 * MIB)
        outcomes = await asyncio.gather(
            *(node.budget.admit(name, name, need) for name in ("one", "two", "three")), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), DiskTooSmall, DiskTooSmall]
        assert node.budget.promised == need


@virtual
async def test_a_disk_that_runs_full_stops_the_pull(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image(layers=[100 * MIB])
        task = asyncio.create_task(attempt(node))
        await asyncio.sleep(50)
        node.runtime.disk.other_bytes = node.runtime.disk.total_bytes - 400 * MIB  # under the floor
        failure = await task
        assert isinstance(failure, Failure)
        assert failure.reason == "DiskTooSmall"
        assert "stopped pulling" in failure.message


@virtual
async def test_a_disk_that_is_full_before_anything_is_known_stops_it_too(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image()
        node.runtime.remote.hold(full("app:v1"), "resolve")
        node.runtime.disk.other_bytes = node.runtime.disk.total_bytes
        failure = await attempt(node)
        assert isinstance(failure, Failure)
        assert failure.reason == "DiskTooSmall"


@virtual
async def test_a_pull_goes_on_while_the_disk_cannot_be_asked(tmp_path: Path) -> None:
    """The containerd through whose root it is seen has died: what becomes of the pull, the pull itself will say."""
    async with parts(tmp_path, stall_timeout=20) as node:
        node.image(layers=[100 * MIB])
        node.disk_error = OSError(errno.ESRCH, "No such process", "/proc/1/root/var/lib/containerd")
        reports: list[PullProgress] = []
        assert isinstance(await attempt(node, report=reports.append), Pulled)
        assert len({progress.percent for progress in reports}) > 30


@virtual
async def test_an_unreadable_disk_is_an_error_like_others(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.disk_error = PermissionError(errno.EACCES, "Permission denied", "/var/lib/containerd")
        with pytest.raises(DiskUnreadable) as caught:
            await node.budget.read()
        assert caught.value.message == "containerd's file system /var/lib/containerd cannot be asked: Permission denied"
        failure = classify(caught.value, full("app:v1"))
        assert (failure.reason, failure.retryable) == ("DiskUnreadable", True)
        node.disk_error = OSError("odd")
        with pytest.raises(DiskUnreadable, match="cannot be asked: odd"):
            await node.budget.admit("x", "x", Need())


@virtual
async def test_a_journal_that_cannot_be_read_costs_exactness_only(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        image = node.image(layers=[Layer.of(10 * MIB, unpacked=90 * MIB)])
        connection = node.database._connection
        node.database._connection = None
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0")
        task = asyncio.create_task(attempt(node))
        await hold.reached.wait()
        await asyncio.sleep(1)
        assert node.budget.promised.unpack_bytes == 20 * MIB
        hold.release()
        assert isinstance(await task, Pulled)
        node.database._connection = connection
        assert await node.journal.layers([image.layers[0].digest]) == {}


@virtual
async def test_sizes_that_were_learned_are_used(tmp_path: Path) -> None:
    async with parts(tmp_path) as node:
        node.image(layers=[Layer.of(10 * MIB, unpacked=90 * MIB)])
        await attempt(node)
        await node.runtime.cri.remove(full("app:v1"))
        hold = node.runtime.remote.hold(full("app:v1"), "layer:0")
        task = asyncio.create_task(attempt(node))
        await hold.reached.wait()
        await asyncio.sleep(1)
        assert node.budget.promised.unpack_bytes == 90 * MIB + 4096
        hold.release()
        await task
