"""Starts that were interrupted: neither a killed stokerd nor a killed containerd makes a good container a bad one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stoker.objects.containers import EnvVar, RecreateTarget
from stokerd.errors import RuntimeBusy, RuntimeFailure
from stokerd.runtime.memory_conduct import Conduct
from tests.unit.containers.house import NEXT, House, only, turns
from tests.unit.images.virtual import virtual


def changed() -> RecreateTarget:
    return RecreateTarget(name="app", image=NEXT, env=[EnvVar(name="TOKEN", value="kept")])


@virtual
async def test_a_start_that_containerd_could_not_make_after_its_restart_is_made_afresh(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        hold = house.runtime.hold("cri.StartContainer")
        asked = await house.ask(pod, changed())
        await hold.reached.wait()
        house.runtime.conduct(Conduct(start_error="its pipes are gone"), image=NEXT, times=1)
        house.runtime.crash()
        hold.release()
        await turns()
        house.runtime.restart()
        done = await house.ended(asked.id)
        assert done.result == "Succeeded", only(done).message
        new = house.running(pod, "app")
        assert {entry["key"]: entry["value"] for entry in new.config["envs"]}["TOKEN"] == "kept"
        assert new.config["image"]["image"] == NEXT
        await house.swept(pod)
        assert house.states(pod, "app") == [(new.attempt, "running")]


@virtual
async def test_a_start_that_fell_with_stokerd_is_made_afresh_with_its_environment(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        house.runtime.conduct(Conduct(start_error="context canceled"), image=NEXT, times=1)
        hold = house.runtime.hold("cri.StartContainer")
        asked = await house.ask(pod, changed())
        await hold.reached.wait()
        await asyncio.sleep(1)
        await house.kill()
        hold.release()
        created = next(each for each in house.of(pod, "app") if each.state == "created")
        with pytest.raises(RuntimeFailure):  # the call of the one that was killed comes to its end in containerd
            await house.runtime.containers.start(created.id)
        assert house.states(pod, "app") == [(0, "exited"), (1, "exited")]
        await house.start()
        done = await house.ended(asked.id)
        assert done.result == "Succeeded", only(done).message
        new = house.running(pod, "app")
        assert {entry["key"]: entry["value"] for entry in new.config["envs"]}["TOKEN"] == "kept"
        await house.swept(pod)
        assert house.states(pod, "app") == [(new.attempt, "running")]


@virtual
async def test_a_containerd_that_does_not_know_what_became_of_a_start_gets_another(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        hold = house.runtime.hold("cri.StartContainer:done")
        asked = await house.ask(pod, changed())
        await hold.reached.wait()
        house.runtime.crash()
        started = house.running(pod, "app")
        house.runtime.end(started.id, 255, "Unknown")
        hold.release()
        await turns()
        house.runtime.restart()
        done = await house.ended(asked.id)
        assert done.result == "Succeeded", only(done).message
        assert house.running(pod, "app").attempt == 2
        await house.swept(pod)
        assert house.states(pod, "app") == [(2, "running")]


@virtual
async def test_what_containerd_is_starting_already_is_waited_for(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        busy = RuntimeBusy("container is already in starting state", call="cri.StartContainer")
        house.runtime.fail("cri.StartContainer", busy, times=8)
        done = await house.recreated(pod, "app")
        assert done.result == "Succeeded", only(done).message
        assert house.running(pod, "app").attempt == 1


@virtual
async def test_a_container_that_fails_twice_is_to_blame(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        house.runtime.conduct(Conduct(start_error="no such program"), image=NEXT)
        hold = house.runtime.hold("cri.StartContainer")
        asked = await house.ask(pod, changed())
        await hold.reached.wait()
        house.runtime.crash()
        hold.release()
        await turns()
        house.runtime.restart()
        done = await house.ended(asked.id)
        assert (done.result, only(done).reason) == ("Failed", "RolledBack"), done
        assert "no such program" in only(done).message
