"""Killed, stopped, cut off or contradicted between any two steps: whatever was asked for ends, and nothing is left.

Every run of a scenario on the virtual loop takes the same turns of the loop. So it is run once for each of them, and
disturbed there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stoker.objects.images import Attempt, JobStatus
from stokerd.errors import StokerError
from stokerd.runtime.memory import MemoryOptions
from stokerd.runtime.memory_artifacts import Layer
from stokerd.runtime.memory_faults import Hold
from tests.unit.images.node import MIB, Node, full
from tests.unit.images.virtual import at_every_step, virtual_loop

Scenario = Callable[[Node], Awaitable[None]]
Disturb = Callable[[Node, "asyncio.Task[None]"], Awaitable[None]]


# ------------------------------------------------------------------------------------------------ scenarios


async def one_image(node: Node) -> None:
    node.image(layers=[3 * MIB, MIB])
    await node.warmed("app:v1")


async def broken_once(node: Node) -> None:
    node.image(layers=[3 * MIB, MIB])
    node.runtime.remote.fail(full("app:v1"), "layer:0", "connection reset by peer", after=MIB)
    await node.warmed("app:v1")


async def cancelled_midway(node: Node) -> None:
    node.image(layers=[3 * MIB, MIB])
    hold = node.runtime.remote.hold(full("app:v1"), "layer:0", after=2 * MIB)
    job = await node.warm("app:v1")
    await reached(hold, node, job)
    await node.service.cancel(job)


async def refused(node: Node) -> None:
    """containerd 2.1 makes a record before it looks for the platform, and leaves it behind."""
    node.image(platforms=["linux/s390x", "windows/amd64"])
    await node.warmed("app:v1")


async def moved_tag(node: Node) -> None:
    node.image(layers=[MIB], seed="before")
    await node.warmed("app:v1")
    node.image(layers=[2 * MIB], seed="after")
    await node.warmed("app:v1", policy="Always")


async def pinned(node: Node) -> None:
    node.image(layers=[MIB])
    await node.warmed("app:v1", pin_seconds=0)
    await node.service.unpin(full("app:v1"))


async def shared_layers(node: Node) -> None:
    base = Layer.of(2 * MIB, "base")
    for name in ("one:v1", "two:v1"):
        node.image(name, layers=[base, MIB])
    hold = node.runtime.remote.hold(full("two:v1"), "layer:1")
    one, two = await node.warm("one:v1"), await node.warm("two:v1")
    await reached(hold, node, two)
    await node.service.cancel(two)
    await node.ended(one)


async def reached(hold: Hold, node: Node, job: str) -> None:
    """Return when a pull stands at the barrier, or has ended without."""
    waits = {asyncio.create_task(hold.reached.wait()), asyncio.create_task(_end(node, job))}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()


async def _end(node: Node, job: str) -> None:
    await node.ended(job)


SCENARIOS = (one_image, broken_once, cancelled_midway, refused, moved_tag, pinned, shared_layers)


# ------------------------------------------------------------------------------------------------ disturbances


async def killed(node: Node, client: asyncio.Task[None]) -> None:
    client.cancel()
    await node.kill()
    await node.start()


async def stopped(node: Node, client: asyncio.Task[None]) -> None:
    client.cancel()
    await node.stop()
    await node.start()


async def containerd_gone(node: Node, client: asyncio.Task[None]) -> None:
    node.runtime.crash()
    await asyncio.sleep(7)
    node.runtime.restart()


async def containerd_restarted(node: Node, client: asyncio.Task[None]) -> None:
    node.runtime.restart()


async def all_cancelled(node: Node, client: asyncio.Task[None]) -> None:
    for job in node.service.jobs():
        await node.service.cancel(job.id)
    # Once more, for those that came meanwhile, or that the scenario itself has cancelled.
    jobs = [await node.service.cancel(job.id) for job in node.service.jobs()]
    if all(job.state == "Cancelled" for job in jobs):
        node.check(collected=False)


async def wanted_by_another(node: Node, client: asyncio.Task[None]) -> None:
    await node.warm("app:v1", policy="Always")


DISTURBANCES: dict[Disturb, int] = {
    killed: 2,
    all_cancelled: 2,
    stopped: 5,
    containerd_gone: 5,
    containerd_restarted: 5,
    wanted_by_another: 5,
}
"""With the stride: what these find, they find for several steps on end."""


# ------------------------------------------------------------------------------------------------ the check


async def disturbed(directory: Path, scenario: Scenario, disturb: Disturb, step: int) -> bool:
    """Run a scenario, disturb it at one of its steps; return whether that step came before its end."""
    node = Node(directory, options=MemoryOptions(platform="linux/amd64"))
    node.runtime.remote.chunk = MIB
    await node.start()
    reached = asyncio.Event()
    virtual_loop().at_step(step, reached.set)
    client = asyncio.create_task(_scenario(scenario, node))
    moment = asyncio.create_task(reached.wait())
    await asyncio.wait({client, moment}, return_when=asyncio.FIRST_COMPLETED)
    early = not client.done()
    if early:
        await disturb(node, client)
    moment.cancel()
    node.runtime.clear_faults()
    await asyncio.wait({client, moment})
    await settled(node, lost=int(disturb is killed))
    await node.stop()
    return early


async def _scenario(scenario: Scenario, node: Node) -> None:
    with contextlib.suppress(StokerError):  # the journal of a daemon that was killed is closed
        await scenario(node)


async def settled(node: Node, *, lost: int = 0) -> None:
    jobs = [await node.ended(job.id) for job in node.service.jobs()]
    await asyncio.sleep(10)  # for those who notice by and by what was done to containerd
    await node.quiet()
    node.check()
    history = await node.service.history(limit=1000)
    succeeded = {item.reference for job in jobs for item in job.items if item.phase == "Succeeded"}
    for job in jobs:
        check_counts(job)
        check_history(job, history, lost=lost)
    for reference in succeeded:
        assert node.present(reference)


def check_counts(job: JobStatus) -> None:
    phases = [item.phase for item in job.items]
    counts = job.counts
    assert (counts.desired, counts.waiting, counts.pulling) == (len(phases), 0, 0)
    assert (counts.succeeded, counts.failed, counts.cancelled) == tuple(
        phases.count(phase) for phase in ("Succeeded", "Failed", "Cancelled")
    )
    assert all(item.progress.percent == 100 for item in job.items if item.phase == "Succeeded")


def check_history(job: JobStatus, history: list[Attempt], *, lost: int = 0) -> None:
    """Each attempt has a line of its own, and the last one says how it ended.

    A daemon that is killed may take the line of an attempt with it whose end is in the journal already.
    """
    for item in job.items:
        lines = [line for line in reversed(history) if (line.job, line.reference) == (job.id, item.reference)]
        attempts = [line.attempt for line in lines]
        assert attempts == sorted(set(attempts)), lines
        assert item.attempt - lost <= len(attempts) <= item.attempt, lines
        if item.attempt and item.reason != "Cancelled":
            assert lines[-1].result == item.phase


@pytest.mark.parametrize("disturb", DISTURBANCES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_at_every_other_step(tmp_path: Path, scenario: Scenario, disturb: Disturb) -> None:
    at_every_step(lambda step: disturbed(tmp_path / str(step), scenario, disturb, step), stride=DISTURBANCES[disturb])
