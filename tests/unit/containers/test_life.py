"""The room's own life: restarts, parking, leftovers, settings, and what is never written down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace as struct_replace
from prometheus_client import generate_latest

from stoker.objects.containers import EnvVar, RecreateTarget
from stokerd.journal.rows import RecreateRow, TargetRow
from stokerd.runtime.memory_conduct import Conduct
from stokerd.settings import ContainerSettings
from tests.unit.containers.house import APP, NEXT, House, only, turns
from tests.unit.images.virtual import virtual

SECRET = "hunter2-hunter2"


def files_with(text: str, directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if text.encode() in path.read_bytes()]


class TestParking:
    @virtual
    async def test_a_stop_waits_until_no_container_is_between_two(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.conduct(Conduct(stops_after=5), times=1)
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct(starts_after=2))
            request = await house.ask(pod, "app", min_started_seconds=100)
            await asyncio.sleep(1)
            begun = house.clock.time()
            await house.service.park(60)
            assert 5.9 < house.clock.time() - begun < 6.5
            assert house.states(pod, "app") == [(0, "exited"), (1, "running")]
            await house.stop()
            await house.start()
            assert (await house.ended(request.id)).result == "Succeeded"

    @virtual
    async def test_a_stop_waits_for_what_is_about_to_be_between_two(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """stokerd is told to stop while the journal takes its time to write that the container will be stopped."""
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            save, saving = house.journal.save, asyncio.Event()

            async def slow(requests: Iterable[RecreateRow], targets: Iterable[TargetRow]) -> None:
                rows = list(targets)
                if any(each.committed_at is not None for each in rows) and not saving.is_set():
                    saving.set()
                    await asyncio.sleep(2)
                await save(requests, rows)

            monkeypatch.setattr(house.journal, "save", slow)
            house.runtime.conduct(Conduct(starts_after=2))
            request = await house.ask(pod, "app")
            await saving.wait()
            await house.service.park(60)
            await house.stop()
            assert house.states(pod, "app")[-1] == (1, "running")
            await house.start()
            assert (await house.ended(request.id)).result == "Succeeded"

    @virtual
    async def test_what_was_not_begun_waits_for_the_next_start(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            prepared = await house.ask(pod, "app", unready_grace_period_seconds=30)
            await asyncio.sleep(1)
            await house.service.park(60)
            queued = await house.ask(house.pod("other", "app"), "app")
            await asyncio.sleep(100)
            assert house.states(pod, "app") == [(0, "running"), (1, "created")]
            assert house.service.recreate_status(queued.id).phase == "Pending"
            await house.stop()
            await house.start()
            assert (await house.ended(prepared.id)).result == "Succeeded"
            assert (await house.ended(queued.id)).result == "Succeeded"

    @virtual
    async def test_a_stop_waits_no_longer_than_it_may(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.conduct(Conduct(ignores_term=True), times=1)
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app", termination_grace_period_seconds=50)
            await asyncio.sleep(1)
            begun = house.clock.time()
            await house.service.park(10)
            assert 9.9 < house.clock.time() - begun < 10.1
            await house.stop()
            await house.start()
            assert (await house.ended(request.id)).result == "Succeeded"

    @virtual
    async def test_the_room_may_run_again_after_it_has_failed(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            request = await house.ask(pod, "app", unready_grace_period_seconds=5)
            waiting = await house.ask(pod, "side")
            await asyncio.sleep(1)
            await house._end()
            house.run()
            assert (await house.ended(request.id)).result == "Succeeded"
            assert (await house.ended(waiting.id)).result == "Succeeded"


class TestSecrets:
    @virtual
    async def test_values_are_in_no_file_and_in_no_answer(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct(start_error=f"cannot start with {SECRET}"), image=NEXT)
            target = RecreateTarget(name="app", image=NEXT, env=[EnvVar(name="TOKEN", value=SECRET)])
            done = await house.recreated(pod, target)
            assert "cannot start with [redacted]" in only(done).message
            assert SECRET not in repr(done) + repr(house.service._book.jobs[0].__dict__)
            assert files_with(SECRET, tmp_path) == []

    @virtual
    async def test_an_environment_that_was_lost_is_said_to_be(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            await house.ask(pod, "side", unready_grace_period_seconds=5)
            request = await house.ask(pod, RecreateTarget(name="app", env=[EnvVar(name="TOKEN", value=SECRET)]))
            await house.kill()
            await house.start()
            done = await house.ended(request.id)
            assert (done.result, only(done).reason, only(done).hint) == ("Failed", "EnvironmentLost", "ask again")
            assert house.states(pod, "app") == [(0, "running")]

    @virtual
    async def test_one_that_reached_the_runtime_is_not_lost(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            target = RecreateTarget(name="app", env=[EnvVar(name="TOKEN", value=SECRET)])
            request = await house.ask(pod, target, unready_grace_period_seconds=5)
            await asyncio.sleep(1)
            await house.kill()
            await house.start()
            assert (await house.ended(request.id)).result == "Succeeded"
            assert house.running(pod, "app").config["envs"] == [{"key": "TOKEN", "value": SECRET}]


class TestLeftovers:
    @virtual
    async def test_what_was_made_and_never_started_goes_at_the_start(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            await house.stop()
            ours = {"stoker.dev/recreate": "recreate-unknown", "stoker.dev/recreate-role": "new"}
            house.runtime.add_container(pod, "app", APP, attempt=1, labels=ours, running=False)
            house.runtime.add_container(pod, "last", APP, attempt=1, labels=ours, running=False)
            house.runtime.add_container(pod, "app", APP, attempt=2, running=False)
            await house.start()
            await house.quiet()
            assert house.states(pod, "app") == [(0, "running"), (2, "created")]
            assert house.states(pod, "last") == [(1, "created")]

    @virtual
    async def test_what_could_not_be_removed_is_removed_later(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.fail("cri.RemoveContainer", "busy")
            done = await house.recreated(pod, "app")
            assert done.result == "Succeeded"
            await turns()
            assert house.states(pod, "app") == [(0, "exited"), (1, "running")]
            await asyncio.sleep(130)
            assert house.states(pod, "app") == [(1, "running")]


@virtual
async def test_settings_hold_from_now_on(tmp_path: Path) -> None:
    async with House(tmp_path, max_parallel=1) as house:
        pods = [house.pod(f"p{number}", "app") for number in range(3)]
        asked = [await house.ask(pod, "app", unready_grace_period_seconds=100) for pod in pods]
        assert house.service._lanes.waiting == 2
        house.service.apply(ContainerSettings(max_parallel=8, active_deadline=7))
        assert house.service._lanes.waiting == 0
        late = await house.ask(house.pod("late", "app"), "app", unready_grace_period_seconds=100)
        assert only(await house.ended(late.id)).reason == "DeadlineExceeded"
        for each in asked:
            assert (await house.ended(each.id)).result == "Succeeded"


@virtual
async def test_what_is_counted(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        await house.recreated(pod, "app")
        house.runtime.fail("cri.CreateContainer", "odd", times=3)
        await house.recreated(pod, "app")
        text = generate_latest(house.registry).decode()
        for line in (
            'stoker_recreates_total{result="succeeded"} 1.0',
            'stoker_recreate_containers_total{reason="Recreated",result="succeeded"} 1.0',
            'stoker_recreate_containers_total{reason="CreateFailed",result="failed"} 1.0',
            "stoker_recreate_downtime_seconds_count 1.0",
            "stoker_recreates_running 0.0",
            "stoker_recreates_waiting 0.0",
        ):
            assert line in text


@virtual
async def test_a_request_that_nobody_understands_any_more_is_left_aside(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        done = await house.recreated(pod, "app")
        ((row, targets),) = await house.journal.requests()
        await house.journal.save([struct_replace(row, spec="{}", phase="Pending")], targets)
        await house.kill()
        await house.start()
        assert house.service.recreates() == []
        assert (await house.recreated(pod, "app")).result == "Succeeded"
        assert done.id not in {each.id for each in house.service.recreates()}
