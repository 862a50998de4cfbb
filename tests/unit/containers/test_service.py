"""Requests to recreate, on a node in memory: what happens, in which order, and what is left."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.objects.containers import EnvVar, Probe, RecreateRequest, RecreateTarget
from stoker.objects.images import InlineAuth
from stokerd.errors import Conflict, InvalidInput, JournalError, NotFound, RuntimeFailure, RuntimeTimeout
from stokerd.runtime.memory_conduct import Conduct
from stokerd.runtime.pod_types import ExecResult
from tests.unit.containers.house import APP, BAD, MISSING, NEXT, House, Kubelet, events_of, only, turns
from tests.unit.images.virtual import virtual

HOOK = "io.kubernetes.container.preStopHandler"


def hooked(handler: Any) -> dict[str, str]:
    return {HOOK: json.dumps(handler)}


class TestSwap:
    @virtual
    async def test_the_new_container_is_there_before_the_old_one_is_stopped(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            old, side = house.running(pod, "app"), house.running(pod, "side")
            done = await house.recreated(pod, "app")
            assert (done.phase, done.result, done.message) == ("Completed", "Succeeded", "")
            state = only(done)
            new = house.running(pod, "app")
            assert (state.phase, state.reason, state.is_killed) == ("Succeeded", "Recreated", True)
            assert (state.old_id, state.old_attempt, state.new_id, state.new_attempt) == (old.id, 0, new.id, 1)
            await house.swept(pod)
            assert house.watch.calls == [
                ("create", ""),
                ("stop", old.id),
                ("start", new.id),
                ("remove", old.id),
            ]
            assert house.states(pod, "app") == [(1, "running")]
            assert house.running(pod, "side") is side

    @virtual
    async def test_few_calls_are_made_on_the_way(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            await asyncio.sleep(5)
            await house.service.pods()
            before = house.runtime.calls.copy()
            await house.recreated(pod, "app")
            made = house.runtime.calls - before
            assert made == {
                "cri.ListContainers": 2,
                "cri.PodSandboxStatus": 1,
                "cri.ContainerStatus": 1,
                "cri.CreateContainer": 1,
                "cri.StopContainer": 1,
                "cri.StartContainer": 1,
            }

    @virtual
    async def test_the_configuration_stays_but_for_what_was_asked(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web")
            house.runtime.add_container(
                pod, "app", APP, env={"A": "1", "B": "2"}, labels={"x": "y"}, annotations={"n": "o"}, log_path="app.log"
            )
            env = [EnvVar(name="B", value="3"), EnvVar(name="C", value="4"), EnvVar(name="A")]
            done = await house.recreated(pod, RecreateTarget(name="app", image=NEXT, env=env))
            assert done.result == "Succeeded", done
            config = house.running(pod, "app").config
            assert config["envs"] == [{"key": "B", "value": "3"}, {"key": "C", "value": "4"}]
            assert config["image"]["image"] == NEXT
            assert (config["log_path"], config["annotations"]) == ("app.log", {"n": "o"})
            assert config["labels"] == {"x": "y", "stoker.dev/recreate": done.id, "stoker.dev/recreate-role": "new"}
            assert only(done).image == NEXT
            again = await house.recreated(pod, "app")
            assert house.running(pod, "app").config["image"]["image"] == NEXT
            assert house.running(pod, "app").config["labels"]["stoker.dev/recreate"] == again.id

    @virtual
    async def test_all_that_run_go_in_the_order_of_their_start(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web")
            for name in ("late", "early", "middle"):
                house.runtime.add_container(pod, name, APP)
                await asyncio.sleep(1)
            house.runtime.add_container(pod, "ended", APP)
            house.runtime.end(house.running(pod, "ended").id)
            done = await house.recreated(pod, ordered_recreate=True)
            assert [each.name for each in done.containers] == ["late", "early", "middle"]
            started = [house.running(pod, name).started_at for name in ("late", "early", "middle")]
            assert started == sorted(started)  # type: ignore[type-var]
            assert house.states(pod, "ended") == [(0, "exited")]

    @virtual
    async def test_side_by_side_nothing_is_stopped_before_all_are_prepared(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "a", "b", "c")
            house.runtime.conduct(Conduct(stops_after=5))
            house.pod("x")
            house.runtime.fail("cri.CreateContainer", "no room", of="b", times=3)
            done = await house.recreated(pod, "a", "b", "c")
            assert done.result == "Failed"
            assert [each.reason for each in done.containers] == ["Skipped", "CreateFailed", "Skipped"]
            assert "no room" in done.containers[1].message
            assert {call for call, _ in house.watch.calls} == {"create", "remove"}
            assert [house.states(pod, name) for name in "abc"] == [[(0, "running")]] * 3

    @virtual
    async def test_with_ignore_the_others_go_on(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "a", "b", "c")
            house.runtime.fail("cri.CreateContainer", "no room", of="b", times=3)
            done = await house.recreated(pod, "a", "b", "c", failure_policy="Ignore", ordered_recreate=True)
            assert (done.result, done.message) == ("Failed", "2 of 3 containers are done; not done: b")
            assert [each.reason for each in done.containers] == ["Recreated", "CreateFailed", "Recreated"]

    @virtual
    async def test_what_ignores_the_signal_is_killed_after_the_grace(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.conduct(Conduct(ignores_term=True))
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct())
            old = house.running(pod, "app")
            done = await house.recreated(pod, "app", termination_grace_period_seconds=7)
            assert done.result == "Succeeded"
            assert old.signals == ["TERM", "KILL"]
            assert 6.9 < (old.finished_at - old.started_at).total_seconds() < 7.2  # type: ignore[operator]

    @virtual
    async def test_downtime_is_from_the_end_to_the_start(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct(starts_after=2))
            state = only(await house.recreated(pod, "app"))
            assert 2 <= state.downtime_seconds < 2.1

    @virtual
    async def test_a_crashed_container_is_started_without_a_stop(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.end(house.running(pod, "app").id, 1)
            done = await house.recreated(pod, "app")
            assert (done.result, only(done).is_killed) == ("Succeeded", False)
            assert "stop" not in {call for call, _ in house.watch.calls}
            await house.swept(pod)
            assert house.states(pod, "app") == [(1, "running")]

    @virtual
    async def test_before_anything_is_stopped_load_balancers_have_their_time(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            begun = house.clock.time()
            old = house.running(pod, "app")
            await house.recreated(pod, "app", unready_grace_period_seconds=30)
            assert old.finished_at is not None
            assert 30 <= old.finished_at.timestamp() - begun < 30.5


class TestProving:
    @virtual
    async def test_a_new_container_has_to_stay_up(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            begun = house.clock.time()
            done = await house.recreated(pod, "app", min_started_seconds=10)
            assert done.result == "Succeeded"
            assert 10 <= house.clock.time() - begun < 10.5

    @virtual
    async def test_an_update_that_falls_is_rolled_back(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            side = house.running(pod, "side")
            house.runtime.conduct(Conduct(exits_after=3, exit_code=3, reason="OOMKilled"), image=NEXT)
            done = await house.recreated(pod, RecreateTarget(name="app", image=NEXT), min_started_seconds=10)
            state = only(done)
            assert (done.result, state.reason, state.rolled_back) == ("Failed", "RolledBack", True)
            assert "exited with status 3 (OOMKilled)" in state.message
            back = house.running(pod, "app")
            assert (back.config["image"]["image"], state.new_id, back.attempt) == (APP, back.id, 2)
            await house.swept(pod)
            assert house.states(pod, "app") == [(2, "running")]
            assert house.running(pod, "side") is side

    @virtual
    async def test_one_that_falls_at_once_is_seen(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct(exits_after=0, exit_code=1), image=BAD)
            done = await house.recreated(pod, RecreateTarget(name="app", image=BAD))
            assert only(done).reason == "RolledBack"
            assert house.running(pod, "app").attempt == 2

    @virtual
    async def test_one_that_cannot_be_started_is_rolled_back(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct(start_error="exec: no such file"), image=BAD)
            state = only(await house.recreated(pod, RecreateTarget(name="app", image=BAD)))
            assert (state.reason, state.rolled_back) == ("RolledBack", True)
            assert "could not be started: exec: no such file" in state.message
            await house.swept(pod)
            assert house.states(pod, "app") == [(2, "running")]

    @virtual
    async def test_a_roll_back_that_fails_is_said_to_have_and_nothing_is_thrown_away(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct(start_error="broken node"))
            done = await house.recreated(pod, RecreateTarget(name="app", image=NEXT))
            state = only(done)
            assert (done.result, state.reason, state.rolled_back) == ("Failed", "RollbackFailed", False)
            assert "no container of this name runs now" in state.message
            await house.swept(pod)
            assert (0, "exited") in house.states(pod, "app")
            house.runtime.conduct(Conduct())
            again = await house.recreated(pod, "app")
            assert again.result == "Succeeded"

    @virtual
    async def test_a_probe_that_fails_brings_the_old_one_back_before_the_new_one_goes(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.on_exec(ExecResult(1), argv=["ready"])
            probe = Probe(exec=["ready"], period_seconds=2, failure_threshold=3)
            begun = house.clock.time()
            state = only(await house.recreated(pod, RecreateTarget(name="app", image=NEXT, probe=probe)))
            assert (state.reason, state.rolled_back) == ("RolledBack", True)
            assert "the probe failed 3 times in a row: the command ended with status 1" in state.message
            assert 4 <= house.clock.time() - begun < 5
            assert [call for call, _ in house.watch.calls if call != "exec"][:6] == [
                "create", "stop", "start", "create", "stop", "start"
            ]  # fmt: skip

    @virtual
    async def test_a_probe_that_succeeds_ends_the_wait(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.on_exec(ExecResult(0), argv=["ready"])
            house.runtime.on_exec(ExecResult(1), argv=["ready"], times=2)
            done = await house.recreated(pod, RecreateTarget(name="app", probe=Probe(exec=["ready"])))
            assert done.result == "Succeeded"
            assert len([call for call, _ in house.watch.calls if call == "exec"]) == 3


class TestImages:
    @virtual
    async def test_a_new_image_is_warmed_first_with_the_credentials_of_the_request(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            auth = InlineAuth(registry="registry.test", username="u", password="p")
            done = await house.recreated(pod, RecreateTarget(name="app", image=NEXT), auths=[auth])
            assert done.result == "Succeeded"
            assert house.warmer.warmed == [(NEXT, (auth,))]

    @virtual
    async def test_an_image_that_is_nowhere_touches_nothing(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            state = only(await house.recreated(pod, RecreateTarget(name="app", image=MISSING)))
            assert state.reason == "WarmFailed"
            assert "(RuntimeNotFound): " in state.message  # the pull's own reason, for whoever sorts by it
            assert house.watch.calls == []
            assert house.states(pod, "app") == [(0, "running")]

    @virtual
    async def test_the_old_image_is_pulled_again_when_it_is_gone(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            await house.runtime.cri.remove(APP)
            done = await house.recreated(pod, "app")
            assert done.result == "Succeeded", done
            assert house.warmer.warmed == [(APP, ())]

    @virtual
    async def test_an_old_image_that_cannot_be_pulled_touches_nothing(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.runtime.add_pod("web")
            house.runtime.add_container(pod, "app", MISSING)
            await house.runtime.cri.remove(MISSING)
            house.runtime.remote.answer(MISSING, 404, times=100)
            state = only(await house.recreated(pod, "app"))
            assert state.reason == "ImageGone", state
            assert house.states(pod, "app") == [(0, "running")]


class TestHooks:
    @virtual
    async def test_the_hook_runs_before_the_stop_and_shares_the_grace(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web")
            house.runtime.conduct(Conduct(ignores_term=True), name="app", times=1)
            house.runtime.add_container(pod, "app", APP, annotations=hooked({"exec": {"command": ["drain"]}}))
            house.runtime.on_exec(ExecResult(0), argv=["drain"], takes=4)
            begun = house.clock.time()
            done = await house.recreated(pod, "app", termination_grace_period_seconds=10)
            assert (done.result, only(done).message) == ("Succeeded", "runs as attempt 1")
            assert [call for call, _ in house.watch.calls][:4] == ["create", "exec", "stop", "start"]
            assert 10 <= house.clock.time() - begun < 10.5

    @virtual
    async def test_a_hook_that_hangs_leaves_two_seconds(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web")
            house.runtime.conduct(Conduct(ignores_term=True), name="app", times=1)
            house.runtime.add_container(pod, "app", APP, annotations=hooked({"exec": {"command": ["drain"]}}))
            house.runtime.on_exec(ExecResult(0), argv=["drain"], takes=1000)
            begun = house.clock.time()
            state = only(await house.recreated(pod, "app", termination_grace_period_seconds=10))
            assert state.phase == "Succeeded"
            assert "preStop: the command did not end within 8 s" in state.message
            assert 10 <= house.clock.time() - begun < 10.5

    @pytest.mark.parametrize(
        "handler", ["}", "[]", '{"exec": {"command": []}}', '{"httpGet": {"port": 1, "host": "x"}}']
    )
    @virtual
    async def test_a_hook_that_is_none_is_noted(self, tmp_path: Path, handler: str) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web")
            house.runtime.add_container(pod, "app", APP, annotations={HOOK: handler})
            state = only(await house.recreated(pod, "app"))
            assert state.phase == "Succeeded"
            assert "preStop: the hook was not run" in state.message

    @virtual
    async def test_the_pods_own_grace_holds_where_the_request_says_none(self, tmp_path: Path) -> None:
        async with House(tmp_path, grace=40) as house:
            pod = house.pod("web")
            house.runtime.conduct(Conduct(ignores_term=True), times=2)
            key = "io.kubernetes.pod.terminationGracePeriod"
            house.runtime.add_container(pod, "app", APP, annotations={key: "20"})
            house.runtime.add_container(pod, "other", APP)
            for name, grace in (("app", 20), ("other", 40)):
                begun = house.clock.time()
                await house.recreated(pod, name)
                assert grace <= house.clock.time() - begun < grace + 0.5


class TestKubelet:
    @virtual
    async def test_the_next_attempt_is_waited_for(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side", kubelet=True)
            old = house.running(pod, "app")
            async with Kubelet(house, pod) as kubelet:
                done = await house.recreated(pod, "app", min_started_seconds=2)
            state = only(done)
            assert (done.owner, done.result, state.reason) == ("kubelet", "Succeeded", "Recreated")
            assert house.watch.calls == [("stop", old.id)]
            assert (state.new_id, kubelet.restarts) == (house.running(pod, "app").id, {"app": 1})
            assert 0 < state.downtime_seconds <= 0.6
            await house.swept(pod)
            assert house.states(pod, "app") == [(0, "exited"), (1, "running")]

    @virtual
    async def test_a_kubelet_that_does_not_start_it_is_given_until_the_deadline(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", kubelet=True)
            done = await house.recreated(pod, "app", active_deadline_seconds=60)
            assert (done.result, only(done).reason) == ("Failed", "DeadlineExceeded")
            assert "has not started it again" in only(done).message

    @virtual
    async def test_an_attempt_that_falls_is_followed_by_the_next(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", kubelet=True)
            house.runtime.conduct(Conduct(exits_after=1, exit_code=7), name="app", times=2)
            async with Kubelet(house, pod):
                done = await house.recreated(pod, "app", min_started_seconds=3)
            assert done.result == "Succeeded"
            assert only(done).new_attempt == 3

    @virtual
    async def test_one_that_is_down_already_is_waited_for(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", kubelet=True)
            house.runtime.end(house.running(pod, "app").id, 1)
            async with Kubelet(house, pod, delay=20):
                done = await house.recreated(pod, "app")
            assert (done.result, only(done).reason, only(done).is_killed) == ("Succeeded", "Recreated", False)
            assert house.watch.calls == []

    @virtual
    async def test_events_are_not_needed(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.node.on_event = lambda event: None
            pod = house.pod("web", "app", kubelet=True)
            async with Kubelet(house, pod):
                done = await house.recreated(pod, "app")
            assert done.result == "Succeeded"

    @pytest.mark.parametrize(
        "target", [RecreateTarget(name="app", image=NEXT), RecreateTarget(name="app", env=[EnvVar(name="A")])]
    )
    @virtual
    async def test_changes_are_refused(self, tmp_path: Path, target: RecreateTarget) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", kubelet=True)
            with pytest.raises(InvalidInput, match="kubelet") as caught:
                await house.ask(pod, target)
            assert "API server" in (caught.value.hint or "")
            assert house.service.recreates() == []


class TestOthers:
    @virtual
    async def test_what_something_else_restarted_is_left_alone(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            other = await meanwhile_restarted(house, pod)
            done = await house.ended("first")
            assert (done.result, only(done).reason) == ("Succeeded", "RestartedBySomethingElse")
            assert house.running(pod, "app").id == other
            assert house.watch.calls == []

    @virtual
    async def test_a_change_that_was_not_made_is_no_success(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            await meanwhile_restarted(house, pod, RecreateTarget(name="app", image=NEXT))
            done = await house.ended("first")
            assert (done.result, only(done).reason) == ("Failed", "RestartedBySomethingElse")

    @virtual
    async def test_with_force_the_one_that_is_there_is_recreated_once(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            other = await meanwhile_restarted(house, pod, force_recreate=True)
            house.watch.asked.add(other)
            done = await house.ended("first")
            assert (done.result, only(done).reason, only(done).old_id) == ("Succeeded", "Recreated", other)
            assert house.running(pod, "app").attempt == 6

    @virtual
    async def test_under_a_kubelet_too(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", kubelet=True)
            await meanwhile_restarted(house, pod)
            done = await house.ended("first")
            assert (done.result, only(done).reason) == ("Succeeded", "RestartedBySomethingElse")

    @virtual
    async def test_a_sandbox_that_is_gone(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            await house.runtime.pods.stop(pod)
            done = await house.recreated(pod, "app")
            assert (done.result, only(done).reason) == ("Failed", "SandboxGone")
            assert house.watch.calls == []

    @virtual
    async def test_a_sandbox_that_goes_while_the_old_one_is_stopped(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.conduct(Conduct(stops_after=5), times=1)
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app")
            await asyncio.sleep(1)
            await house.runtime.pods.stop(pod)
            done = await house.ended(request.id)
            assert only(done).reason == "SandboxGone"

    @virtual
    async def test_a_container_that_was_removed(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app", unready_grace_period_seconds=10)
            await asyncio.sleep(1)
            await house.runtime.containers.remove(house.running(pod, "app").id)
            done = await house.ended(request.id)
            assert only(done).reason in {"ContainerGone", "Recreated"}


async def meanwhile_restarted(house: House, pod: str, *targets: RecreateTarget, **how: Any) -> str:
    """Let something else restart a container while the request ("first") waits behind another one."""
    house.runtime.add_container(pod, "slow", APP)
    slow = await house.ask(pod, "slow", unready_grace_period_seconds=10)
    await house.ask(pod, *(targets or ("app",)), name="first", **how)
    old = house.running(pod, "app")
    house.runtime.end(old.id)
    other = house.runtime.add_container(pod, "app", APP, attempt=5)
    await house.service.cancel_recreate(slow.id)
    await house.ended(slow.id)
    house.watch.calls.clear()
    return other


class TestLine:
    @virtual
    async def test_requests_on_one_pod_follow_each_other_at_once(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "one", "two")
            house.runtime.conduct(Conduct(starts_after=1))
            asked = [await house.ask(pod, name) for name in ("one", "two", "one")]
            assert [each.waiting_for for each in asked] == ["", asked[0].id, asked[1].id]
            ended = [await house.ended(each.id) for each in asked]
            assert [each.result for each in ended] == ["Succeeded"] * 3, ended
            assert [only(each).reason for each in ended] == ["Recreated"] * 3
            for before, after in itertools.pairwise(ended):
                assert before.finished_at is not None
                assert after.started_at is not None
                assert 0 <= (after.started_at - before.finished_at).total_seconds() < 0.01
            assert house.running(pod, "one").attempt == 2

    @virtual
    async def test_pods_go_side_by_side_up_to_the_limit(self, tmp_path: Path) -> None:
        async with House(tmp_path, max_parallel=2) as house:
            house.runtime.conduct(Conduct(starts_after=10))
            begun = house.clock.time()
            pods = [house.runtime.add_pod(f"p{number}") for number in range(5)]
            for pod in pods:
                house.runtime.conduct(Conduct(), times=1)
                house.runtime.add_container(pod, "app", APP)
            asked = [await house.ask(pod, "app") for pod in pods]
            await asyncio.gather(*(house.ended(each.id) for each in asked))
            assert 30 <= house.clock.time() - begun < 31

    @virtual
    async def test_waiting_has_a_deadline(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            await house.ask(pod, "app", unready_grace_period_seconds=1000, active_deadline_seconds=2000)
            done = await house.recreated(pod, "side", active_deadline_seconds=5)
            assert (done.result, only(done).reason) == ("Failed", "DeadlineExceeded")
            assert house.states(pod, "side") == [(0, "running")]

    @virtual
    async def test_the_same_request_is_the_same(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            first, again = await asyncio.gather(house.ask(pod, "app", name="once"), house.ask(pod, "app", name="once"))
            assert first.id == again.id
            await house.ended(first.id)
            assert (await house.ask(pod, "app", name="once")).phase == "Completed"
            with pytest.raises(Conflict, match="another content"):
                await house.ask(pod, name="once")
            assert house.running(pod, "app").attempt == 1
            await house.kill()
            await house.start()
            assert (await house.ask(pod, "app", name="once")).id == first.id

    @virtual
    async def test_a_request_is_forgotten_in_time(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            done = await house.recreated(pod, "app", ttl_seconds_after_finished=100)
            await asyncio.sleep(90)
            assert house.service.recreate_status(done.id[:14]).id == done.id
            assert house.service.recreate_status(done.id.removeprefix("recreate-")[:5]).id == done.id
            await asyncio.sleep(60)
            with pytest.raises(NotFound):
                house.service.recreate_status(done.id)
            assert await house.journal.requests() == []


class TestCancel:
    @virtual
    async def test_what_waits_is_not_touched(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app", "side")
            await house.ask(pod, "app", unready_grace_period_seconds=100)
            request = await house.ask(pod, "side")
            await house.service.cancel_recreate(request.id)
            done = await house.ended(request.id)
            assert (done.result, only(done).reason) == ("Cancelled", "Cancelled")
            assert house.states(pod, "side") == [(0, "running")]

    @virtual
    async def test_what_is_prepared_is_taken_back(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app", unready_grace_period_seconds=100)
            await asyncio.sleep(1)
            assert house.states(pod, "app") == [(0, "running"), (1, "created")]
            await house.service.cancel_recreate(request.name)
            done = await house.ended(request.id)
            assert done.result == "Cancelled"
            assert house.states(pod, "app") == [(0, "running")]

    @virtual
    async def test_what_is_stopped_is_started_first(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.conduct(Conduct(stops_after=5))
            pod = house.pod("web", "app", "side")
            request = await house.ask(pod, "app", "side", ordered_recreate=True)
            await asyncio.sleep(1)
            await house.service.cancel_recreate(request.id)
            done = await house.ended(request.id)
            assert done.result == "Cancelled"
            assert [each.reason for each in done.containers] == ["Recreated", "Cancelled"]
            assert house.running(pod, "app").attempt == 1
            assert house.running(pod, "side").attempt == 0

    @virtual
    async def test_an_image_being_warmed_is_given_up(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.warmer.hold = asyncio.Event()
            request = await house.ask(pod, RecreateTarget(name="app", image=NEXT))
            await turns()
            await house.service.cancel_recreate(request.id)
            assert (await house.ended(request.id, limit=1)).result == "Cancelled"


class TestDeadline:
    @virtual
    async def test_what_is_not_begun_by_then_has_failed(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.conduct(Conduct(stops_after=8))
            pod = house.pod("web", "a", "b")
            done = await house.recreated(pod, "a", "b", ordered_recreate=True, active_deadline_seconds=5)
            assert [each.reason for each in done.containers] == ["Recreated", "DeadlineExceeded"]
            assert house.running(pod, "a").attempt == 1  # it was stopped, so it was started

    @virtual
    async def test_an_update_that_is_not_proven_by_then_is_rolled_back(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            target = RecreateTarget(name="app", image=NEXT)
            done = await house.recreated(pod, target, min_started_seconds=100, active_deadline_seconds=5)
            assert only(done).reason == "RolledBack"
            assert house.running(pod, "app").config["image"]["image"] == APP

    @virtual
    async def test_a_restart_that_is_not_proven_by_then_stays(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            done = await house.recreated(pod, "app", min_started_seconds=100, active_deadline_seconds=5)
            assert only(done).reason == "DeadlineExceeded"
            await house.swept(pod)
            assert house.states(pod, "app") == [(1, "running")]

    @virtual
    async def test_a_containerd_that_is_away_is_waited_for_no_longer(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app", unready_grace_period_seconds=10, active_deadline_seconds=60)
            await asyncio.sleep(1)
            house.runtime.crash()
            done = await house.ended(request.id)
            assert only(done).reason == "DeadlineExceeded"
            house.runtime.restart()
            await house.swept(pod)
            assert house.states(pod, "app") == [(0, "running")]


class TestRuntimeTrouble:
    @pytest.mark.parametrize("call", ["CreateContainer", "StopContainer", "StartContainer", "ListContainers"])
    @pytest.mark.parametrize("place", ["", ":done"])
    @virtual
    async def test_a_call_that_times_out_is_looked_into(self, tmp_path: Path, call: str, place: str) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app", unready_grace_period_seconds=1)
            house.runtime.fail(f"cri.{call}{place}", RuntimeTimeout("slow"))
            done = await house.ended(request.id)
            assert done.result == "Succeeded", done
            await house.swept(pod)
            assert [state for _, state in house.states(pod, "app")] == ["running"]

    @virtual
    async def test_a_container_that_cannot_be_stopped_stays(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.fail("cri.StopContainer", RuntimeFailure("stuck"), times=100)
            done = await house.recreated(pod, "app")
            assert only(done).reason == "StopFailed"
            await house.swept(pod)
            assert house.states(pod, "app") == [(0, "running")]

    @virtual
    async def test_containerd_away_in_the_middle(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            house.runtime.conduct(Conduct(stops_after=5), times=1)
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app")
            await asyncio.sleep(1)
            house.runtime.crash()
            await asyncio.sleep(100)
            house.runtime.restart()
            done = await house.ended(request.id)
            assert done.result == "Succeeded"
            await house.swept(pod)
            assert house.states(pod, "app") == [(1, "running")]

    @virtual
    async def test_a_journal_that_is_full_refuses_requests_and_holds_none_up(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            request = await house.ask(pod, "app", unready_grace_period_seconds=1)
            house.journal_writable(False)
            done = await house.ended(request.id)
            assert (done.result, house.service.problem) == ("Succeeded", "the journal cannot be written")
            with pytest.raises(JournalError):
                await house.ask(pod, "app")
            assert len(house.service.recreates()) == 1
            house.journal_writable(True)
            await asyncio.sleep(10)
            assert house.service.problem == ""
            ((row, _),) = await house.journal.requests()
            assert row.phase == "Completed"


class TestRequests:
    @virtual
    async def test_what_is_not_there(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            with pytest.raises(NotFound, match="no pod"):
                await house.ask("nowhere", "app")
            with pytest.raises(NotFound, match="no container nope") as caught:
                await house.ask(pod, "nope", "app")
            assert caught.value.hint == "its containers: app"
            house.runtime.add_container(pod, "fresh", APP, running=False)
            with pytest.raises(Conflict, match="not started yet"):
                await house.ask(pod, "fresh")
            with pytest.raises(NotFound, match="no request"):
                house.service.recreate_status("nope")
            house.runtime.end(house.running(pod, "app").id)
            with pytest.raises(Conflict, match="no container of the pod default/web runs"):
                await house.ask(pod)

    @virtual
    async def test_pods_are_found_by_what_people_write(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            for name in ("web", "default/web", "uid-default-web", pod[:10]):
                done = await house.recreated(name, "app")
                assert (done.result, done.pod, done.namespace, done.pod_uid) == (
                    "Succeeded", "web", "default", "uid-default-web"
                )  # fmt: skip

    @virtual
    async def test_the_progress_is_told(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            house.runtime.conduct(Conduct(starts_after=1))
            house.runtime.latency = 0.01
            request = await house.ask(pod, RecreateTarget(name="app", image=NEXT), min_started_seconds=1)
            seen = await events_of(house.service.follow_recreate(request.id))
            steps = [only(each).step for each in seen]
            told = list(dict.fromkeys(steps))
            wanted = ["Warming", "Creating", "Stopping", "Starting"]
            assert [step for step in told if step in wanted] == wanted
            assert (seen[-1].phase, only(seen[-1]).step) == ("Completed", "")

    @virtual
    async def test_a_plan_touches_nothing(self, tmp_path: Path) -> None:
        async with House(tmp_path) as house:
            pod = house.pod("web", "app")
            plan = await house.service.plan(
                RecreateRequest(pod=pod, containers=[RecreateTarget(name="app", image=NEXT)])
            )
            assert [step.action for step in plan.steps] == [
                "warm", "create", "stop", "start", "verify", "remove"
            ]  # fmt: skip
            assert house.watch.calls == []
            assert house.service.recreates() == []
