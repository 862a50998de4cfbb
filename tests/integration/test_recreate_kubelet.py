"""Containers of a kubelet's pods: Stoker stops them, the kubelet starts them again."""

from __future__ import annotations

import asyncio

import pytest

from stoker.client import ClientError
from stoker.objects.containers import RecreateTarget
from tests.conformance.subject import eventually
from tests.integration.pods import completed, only, recreated, request, whole
from tests.rig.kubelet import FakeKubelet
from tests.rig.node import Node
from tests.rig.pods import BareCri
from tests.rig.stokerd import Stokerd


async def test_the_kubelets_next_attempt_is_waited_for(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        kubelet = FakeKubelet(bare)
        pod = await kubelet.pod("web")
        names = ("main", "sidecar")
        made = {name: await kubelet.container(pod, name) for name in names}
        async with kubelet.running():
            done = await recreated(client, request(pod, "main", min_started_seconds=1))
        assert done.owner == "kubelet"
        assert done.result == "Succeeded", done
        running = await whole(bare, pod, *names)
        assert (only(done).new_id, running["main"].attempt) == (running["main"].id, 1)
        assert running["sidecar"].id == made["sidecar"]
        assert kubelet.restarts == {"main": 1}
        assert "stoker.dev/recreate" not in running["main"].labels


async def test_the_hook_runs_before_the_stop(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        kubelet = FakeKubelet(bare)
        pod = await kubelet.pod("hooked")
        script = "echo told > /proc/1/fd/1"
        old = await kubelet.container(pod, "main", pre_stop={"exec": {"command": ["sh", "-c", script]}})
        async with kubelet.running():
            done = await recreated(client, request(pod, "main"))
        assert done.result == "Succeeded", done
        assert only(done).old_id == old
        assert "told" in (pod.log_directory / "main.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [["sleep", "60"], ["false"], ["/not/there"]])
async def test_a_hook_that_hangs_or_fails_holds_nothing_up(stokerd: Stokerd, node: Node, command: list[str]) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        kubelet = FakeKubelet(bare)
        pod = await kubelet.pod("bad-hook")
        await kubelet.container(pod, "main", pre_stop={"exec": {"command": command}})
        async with kubelet.running():
            done = await recreated(client, request(pod, "main", termination_grace_period_seconds=3))
        assert done.result == "Succeeded", done
        assert "preStop" in only(done).message
        await whole(bare, pod, "main")


async def test_an_image_of_a_kubelets_pod_is_not_ours_to_change(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        kubelet = FakeKubelet(bare)
        pod = await kubelet.pod("fixed")
        made = await kubelet.container(pod, "main")
        with pytest.raises(ClientError, match="kubelet"):
            await client.recreate(request(pod, containers=[RecreateTarget(name="main", image="stoker.test/other:1")]))
        assert (await whole(bare, pod, "main"))["main"].id == made


async def test_a_kubelet_that_does_not_come_is_a_deadline(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        kubelet = FakeKubelet(bare)
        kubelet.paused = True
        pod = await kubelet.pod("deadline")
        for name in ("one", "two"):
            await kubelet.container(pod, name)
        async with kubelet.running():
            wish = request(pod, "one", "two", ordered_recreate=True, active_deadline_seconds=3)
            done = await recreated(client, wish)
            assert done.result == "Failed"
            assert [each.reason for each in done.containers] == ["DeadlineExceeded"] * 2
            assert [each.is_killed for each in done.containers] == [True, False]
            kubelet.paused = False
            # The next request does not wait for anything of the one before.
            done = await recreated(client, request(pod, "two", active_deadline_seconds=20))
        assert done.result == "Succeeded", done
        await whole(bare, pod, "one", "two")


async def test_a_restart_by_the_kubelet_meanwhile_counts(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        kubelet = FakeKubelet(bare)
        pod = await kubelet.pod("crossing")
        old = await kubelet.container(pod, "main")
        async with kubelet.running():
            wish = request(pod, "main", unready_grace_period_seconds=3)
            asked = await client.recreate(wish)
            await bare.stop(old, 0)  # it crashes, and the kubelet sees to it, while we still wait
            done = await completed(client, asked.id)

            async def runs() -> bool:
                return any(each.running for each in await bare.list(pod))

            # A container that the kubelet has only just created counts as restarted: it is about to start it.
            await eventually("the kubelet has started what it created", runs)
        assert done.result == "Succeeded", done
        # Which of the two depends on whether stokerd looked between the crash and the kubelet's restart.
        assert only(done).reason in {"RestartedBySomethingElse", "Recreated"}
        assert not only(done).is_killed
        assert (await whole(bare, pod, "main"))["main"].attempt == 1


async def test_a_crash_loop_waits_for_the_kubelets_next_try(stokerd: Stokerd, node: Node) -> None:
    async with BareCri(node) as bare, stokerd.client() as client:
        kubelet = FakeKubelet(bare, backoff=0.5)
        pod = await kubelet.pod("loop")
        await kubelet.container(pod, "main", command=["sh", "-c", "exit 1"])
        async with kubelet.running():
            wish = request(pod, "main", min_started_seconds=2, active_deadline_seconds=6)
            async with asyncio.timeout(30):
                done = await recreated(client, wish)
        assert done.result == "Failed"
        assert only(done).reason == "DeadlineExceeded"
