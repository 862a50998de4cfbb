"""Pods and containers of the in-memory runtime beyond what it shares with containerd: scripts, faults, crashes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from stokerd.errors import (
    RuntimeBusy,
    RuntimeFailure,
    RuntimeInvalid,
    RuntimeNotFound,
    RuntimeTimeout,
    RuntimeUnavailable,
    RuntimeUnsupported,
)
from stokerd.runtime.blueprints import renewed
from stokerd.runtime.memory import MemoryRuntime
from stokerd.runtime.memory_conduct import Conduct
from stokerd.runtime.pod_types import Blueprint, ContainerEvent, ContainerStatus, ExecResult
from tests.unit.images.virtual import virtual, virtual_loop

APP = "registry.test/app:v1"
NEXT = "registry.test/app:v2"


async def status(memory: MemoryRuntime, container: str) -> ContainerStatus:
    found = await memory.containers.status(container)
    assert found is not None
    return found


async def settled() -> None:
    """Let everything run that can run without waiting."""
    for _ in range(50):
        await asyncio.sleep(0)


async def recreated(memory: MemoryRuntime, container: str, image: str | None = None) -> str:
    """Create the next attempt of a container."""
    old = await status(memory, container)
    pod = await memory.pods.status(old.container.pod_id)
    assert pod is not None
    blueprint = renewed(old.blueprint, attempt=old.container.attempt + 1, image=image)
    return await memory.containers.create(pod.pod.id, blueprint, pod.blueprint)


class TestScenes:
    async def test_are_there_at_once(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web", "shop", labels={"app": "web"}, annotations={"a": "b"}, log_directory="/logs")
        runs = memory.add_container(pod, "app", APP, env={"A": "1"}, labels={"x": "y"})
        waits = memory.add_container(pod, "side", APP, running=False)
        (listed,) = await memory.pods.list()
        assert (listed.id, listed.name, listed.namespace, listed.uid) == (pod, "web", "shop", "uid-shop-web")
        assert (listed.labels, listed.annotations, listed.state) == ({"app": "web"}, {"a": "b"}, "ready")
        first = await status(memory, runs)
        assert (first.container.state, first.container.image, first.container.labels) == ("running", APP, {"x": "y"})
        assert first.container.image_ref == (await memory.cri.list())[0].id
        assert (first.log_path, first.pid > 0) == ("/logs/app/0.log", True)
        assert first.blueprint.config["envs"] == [{"key": "A", "value": "1"}]
        assert (await status(memory, waits)).container.state == "created"
        assert await memory.cri.in_use() == {APP, first.container.image_ref}

    async def test_load_what_a_registry_has(self) -> None:
        memory = MemoryRuntime()
        image = memory.remote.add_image(APP, layers=[1000, 2000], index=True)
        assert memory.load_image(APP) == image.id == memory.load_image(APP)
        assert await memory.cri.pull(APP) == image.id
        assert memory.remote.fetched.total() == 0
        memory.collect()
        found = await memory.cri.status(APP)
        assert found is not None
        assert found.repo_digests == (image.by_digest,)
        assert {each.name for each in await memory.snapshots.list()} == set(image.first.chain_ids)


class TestProcesses:
    def test_end_when_they_are_told_to(self) -> None:
        @virtual
        async def run() -> None:
            memory = MemoryRuntime()
            memory.conduct(Conduct(exits_after=0.5, exit_code=1), image=NEXT)
            memory.conduct(Conduct(exits_after=3, exit_code=137, reason="OOMKilled"), name="greedy")
            pod = memory.add_pod("web")
            bad = memory.add_container(pod, "app", NEXT)
            greedy = memory.add_container(pod, "greedy", APP)
            await asyncio.sleep(0.4)
            assert (await status(memory, bad)).container.state == "running"
            await asyncio.sleep(0.2)
            ended = await status(memory, bad)
            assert (ended.container.state, ended.exit_code, ended.reason, ended.pid) == ("exited", 1, "Error", 0)
            await asyncio.sleep(3)
            assert (await status(memory, greedy)).reason == "OOMKilled"

        run()

    def test_take_their_time_to_stop(self) -> None:
        @virtual
        async def run() -> None:
            memory = MemoryRuntime()
            memory.conduct(Conduct(stops_after=2, stop_code=0), name="slow")
            memory.conduct(Conduct(ignores_term=True), name="deaf")
            pod = memory.add_pod("web")
            slow, deaf = memory.add_container(pod, "slow", APP), memory.add_container(pod, "deaf", APP)
            loop = virtual_loop()
            began = loop.time()
            await memory.containers.stop(slow, 30)
            assert 2 <= loop.time() - began < 2.1
            assert (await status(memory, slow)).reason == "Completed"
            began = loop.time()
            await memory.containers.stop(deaf, 7)
            assert 7 <= loop.time() - began < 7.1
            assert (await status(memory, deaf)).exit_code == 137
            assert memory.node.containers[deaf].signals == ["TERM", "KILL"]
            await memory.containers.stop(deaf, 7)
            assert memory.calls["cri.StopContainer"] == 3

        run()

    async def test_fail_to_start(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web")
        old = memory.add_container(pod, "app", APP)
        memory.load_image(NEXT)
        memory.conduct(Conduct(start_error="exec: nope: not found"), image=NEXT, times=1)
        new = await recreated(memory, old, NEXT)
        with pytest.raises(RuntimeFailure, match="nope"):
            await memory.containers.start(new)
        failed = await status(memory, new)
        assert (failed.container.state, failed.exit_code, failed.reason) == ("exited", 128, "StartError")
        again = await recreated(memory, new)
        await memory.containers.start(again)
        assert (await status(memory, again)).container.state == "running"

    async def test_by_their_environment(self) -> None:
        memory = MemoryRuntime()
        memory.conduct(Conduct(start_error="no"), env={"MODE": "bad"})
        pod = memory.add_pod("web")
        with pytest.raises(RuntimeFailure):
            memory.add_container(pod, "app", APP, env={"MODE": "bad"})
        memory.add_container(pod, "other", APP, env={"MODE": "good"})

    async def test_answer_commands(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web")
        app = memory.add_container(pod, "app", APP)
        memory.on_exec(ExecResult(1, b"", b"no"), argv=["check"])
        memory.on_exec("cannot be started", argv=["nope"])
        memory.on_exec(RuntimeTimeout("late"), argv=["hangs"])
        memory.on_exec(lambda argv: ExecResult(0, argv[-1].encode()), argv=["echo"])
        memory.on_exec(ExecResult(0), takes=5, argv=["sleep"])
        assert (await memory.containers.exec(app, ["check", "x"], timeout=1)).exit_code == 1
        assert (await memory.containers.exec(app, ["echo", "hi"], timeout=1)).stdout == b"hi"
        assert await memory.containers.exec(app, ["true"], timeout=1) == ExecResult(0)
        with pytest.raises(RuntimeFailure, match="cannot be started"):
            await memory.containers.exec(app, ["nope"], timeout=1)
        for command in ("hangs", "sleep"):
            with pytest.raises(RuntimeTimeout):
                await memory.containers.exec(app, [command], timeout=0.01)
        assert memory.node.execs[0] == (app, ("check", "x"))

    def test_take_commands_with_them(self) -> None:
        @virtual
        async def run() -> None:
            memory = MemoryRuntime()
            memory.conduct(Conduct(exits_after=2, exit_code=1))
            memory.on_exec(ExecResult(0), argv=["hook"], takes=10)
            app = memory.add_container(memory.add_pod("web"), "app", APP)
            began = virtual_loop().time()
            assert (await memory.containers.exec(app, ["hook"], timeout=30)).exit_code == 137
            assert virtual_loop().time() - began < 2.1

        run()


class TestFaults:
    async def test_of_a_call(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web")
        app = memory.add_container(pod, "app", APP)
        memory.fail("cri.CreateContainer", RuntimeFailure("no space for it"))
        with pytest.raises(RuntimeFailure, match="no space"):
            await recreated(memory, app)
        assert len(await memory.containers.list(pod_id=pod)) == 1
        hold = memory.hold("cri.ListPodSandbox")
        task = asyncio.create_task(memory.pods.list())
        await hold.reached.wait()
        assert not task.done()
        hold.release()
        assert len(await task) == 1

    async def test_of_one_container(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web")
        one, two = [memory.add_container(pod, name, APP, running=False) for name in ("one", "two")]
        memory.fail("cri.StartContainer", "not today", of="two")
        hold = memory.hold("cri.StopPodSandbox", of="other")
        await memory.containers.start(one)
        with pytest.raises(RuntimeFailure, match="not today"):
            await memory.containers.start(two)
        await memory.containers.start(two)
        await memory.pods.stop(pod)
        assert not hold.reached.is_set()

    async def test_after_it_took_effect(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web")
        app = memory.add_container(pod, "app", APP)
        memory.fail("cri.CreateContainer:done", RuntimeTimeout("late"))
        with pytest.raises(RuntimeTimeout):
            await recreated(memory, app)
        assert [each.attempt for each in await memory.containers.list()] == [0, 1]

    async def test_unknown_fields_are_refused(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web")
        found = await memory.pods.status(pod)
        assert found is not None
        with pytest.raises(RuntimeUnsupported, match=r"linux\.shackles"):
            await memory.containers.create(pod, Blueprint({"linux": {"shackles": True}}), found.blueprint)


class TestCrashes:
    async def test_leave_processes_running(self) -> None:
        memory = MemoryRuntime()
        pod = memory.add_pod("web")
        runs, ends = memory.add_container(pod, "runs", APP), memory.add_container(pod, "ends", APP)
        pid = (await status(memory, runs)).pid
        taken = memory.containers
        memory.crash()
        memory.end(ends, 3)
        with pytest.raises(RuntimeUnavailable):
            await taken.list()
        memory.restart()
        assert (await status(memory, runs)).pid == pid
        assert (await status(memory, ends)).exit_code == 3

    async def test_while_it_starts(self) -> None:
        memory = MemoryRuntime()
        memory.conduct(Conduct(starts_after=60))
        pod = memory.add_pod("web")
        app = memory.add_container(pod, "app", APP, running=False)
        task = asyncio.create_task(memory.containers.start(app))
        await settled()
        assert memory.node.containers[app].starting
        with pytest.raises(RuntimeBusy, match="starting"):
            await memory.containers.start(app)
        memory.crash()
        with pytest.raises(RuntimeUnavailable):
            await task
        memory.restart()
        memory.conduct(Conduct())
        await memory.containers.start(app)

    async def test_of_a_stop_do_not_kill(self) -> None:
        memory = MemoryRuntime()
        memory.conduct(Conduct(ignores_term=True))
        app = memory.add_container(memory.add_pod("web"), "app", APP)
        task = asyncio.create_task(memory.containers.stop(app, 60))
        await settled()
        assert memory.node.containers[app].signals == ["TERM"]
        memory.crash()
        with pytest.raises(RuntimeUnavailable):
            await task
        memory.restart()
        assert (await status(memory, app)).container.state == "running"


class TestSandboxes:
    async def test_that_lose_their_pause_process(self) -> None:
        memory = MemoryRuntime()
        own = {"security_context": {"namespace_options": {"pid": 1}}}
        shared, alone = memory.add_pod("shared"), memory.add_pod("alone", linux=own)
        dies, lives = memory.add_container(shared, "app", APP), memory.add_container(alone, "app", APP)
        for pod in (shared, alone):
            memory.lose_pod(pod)
            found = await memory.pods.status(pod)
            assert found is not None
            assert (found.pod.state, found.pid, len(found.ips)) == ("notready", 0, 1)
        assert (await status(memory, dies)).exit_code == 137
        assert (await status(memory, lives)).container.state == "running"

    @pytest.mark.parametrize("pinning", [True, False])
    async def test_that_are_stopped_take_no_containers(self, pinning: bool) -> None:
        memory = MemoryRuntime(pinning=pinning)
        pod = memory.add_pod("web")
        app = memory.add_container(pod, "app", APP)
        await memory.pods.stop(pod)
        if pinning:  # 2.1 creates it and does not start it
            new = await recreated(memory, app)
            with pytest.raises(RuntimeInvalid, match="not running"):
                await memory.containers.start(new)
        else:
            with pytest.raises(RuntimeNotFound, match="no running task"):
                await recreated(memory, app)


async def test_events_tell_what_happens() -> None:
    memory = MemoryRuntime()
    seen: list[ContainerEvent] = []

    async def listen() -> None:
        async with aclosing(memory.events.containers()) as events:
            async for event in events:
                seen.append(event)

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    pod = memory.add_pod("web")
    app = memory.add_container(pod, "app", APP)
    await memory.pods.remove(pod)
    memory.crash()
    with pytest.raises(RuntimeUnavailable):
        await task
    assert [(event.kind, event.id) for event in seen] == [
        ("created", pod),
        ("started", pod),
        ("created", app),
        ("started", app),
        ("stopped", app),
        ("stopped", pod),
        ("deleted", app),
        ("deleted", pod),
    ]
    assert {event.pod_id for event in seen} == {pod}
