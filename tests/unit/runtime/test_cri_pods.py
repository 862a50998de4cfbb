"""The pod and container services: what they send, how long they wait, what they make of answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from cri_stubs.cri.v1 import runtime_pb2 as cri
from stokerd.errors import RuntimeInvalid, RuntimeTimeout
from stokerd.runtime.cri_pods import CriContainerService, CriPodService
from stokerd.runtime.pod_types import Blueprint, ExecResult, PodBlueprint
from tests.unit.runtime.fake_pods import serving

NAMED = {"metadata": {"name": "app"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


class TestDeadlines:
    async def test_follow_the_work(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            pods, containers = CriPodService(wire), CriContainerService(wire)
            await containers.stop("a", 30)
            await containers.exec("a", ["true"], timeout=12)
            await pods.run(PodBlueprint(NAMED))
            await containers.list()
            assert 85 < fake.left["StopContainer"] < 91  # gRPC rounds up
            assert 17 < fake.left["ExecSync"] < 23
            assert 55 < fake.left["RunPodSandbox"] < 61
            assert fake.left["ListContainers"] < 6

    @pytest.mark.parametrize(("grace", "seconds"), [(0, 0), (0.1, 1), (1, 1), (1.2, 2), (-3, 0)])
    async def test_grace_is_in_whole_seconds(self, path: Path, grace: float, seconds: int) -> None:
        async with serving(path) as (wire, fake):
            await CriContainerService(wire).stop("a", grace)
            assert fake.asked["StopContainer"][0].timeout == seconds

    @pytest.mark.parametrize(("timeout", "seconds"), [(0, 1), (0.1, 1), (2.5, 3)])
    async def test_commands_never_have_for_ever(self, path: Path, timeout: float, seconds: int) -> None:
        async with serving(path) as (wire, fake):
            result = await CriContainerService(wire).exec("a", ["sh", "-c", "x"], timeout=timeout)
            assert result == ExecResult(3, b"out", b"err")
            (request,) = fake.asked["ExecSync"]
            assert (list(request.cmd), request.timeout) == (["sh", "-c", "x"], seconds)

    async def test_a_command_that_took_too_long_keeps_its_words(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            words = "failed to exec in container: timeout 1s exceeded: context deadline exceeded"
            fake.failing["ExecSync"] = (grpc.StatusCode.DEADLINE_EXCEEDED, words)
            with pytest.raises(RuntimeTimeout, match="timeout 1s exceeded"):
                await CriContainerService(wire).exec("a", ["sleep"], timeout=1)


class TestWhatIsGone:
    async def test_is_no_error_where_that_is_what_was_wanted(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            pods, containers = CriPodService(wire), CriContainerService(wire)
            gone = (grpc.StatusCode.NOT_FOUND, "an error occurred when try to find container: not found")
            names = ("StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox")
            fake.failing = dict.fromkeys((*names, "ContainerStatus", "PodSandboxStatus"), gone)
            await containers.stop("a", 1)
            await containers.remove("a")
            await pods.stop("a")
            await pods.remove("a")
            assert await containers.status("a") is None
            assert await pods.status("a") is None

    async def test_an_empty_id_never_leaves(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            pods, containers = CriPodService(wire), CriContainerService(wire)
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: containers.remove(""),
                lambda: containers.stop("", 1),
                lambda: containers.exec("", ["x"], timeout=1),
                lambda: containers.create("", Blueprint(NAMED), PodBlueprint(NAMED)),
                lambda: containers.create("pod", Blueprint({}), PodBlueprint(NAMED)),
                lambda: containers.create("pod", Blueprint(NAMED), PodBlueprint({})),
                lambda: pods.run(PodBlueprint({})),
                lambda: pods.remove(""),
            ]
            for call in calls:
                with pytest.raises(RuntimeInvalid):
                    await call()
            assert not fake.asked


def status_answer(**fields: object) -> cri.ContainerStatusResponse:
    info = {
        "sandboxID": "pod",
        "pid": 42,
        "config": {
            "metadata": {"name": "app"},
            "image": {"image": "app:v1"},
            "envs": [{"key": "A", "value": "s3cret"}],
        },
        "runtimeSpec": {"process": {"env": ["A=s3cret"]}},
    }
    status = cri.ContainerStatus(
        id="a",
        metadata=cri.ContainerMetadata(name="app", attempt=3),
        state=cri.CONTAINER_RUNNING,
        created_at=1_700_000_000_123_456_789,
        started_at=1_700_000_001_000_000_000,
        image=cri.ImageSpec(image="registry.test/other-name:v1"),
        image_ref="registry.test/app@sha256:2",
    )
    for name, value in fields.items():
        setattr(status, name, value)
    return cri.ContainerStatusResponse(status=status, info={"info": json.dumps(info)})


class TestStatus:
    async def test_of_a_container(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.status = status_answer(image_id="sha256:1")
            found = await CriContainerService(wire).status("a")
            assert found is not None
            assert (found.container.image, found.container.image_ref) == ("app:v1", "sha256:1")
            assert (found.container.pod_id, found.container.attempt, found.pid) == ("pod", 3, 42)
            assert found.container.created_at == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
            assert found.finished_at is None
            assert found.spec["process"]["env"] == ["A=s3cret"]
            assert "s3cret" not in repr(found)
            assert not fake.asked["ListContainers"]

    async def test_takes_the_image_id_from_the_listing_where_it_has_none(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.status = status_answer()
            fake.containers = {"a": cri.Container(id="a", image_ref="sha256:1")}
            found = await CriContainerService(wire).status("a")
            assert found is not None
            assert found.container.image_ref == "sha256:1"
            fake.containers = {}
            found = await CriContainerService(wire).status("a")
            assert found is not None
            assert found.container.image_ref == "registry.test/app@sha256:2"

    async def test_of_one_that_has_ended_has_no_pid(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.status = status_answer(state=cri.CONTAINER_EXITED, image_id="sha256:1", exit_code=1, reason="Error")
            found = await CriContainerService(wire).status("a")
            assert found is not None
            assert (found.container.state, found.pid, found.exit_code, found.reason) == ("exited", 0, 1, "Error")

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
    async def test_without_the_verbose_part(self, path: Path, text: str) -> None:
        async with serving(path) as (wire, fake):
            fake.status = status_answer(image_id="sha256:1")
            fake.status.info["info"] = text
            fake.pod_status = cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id="p"), info={"info": text})
            found = await CriContainerService(wire).status("a")
            pod = await CriPodService(wire).status("p")
            assert found is not None
            assert pod is not None
            assert (found.blueprint.config, found.container.image) == ({}, "registry.test/other-name:v1")
            assert (pod.blueprint.config, pod.pid, pod.ips, pod.netns) == ({}, 0, (), "")

    async def test_of_a_pod(self, path: Path) -> None:
        spaces = [{"type": "pid"}, {"type": "network", "path": "/run/netns/x"}]
        info = {"pid": 7, "config": NAMED, "runtimeSpec": {"linux": {"namespaces": spaces}}}
        async with serving(path) as (wire, fake):
            fake.pod_status.status.id = "p"
            fake.pod_status.status.runtime_handler = "kata"
            fake.pod_status.status.network.ip = "192.0.2.7"
            fake.pod_status.status.network.additional_ips.add(ip="2001:db8::7")
            fake.pod_status.info["info"] = json.dumps(info)
            found = await CriPodService(wire).status("p")
            assert found is not None
            assert (found.ips, found.pid, found.netns) == (("192.0.2.7", "2001:db8::7"), 7, "/run/netns/x")
            assert found.blueprint == PodBlueprint(NAMED, "kata")
