"""A subsystem that fails is told, started again, and takes no other with it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stoker.service.supervise import HEALTHY_AFTER, Subsystem, Supervisor
from stokerd.metrics import SubsystemMetrics
from tests.unit.images.virtual import virtual


class House:
    """A supervisor with subsystems that do as the test says."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.changes: list[dict[str, str]] = []
        clock = asyncio.get_running_loop().time
        self.supervisor = Supervisor(SubsystemMetrics(self.registry), self._changed, clock=clock)
        self.starts: dict[str, list[float]] = {}
        self.ended: list[str] = []

    def _changed(self) -> None:
        self.changes.append(dict(self.supervisor.problems))

    def subsystem(self, name: str, *lives: Callable[[], Awaitable[None]], parking: float = 0.0) -> Subsystem:
        """Each start takes the next of *lives*; after the last it runs for ever."""
        left = list(lives)

        async def run() -> None:
            self.starts.setdefault(name, []).append(asyncio.get_running_loop().time())
            try:
                if left:
                    await left.pop(0)()
                else:
                    await asyncio.Event().wait()
            finally:
                if parking:
                    await asyncio.sleep(parking)
                self.ended.append(name)

        return Subsystem(name, run)

    def gauge(self, name: str, subsystem: str) -> float | None:
        return self.registry.get_sample_value(f"stoker_subsystem_{name}", {"subsystem": subsystem})


def fails(error: Exception, after: float = 1.0) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await asyncio.sleep(after)
        raise error

    return run


def failures(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["log_level"] == "error"]


@virtual
async def test_a_failure_is_logged_once_told_everywhere_and_its_recovery_once() -> None:
    house = House()
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            house.supervisor.start(group, house.subsystem("good"))
            house.supervisor.start(group, house.subsystem("bad", *[fails(ValueError("broken"))] * 3))
            assert house.gauge("up", "bad") == 1
            await asyncio.sleep(1.5)
            assert house.gauge("up", "bad") == 0
            assert house.gauge("up", "good") == 1
            assert house.supervisor.problems == {"good": "", "bad": "failed and is started again: ValueError: broken"}
            await asyncio.sleep(100)
            assert house.supervisor.problems == {"good": "", "bad": ""}
            assert house.gauge("up", "bad") == 1
            assert house.gauge("failures_total", "bad") == 3
            assert house.gauge("failures_total", "good") == 0
            assert await house.supervisor.stop(1.0) == []
    (failure,) = failures(logs)
    assert (failure["subsystem"], failure["why"]) == ("bad", "ValueError: broken")
    assert failure["exc_info"].args == ("broken",)
    (recovery,) = [line for line in logs if line["event"] == "subsystem runs again"]
    assert recovery["failures"] == 3
    first = house.starts["bad"][0]
    assert [round(start - first) for start in house.starts["bad"]] == [0, 2, 5, 10]  # a second's life, then 1, 2, 4
    assert len(house.starts["good"]) == 1


@virtual
async def test_another_failure_is_news() -> None:
    house = House()
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            lives = [fails(ValueError("one")), fails(ValueError("one")), fails(KeyError("two"))]
            house.supervisor.start(group, house.subsystem("bad", *lives))
            await asyncio.sleep(60)
            await house.supervisor.stop(1.0)
    assert [line["why"] for line in failures(logs)] == ["ValueError: one", "KeyError: 'two'"]


@virtual
async def test_pauses_grow_to_a_minute_and_begin_anew_after_a_healthy_life() -> None:
    house = House()
    async with asyncio.TaskGroup() as group:
        lives = [fails(ValueError("x"), after=0.0)] * 9 + [fails(ValueError("x"), after=HEALTHY_AFTER + 1)]
        house.supervisor.start(group, house.subsystem("bad", *lives))
        await asyncio.sleep(1000)
        await house.supervisor.stop(1.0)
    starts = house.starts["bad"]
    pauses = [round(after - before) for before, after in itertools.pairwise(starts)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, round(HEALTHY_AFTER) + 2]


@virtual
async def test_one_that_just_ends_has_failed_too() -> None:
    house = House()

    async def ends() -> None: ...

    async with asyncio.TaskGroup() as group:
        house.supervisor.start(group, house.subsystem("short", ends))
        await asyncio.sleep(0.5)
        assert "it ended" in house.supervisor.problems["short"]
        await house.supervisor.stop(1.0)


@virtual
async def test_a_group_of_failures_is_told_by_its_first_without_secrets() -> None:
    house = House()
    inner = ExceptionGroup("many", [RuntimeError("https://user:hunter2@registry/x failed\nand more"), ValueError()])
    async with asyncio.TaskGroup() as group:
        house.supervisor.start(group, house.subsystem("bad", fails(ExceptionGroup("outer", [inner]))))
        await asyncio.sleep(1.5)
        told = house.supervisor.problems["bad"]
        assert told.endswith("RuntimeError: https://registry/x failed")
        await house.supervisor.stop(1.0)


@virtual
async def test_they_stop_in_reverse_order_each_after_the_next() -> None:
    house = House()
    async with asyncio.TaskGroup() as group:
        for name in ("runtime", "images", "containers"):
            house.supervisor.start(group, house.subsystem(name, parking=2.0))
        await asyncio.sleep(1)
        assert await house.supervisor.stop(10.0) == []
        assert house.ended == ["containers", "images", "runtime"]


@virtual
async def test_those_that_take_too_long_are_named_and_the_others_still_stopped() -> None:
    house = House()
    async with asyncio.TaskGroup() as group:
        house.supervisor.start(group, house.subsystem("quick"))
        house.supervisor.start(group, house.subsystem("slow", parking=100.0))
        await asyncio.sleep(1)
        before = asyncio.get_running_loop().time()
        late = await house.supervisor.stop(5.0)
        assert asyncio.get_running_loop().time() - before == pytest.approx(5.0, abs=0.1)
        assert "slow" in late
        await asyncio.sleep(100)
    assert sorted(house.ended) == ["quick", "slow"]


@virtual
async def test_one_that_has_failed_and_waits_can_be_stopped() -> None:
    house = House()
    async with asyncio.TaskGroup() as group:
        house.supervisor.start(group, house.subsystem("bad", *[fails(ValueError("x"), after=0.0)] * 50))
        await asyncio.sleep(50)
        assert await house.supervisor.stop(1.0) == []
