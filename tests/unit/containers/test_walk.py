"""Long random lives of a node: requests, cancels, faults, restarts by others, crashes of containerd and of stokerd.

Whatever happened, once it is over and nothing fails any more: every request ends, each name has one container that
runs, nothing is left, and nothing forbidden was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stoker.objects.containers import EnvVar, RecreateTarget
from stokerd.errors import RuntimeFailure, RuntimeTimeout, RuntimeUnavailable, StokerError
from stokerd.runtime.memory_conduct import Conduct
from tests.unit.containers.house import APP, BAD, NEXT, House
from tests.unit.images.virtual import run_virtual

STEPS = 120
NAMES = ("one", "two", "three")
CALLS = ("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "ListContainers", "PodSandboxStatus")


@dataclass
class Walk:
    """One life of a node with two pods."""

    house: House
    chance: random.Random
    pods: list[str] = field(default_factory=list)
    asking: set[asyncio.Task[None]] = field(default_factory=set)

    def call(self, work: Callable[[], Awaitable[Any]]) -> None:
        """A client asks, and does not wait for the answer."""

        async def answered() -> None:
            with contextlib.suppress(StokerError):
                await work()

        task = asyncio.create_task(answered())
        self.asking.add(task)
        task.add_done_callback(self.asking.discard)

    async def recreate(self) -> None:
        chance = self.chance
        names = chance.sample(NAMES, chance.randint(1, 3))
        image = chance.choice(["", "", NEXT, APP, BAD])
        env = [EnvVar(name="A", value=chance.choice(["1", "2", None]))] if chance.random() < 0.2 else []
        targets = [RecreateTarget(name=name, image=image, env=env) for name in names]
        pod = chance.choice(self.pods)
        how: dict[str, Any] = {
            "ordered_recreate": chance.random() < 0.5,
            "failure_policy": chance.choice(["Fail", "Ignore"]),
            "force_recreate": chance.random() < 0.5,
            "min_started_seconds": chance.choice([0, 0, 0.5, 3]),
            "unready_grace_period_seconds": chance.choice([0, 0, 2]),
            "termination_grace_period_seconds": chance.choice([0, 1, 5]),
            "active_deadline_seconds": chance.choice([2, 30, 300]),
            "name": chance.choice(["", "", "again"]),
        }
        self.call(lambda: self.house.ask(pod, *targets, **how))

    async def cancel(self) -> None:
        known = self.house.service.recreates()
        if known:
            identity = self.chance.choice(known).id
            self.call(lambda: self.house.service.cancel_recreate(identity))

    async def call_fails(self) -> None:
        error = self.chance.choice([RuntimeTimeout("slow"), RuntimeUnavailable("away"), RuntimeFailure("odd")])
        place = self.chance.choice(["", ":done"])
        self.house.runtime.fail(f"cri.{self.chance.choice(CALLS)}{place}", error, times=self.chance.randint(1, 2))

    async def containerd_dies(self) -> None:
        self.house.runtime.crash()
        await asyncio.sleep(self.chance.choice([0, 0.1, 3]))
        self.house.runtime.restart()

    async def kill(self) -> None:
        await self.house.kill()
        await self.hang_up()
        await self.house.start()

    async def stop(self) -> None:
        await self.house.service.park(1.0)
        await self.house.stop()
        await self.hang_up()
        await self.house.start()

    async def hang_up(self) -> None:
        for task in self.asking:
            task.cancel()
        if self.asking:
            await asyncio.wait(self.asking)

    async def a_container_falls(self) -> None:
        running = [each for pod in self.pods for each in self.house.of(pod) if each.state == "running"]
        if running:
            self.house.runtime.end(self.chance.choice(running).id, 1)

    async def something_else_restarts(self) -> None:
        """Whoever looks after a pod starts what does not run, from the newest that there is."""
        pod, name = self.chance.choice(self.pods), self.chance.choice(NAMES)
        found = self.house.of(pod, name)
        if any(each.state in {"running", "created"} or each.starting for each in found):
            return
        made = self.house.runtime.add_container(pod, name, APP, attempt=found[-1].attempt + 1)
        self.house.watch.asked.add(made)

    async def behaves_badly(self) -> None:
        conduct = self.chance.choice(
            [
                Conduct(exits_after=self.chance.choice([0, 0.2, 2]), exit_code=1),
                Conduct(start_error="no such file"),
                Conduct(ignores_term=True),
                Conduct(stops_after=2, starts_after=1),
            ]
        )
        self.house.runtime.conduct(conduct, image=self.chance.choice([NEXT, BAD]), times=2)

    async def journal_fills(self) -> None:
        self.house.journal_writable(False)
        await asyncio.sleep(self.chance.choice([0, 1]))
        self.house.journal_writable(True)

    async def wait(self) -> None:
        await asyncio.sleep(self.chance.choice([0.0, 0.01, 0.3, 1.0, 7.0]))

    async def turn(self) -> None:
        for _ in range(self.chance.randint(1, 30)):
            await asyncio.sleep(0)

    async def step(self) -> None:
        often: list[Callable[[], Awaitable[None]]] = [self.recreate, self.wait, self.turn, self.turn]
        seldom: list[Callable[[], Awaitable[None]]] = [
            self.cancel, self.call_fails, self.containerd_dies, self.kill, self.stop, self.a_container_falls,
            self.something_else_restarts, self.something_else_restarts, self.behaves_badly, self.journal_fills,
        ]  # fmt: skip
        await self.chance.choice(often if self.chance.random() < 0.6 else seldom)()

    # ---------------------------------------------------------------------------------------- what holds

    async def rest(self) -> None:
        """Nothing goes wrong any more, and somebody restarts what fell by itself."""
        self.house.runtime.clear_faults()
        self.house.runtime.conduct(Conduct())
        await self.hang_up()
        await self.house.quiet()
        await asyncio.sleep(120)
        await self.house.quiet()

    def check(self) -> None:
        assert not self.house.watch.forbidden, self.house.watch.forbidden
        for request in self.house.service.recreates():
            assert request.phase == "Completed"
            assert all(each.reason for each in request.containers), request
        for pod in self.pods:
            for name in NAMES:
                states = [state for _, state in self.house.states(pod, name)]
                assert states.count("running") <= 1, states
                assert "created" not in states, states


async def live(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    house = House(directory, max_parallel=2, resync_interval=20)
    pods = [house.pod(f"pod-{number}", *NAMES) for number in range(2)]
    await house.start()
    walk = Walk(house, chance, pods)
    try:
        for _ in range(STEPS):
            await walk.step()
        await walk.rest()
        walk.check()
        house.runtime.clear_faults()
        for pod in pods:  # and the node is as good as new
            for name in NAMES:
                done = await house.recreated(pod, name, name="", force_recreate=True)
                assert done.result == "Succeeded", done
                house.running(pod, name)
    finally:
        await house.stop()


@pytest.mark.parametrize("seed", range(20))
def test_a_life(tmp_path: Path, seed: int) -> None:
    run_virtual(live(tmp_path, seed))
