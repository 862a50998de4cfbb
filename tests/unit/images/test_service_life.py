"""The room is started again after it has failed, and takes new settings, without losing work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from stoker.objects.images import PinRequest
from stokerd.errors import LimitExceeded, RuntimeTimeout
from stokerd.runtime.memory_artifacts import Layer
from stokerd.runtime.memory_faults import Hold
from tests.unit.images.node import MIB, Node, full
from tests.unit.images.virtual import at_every_step, virtual, virtual_loop


def test_a_room_that_breaks_at_any_moment_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    async def broken(step: int) -> bool:
        async with Node(tmp_path / str(step), poll_interval=0.5) as node:
            layers = [Layer.of(MIB, f"{step} {number}") for number in range(2)]
            for name in ("app:1", "app:2", "app:3"):
                node.image(name, layers=layers)
            task = node._task
            assert task is not None
            virtual_loop().at_step(step, task.cancel)
            job = await node.warm("app:1", "app:2")
            doomed = await node.warm("app:3")
            cancelling = asyncio.create_task(node.service.cancel(doomed))
            following = asyncio.create_task(node.ended(job))
            await asyncio.wait({following, task}, return_when=asyncio.FIRST_COMPLETED)
            disturbed = task.cancelled()
            if disturbed:
                node.run()
            assert (await following).state == "Succeeded"
            assert (await cancelling).state in {"Cancelled", "Succeeded"}
            await node.quiet()
            assert node.present("app:1")
            assert node.present("app:2")
            node.check()
            return disturbed

    at_every_step(broken, stride=3)


def _held(node: Node, name: str) -> Hold:
    """Put an image into the registry whose only layer does not come before it is told to."""
    node.image(name, layers=[8 * MIB])
    return node.runtime.remote.hold(full(name), "layer:0", after=MIB)


@virtual
async def test_more_pulls_run_at_once_when_the_limit_is_raised(tmp_path: Path) -> None:
    async with Node(tmp_path, max_parallel=1, max_parallel_per_registry=10) as node:
        names = [f"app-{number}:v1" for number in range(6)]
        holds = [_held(node, name) for name in names]
        job = await node.warm(*names)
        scheduler = node.service._scheduler
        await asyncio.sleep(1)
        assert scheduler.running == 1
        node.service.apply(replace(node.settings, max_parallel=4, max_parallel_per_registry=10))
        await asyncio.sleep(1)
        assert scheduler.running == 4
        node.service.apply(replace(node.settings, max_parallel=1, max_parallel_per_registry=10))
        await asyncio.sleep(1)
        assert scheduler.running == 4  # what runs goes on
        for hold in holds:
            hold.release()
        assert (await node.ended(job)).state == "Succeeded"


@virtual
async def test_limits_of_pins_and_disk_hold_at_once(tmp_path: Path) -> None:
    async with Node(tmp_path, pin_limit=50.0) as node:
        node.image("app:1", layers=[MIB])
        await node.warmed("app:1")
        node.service.apply(replace(node.settings, pin_limit=0.0))
        with pytest.raises(LimitExceeded):
            await node.service.pin(PinRequest(image=full("app:1")))
        node.service.apply(replace(node.settings, pin_limit=50.0))
        await node.service.pin(PinRequest(image=full("app:1")))
        total = node.runtime.disk.state()[1]
        node.service.apply(replace(node.settings, disk_reserve=2 * total, attempts=1))
        _held(node, "app:2")
        job = await node.warmed("app:2")
        assert (job.state, job.items[0].reason) == ("Failed", "DiskTooSmall")
        assert node.budget.margins.reserve_bytes == 2 * total


@virtual
async def test_pins_that_cannot_be_looked_after_are_no_news_twice(tmp_path: Path) -> None:
    structlog.reset_defaults()  # this time somebody reads the log
    async with Node(tmp_path) as node:
        await node.quiet()
        with capture_logs() as logs:
            node.runtime.fail("images.List", RuntimeTimeout("slow"), times=5)
            node.service._tender.poke()
            await asyncio.sleep(100)
    events = [line["event"] for line in logs]
    assert events.count("pins and kept images could not be looked after") == 1
    assert events.count("pins and kept images are looked after again") == 1
