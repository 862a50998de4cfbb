"""The two ways to events: which is taken, and that containerd's own wait for CRI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from cri_stubs.containerd.events import container_pb2, task_pb2
from cri_stubs.containerd.types import event_pb2
from cri_stubs.cri.v1 import runtime_pb2 as cri
from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.cri_events import ContainerEvents
from stokerd.runtime.pod_types import ContainerEvent
from tests.unit.runtime.fake_pods import FakeCri, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


class Heard:
    """What a subscriber has been told."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[ContainerEvent] = asyncio.Queue()

    async def next(self) -> ContainerEvent:
        return await asyncio.wait_for(self.events.get(), 10)


@asynccontextmanager
async def subscribed(events: ContainerEvents) -> AsyncIterator[tuple[Heard, asyncio.Task[None]]]:
    heard = Heard()

    async def listen() -> None:
        async with aclosing(events.stream()) as stream:
            async for event in stream:
                heard.events.put_nowait(event)

    task = asyncio.create_task(listen())
    try:
        yield heard, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def of_cri(kind: str, identity: str) -> cri.ContainerEventResponse:
    number = cri.ContainerEventType.Value(f"CONTAINER_{kind.upper()}_EVENT")
    return cri.ContainerEventResponse(
        container_id=identity, container_event_type=number, pod_sandbox_status=cri.PodSandboxStatus(id="pod")
    )


def native(topic: str, identity: str, exec_id: str = "") -> event_pb2.Envelope:
    bodies = {
        "/containers/create": container_pb2.ContainerCreate(id=identity),
        "/containers/delete": container_pb2.ContainerDelete(id=identity),
        "/tasks/start": task_pb2.TaskStart(container_id=identity),
        "/tasks/exit": task_pb2.TaskExit(container_id=identity, id=exec_id or identity),
    }
    envelope = event_pb2.Envelope(topic=topic)
    envelope.event.value = bodies[topic].SerializeToString()
    return envelope


def show(fake: FakeCri, identity: str, state: cri.ContainerState.ValueType) -> None:
    fake.containers[identity] = cri.Container(id=identity, pod_sandbox_id="pod", state=state)


class TestCriEvents:
    async def test_are_taken_from_2_0_on(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.events = asyncio.Queue()
            async with subscribed(ContainerEvents(wire, (2, 0))) as (heard, task):
                for kind in ("created", "started", "stopped", "deleted"):
                    fake.events.put_nowait(of_cri(kind, "a"))
                told = [await heard.next() for _ in range(4)]
                assert [(event.kind, event.id, event.pod_id) for event in told] == [
                    ("created", "a", "pod"),
                    ("started", "a", "pod"),
                    ("stopped", "a", "pod"),
                    ("deleted", "a", "pod"),
                ]
                fake.events.put_nowait(None)
                with pytest.raises(RuntimeUnavailable):
                    await asyncio.wait_for(task, 10)
            assert not fake.asked["Subscribe"]

    async def test_kinds_that_nobody_knows_are_passed_over(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.events = asyncio.Queue()
            async with subscribed(ContainerEvents(wire, (2, 0))) as (heard, _):
                odd = of_cri("created", "a")
                odd.container_event_type = 99  # type: ignore[assignment]
                fake.events.put_nowait(odd)
                fake.events.put_nowait(of_cri("deleted", "a"))
                assert (await heard.next()).kind == "deleted"

    async def test_are_left_to_the_kubelet_before(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.events = asyncio.Queue()
            async with subscribed(ContainerEvents(wire, (1, 7))):
                await asyncio.wait_for(fake.looked.wait(), 10)
            assert not fake.asked["GetContainerEvents"]

    async def test_that_are_not_there_are_asked_for_once(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            events = ContainerEvents(wire, (2, 0))
            for _ in range(2):
                fake.looked.clear()
                async with subscribed(events):
                    await asyncio.wait_for(fake.looked.wait(), 10)
            assert len(fake.asked["GetContainerEvents"]) == 1


class TestContainerdsOwn:
    async def test_wait_for_cri(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            show(fake, "a", cri.CONTAINER_RUNNING)
            async with subscribed(ContainerEvents(wire, (1, 6))) as (heard, _):
                await asyncio.wait_for(fake.looked.wait(), 10)
                fake.native.put_nowait(native("/tasks/exit", "a"))
                while len(fake.asked["ListContainers"]) < 4:
                    fake.looked.clear()
                    await asyncio.wait_for(fake.looked.wait(), 10)
                assert heard.events.empty()
                assert fake.asked["ListContainers"][-1].filter.id == "a"
                show(fake, "a", cri.CONTAINER_EXITED)
                assert await heard.next() == ContainerEvent("stopped", "a", "pod")

    async def test_of_commands_and_of_others_say_nothing(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.kinds = {"new": "container", "foreign": ""}
            show(fake, "a", cri.CONTAINER_EXITED)
            async with subscribed(ContainerEvents(wire, (1, 6))) as (heard, _):
                await asyncio.wait_for(fake.looked.wait(), 10)
                show(fake, "new", cri.CONTAINER_RUNNING)
                for envelope in (
                    native("/tasks/exit", "a", "some-exec"),
                    native("/containers/create", "foreign"),
                    native("/containers/create", "gone-already"),
                    native("/tasks/start", "foreign"),
                    native("/tasks/exit", "foreign"),
                    native("/containers/create", "new"),
                    native("/tasks/start", "new"),
                ):
                    fake.native.put_nowait(envelope)
                told = [await heard.next(), await heard.next()]
                assert [(event.kind, event.id) for event in told] == [("created", "new"), ("started", "new")]
                assert heard.events.empty()

    async def test_of_sandboxes(self, path: Path) -> None:
        async with serving(path) as (wire, fake):
            fake.kinds = {"pod": "sandbox"}
            async with subscribed(ContainerEvents(wire, (1, 6))) as (heard, task):
                await asyncio.wait_for(fake.looked.wait(), 10)
                fake.native.put_nowait(native("/containers/create", "pod"))
                fake.native.put_nowait(native("/tasks/start", "pod"))
                fake.pods["pod"] = cri.PodSandbox(id="pod", state=cri.SANDBOX_READY)
                assert await heard.next() == ContainerEvent("created", "pod", "pod")
                assert await heard.next() == ContainerEvent("started", "pod", "pod")
                fake.native.put_nowait(native("/containers/delete", "pod"))
                fake.pods.clear()
                assert await heard.next() == ContainerEvent("deleted", "pod", "pod")
                fake.native.put_nowait(None)
                with pytest.raises(RuntimeUnavailable):
                    await asyncio.wait_for(task, 10)

    async def test_end_with_their_connection(self, path: Path) -> None:
        async with serving(path) as (wire, fake), subscribed(ContainerEvents(wire, (1, 6))) as (_, task):
            await asyncio.wait_for(fake.looked.wait(), 10)
            await wire.channel.close()
            with pytest.raises(RuntimeUnavailable):
                await asyncio.wait_for(task, 10)
