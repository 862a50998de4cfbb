"""stokerd and containerd die at any moment of a request: exactly one container of each name runs in the end."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stoker.objects.containers import EnvVar, Probe, RecreateStatus, RecreateTarget
from stokerd.errors import StokerError
from stokerd.runtime.memory_conduct import Conduct
from tests.unit.containers.house import APP, BAD, NEXT, House, Kubelet, only
from tests.unit.images.virtual import at_every_step, run_virtual, virtual_loop

ENV = [EnvVar(name="A", value="1")]
Scene = Callable[[House], Coroutine[Any, Any, "Story"]]


class Story:
    """A pod, what is asked for it, and what must be there at the end."""

    def __init__(self, pod: str, *targets: str | RecreateTarget, **how: Any) -> None:
        self.pod = pod
        self.targets = targets
        self.how = how
        self.names = ("app", "side")
        self.results = {"Succeeded"}
        self.kubelet = False
        self.image = APP


async def plain(house: House) -> Story:
    return Story(house.pod("web", "app", "side"), "app")


async def everything(house: House) -> Story:
    house.runtime.conduct(Conduct(stops_after=0.3))
    return Story(house.pod("web", "app", "side"), ordered_recreate=True, min_started_seconds=0.5)


async def side_by_side(house: House) -> Story:
    return Story(house.pod("web", "app", "side"), min_started_seconds=0.2)


async def update(house: House) -> Story:
    story = Story(
        house.pod("web", "app", "side"),
        RecreateTarget(name="app", image=NEXT, probe=Probe(exec=["ready"], period_seconds=0.2)),
    )
    story.image = NEXT
    return story


async def environment(house: House) -> Story:
    story = Story(house.pod("web", "app", "side"), RecreateTarget(name="app", env=ENV))
    story.results = {"Succeeded", "Failed"}
    return story


async def failing(house: House) -> Story:
    house.runtime.conduct(Conduct(exits_after=0.4, exit_code=1), image=BAD)
    story = Story(house.pod("web", "app", "side"), RecreateTarget(name="app", image=BAD), min_started_seconds=1)
    story.results = {"Failed"}
    return story


async def unstartable(house: House) -> Story:
    house.runtime.conduct(Conduct(start_error="no such file"), image=BAD)
    story = Story(house.pod("web", "app", "side"), RecreateTarget(name="app", image=BAD))
    story.results = {"Failed"}
    return story


async def hooked(house: House) -> Story:
    pod = house.pod("web", "side")
    annotations = {"io.kubernetes.container.preStopHandler": '{"exec": {"command": ["drain"]}}'}
    house.runtime.add_container(pod, "app", APP, annotations=annotations)
    return Story(pod, "app")


async def crashed(house: House) -> Story:
    pod = house.pod("web", "app", "side")
    house.runtime.end(house.running(pod, "app").id, 1)
    return Story(pod, "app")


async def kubelet(house: House) -> Story:
    story = Story(house.pod("web", "app", "side", kubelet=True), "app", min_started_seconds=0.2)
    story.kubelet = True
    return story


SCENES = [plain, everything, side_by_side, update, environment, failing, unstartable, hooked, crashed, kubelet]
CALLS = ("create", "start", "stop", "remove", "exec")


async def finished(house: House, story: Story, request: str) -> RecreateStatus:
    done = await house.ended(request, limit=1000)
    await house.quiet(limit=1000)
    return done


def check(house: House, story: Story, done: RecreateStatus) -> None:
    """What must hold, whatever happened."""
    assert done.result in story.results, done
    for name in story.names:
        house.running(story.pod, name)
        left = [state for _, state in house.states(story.pod, name) if state != "running"]
        assert left == (["exited"] if story.kubelet and name == "app" else []), house.states(story.pod, name)
    if done.result == "Succeeded":
        assert house.running(story.pod, "app").config["image"]["image"] == story.image
        assert house.running(story.pod, "app").attempt >= 1
    elif only(done).reason == "EnvironmentLost":
        assert house.states(story.pod, "app") == [(0, "running")]
        assert not house.watch.calls or {call for call, _ in house.watch.calls} <= {"create", "remove"}
    assert not house.watch.forbidden, house.watch.forbidden


async def asked(house: House, story: Story) -> str:
    """Ask until somebody has heard it: whoever asks does not know of crashes."""
    while True:
        try:
            return (await house.ask(story.pod, *story.targets, name="once", **story.how)).id
        except StokerError:
            await asyncio.sleep(0.05)


async def told(house: House, story: Story, directory: Path, disturb: Callable[[House], None]) -> bool:
    """Tell a story that is disturbed at some moment; say whether that moment came."""
    await house.start()
    disturb(house)
    beside = Kubelet(house, story.pod, delay=0.3)
    if story.kubelet:
        await beside.__aenter__()
    came = False
    try:
        asking = asyncio.create_task(asked(house, story))
        while True:
            await asyncio.sleep(0.05)
            if house.link.cut:
                came = True
                await house._end()
                await house.start()
            if not house.runtime.ready:
                came = True
                await asyncio.sleep(0.4)
                house.runtime.restart()
            if asking.done():
                known = {each.id: each.phase for each in house.service.recreates()}
                if known.get(asking.result()) == "Completed" and not house.service._sweeper.pending:
                    break
        done = await finished(house, story, asking.result())
        came = came or house.runtime.restarts > 0
        if story.kubelet:
            assert beside.restarts["app"] == 1
        check(house, story, done)
    finally:
        if story.kubelet:
            await beside.__aexit__()
        await house.stop()
    return came


@pytest.mark.parametrize("scene", SCENES)
def test_stokerd_is_killed_at_any_step(scene: Scene) -> None:
    async def run(step: int) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            house = House(Path(directory))
            story = await scene(house)
            return await told(house, story, Path(directory), lambda house: virtual_loop().at_step(step, house.sever))

    at_every_step(run, least=20, stride=3)


@pytest.mark.parametrize("scene", SCENES)
def test_containerd_is_killed_at_any_step(scene: Scene) -> None:
    async def run(step: int) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            house = House(Path(directory))
            story = await scene(house)
            return await told(
                house, story, Path(directory), lambda house: virtual_loop().at_step(step, house.runtime.crash)
            )

    at_every_step(run, least=20, stride=3)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_stokerd_is_killed_around_each_action(scene: Scene, when: str) -> None:
    """Before it is done, and when it is done and nobody has been told."""

    async def run(number: int) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            house = House(Path(directory))
            story = await scene(house)
            count = itertools.count()

            def hit(_call: str) -> None:
                if next(count) == number:
                    house.sever()

            return await told(house, story, Path(directory), lambda house: setattr(house.watch, when, hit))

    for number in itertools.count():
        if not run_virtual(run(number)):
            assert number >= 1
            return
