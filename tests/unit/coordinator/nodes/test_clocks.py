"""The coordinator's clock is set while nodes are connected, and while it is down."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stoker.objects.cluster_nodes import Node
from tests.unit.coordinator.nodes.bench import Hand, object_of, serving

JUMPS = pytest.mark.parametrize("jump", [-5 * 3600.0, 30 * 3600.0], ids=["back", "forward"])


class Wall:
    """A clock that can be set."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __call__(self) -> float:
        return time.time() + self.shift


def ready(node: Node) -> str:
    return next((each.status for each in node.status.conditions if each.type == "Ready"), "")


@JUMPS
async def test_who_is_silent_is_not_told_by_a_clock_that_is_set(tmp_path: Path, monkeypatch: Any, jump: float) -> None:
    monkeypatch.setattr("stoker_coordinator.nodes.service._LOOK_EVERY", 0.05)
    wall, clock = Wall(), Hand()
    async with serving(tmp_path, wall=wall, clock=clock, silent_after=35.0) as bench, bench.node() as node:
        await object_of(bench, "n1", lambda each: ready(each) == "True")
        told = len(bench.ear.presences)
        wall.shift = jump
        for _ in range(2):  # for longer than silent_after
            clock.now += 30
            bench.nodes._streams.look_after()
            await bench.beat("n1", node)
        assert len(bench.ear.presences) == told
        assert bench.nodes.state("n1").presence.ready
        clock.now += 36
        await bench.ear.until(lambda: bench.ear.presences[-1][1].reason == "Silent")
        assert bench.ear.presences[-1][1].since == pytest.approx(wall(), abs=10)
        await object_of(bench, "n1", lambda each: ready(each) != "True")


@JUMPS
async def test_a_clock_that_is_set_while_the_coordinator_is_down(tmp_path: Path, monkeypatch: Any, jump: float) -> None:
    monkeypatch.setattr("stoker_coordinator.nodes.service._LOOK_EVERY", 0.05)
    wall, clock = Wall(), Hand()
    async with serving(tmp_path, wall=wall) as bench, bench.node("stays"), bench.node("goes"):
        for name in ("stays", "goes"):
            await object_of(bench, name, lambda each: each.status.connected)
        store = bench.store
    wall.shift = jump
    async with (
        serving(tmp_path, store=store, wall=wall, clock=clock, silent_after=35.0) as bench,
        bench.node("stays") as stays,
    ):
        clock.now += 20
        await bench.beat("stays", stays)
        clock.now += 20
        await object_of(bench, "goes", lambda each: ready(each) == "Unknown")
        await object_of(bench, "stays", lambda each: ready(each) == "True" and each.status.connected)
        assert bench.nodes.state("stays").presence.ready
