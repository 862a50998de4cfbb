"""What happens to containers and pods: CRI's own events, or containerd's where CRI has none that can be shared.

containerd 1.6 has no such call. In 1.7 all who call it read from one channel, so each event reaches one of them: asking
for them would take them away from a kubelet with the feature EventedPLEG. From 2.0 on every caller gets all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from cri_stubs.containerd.services.events.v1 import events_pb2
from cri_stubs.containerd.services.events.v1.events_pb2_grpc import EventsStub
from cri_stubs.containerd.types import event_pb2
from cri_stubs.cri.v1 import runtime_pb2
from cri_stubs.cri.v1.runtime_pb2_grpc import RuntimeServiceStub
from stokerd.errors import RuntimeNotFound, RuntimeTimeout, RuntimeUnavailable, RuntimeUnsupported
from stokerd.runtime import convert_pods as convert
from stokerd.runtime.channel import NAMESPACE, Wire
from stokerd.runtime.event_settling import Expected, Kind, View, settle
from stokerd.runtime.pod_types import ContainerEvent, ContainerEventKind

CRI_EVENTS_SINCE = (2, 0)
_FILTER = f'namespace=={NAMESPACE},topic~="^/(tasks/(start|exit)|containers/(create|delete))$"'
_KIND_LABEL = "io.cri-containerd.kind"
_KINDS: Mapping[str, Kind] = {"container": "container", "sandbox": "sandbox"}
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 0.25
_PATIENCE = 60.0
"""How long CRI may stay behind an event (a sandbox is shown once its network is up) before the event is forgotten."""


class ContainerEvents:
    """Both ways to the events of one connection."""

    def __init__(self, wire: Wire, version: tuple[int, int]) -> None:
        self._wire = wire
        self._shared = version >= CRI_EVENTS_SINCE

    async def stream(self) -> AsyncGenerator[ContainerEvent, None]:
        """Yield events from now on until the stream breaks; after each, asking CRI shows the change."""
        if self._shared:
            try:
                async with aclosing(self._of_cri()) as events:
                    async for event in events:
                        yield event
            except RuntimeUnsupported:
                self._shared = False
        async with aclosing(Watch(self._wire).events()) as events:
            async for event in events:
                yield event

    async def _of_cri(self) -> AsyncGenerator[ContainerEvent, None]:
        stub = RuntimeServiceStub(self._wire.channel)
        request = runtime_pb2.GetEventsRequest()
        call = "cri.GetContainerEvents"
        async with aclosing(self._wire.stream(call, stub.GetContainerEvents, request, unlimited=True)) as answers:
            async for answer in answers:
                event = convert.container_event(answer)
                if event is not None:
                    yield event
        raise RuntimeUnavailable("containerd ended the event stream", call=call)


class Watch:
    """One subscription to containerd's own events, each held back until CRI shows what it tells."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._cri = RuntimeServiceStub(wire.channel)
        self._kinds: dict[str, Kind] = {}
        self._pods: dict[str, str] = {}
        self._expected: tuple[Expected, ...] = ()

    async def events(self) -> AsyncGenerator[ContainerEvent, None]:
        request = events_pb2.SubscribeRequest(filters=[_FILTER])
        subscribe = EventsStub(self._wire.channel).Subscribe
        stream = self._wire.stream("events.Subscribe", subscribe, request, unlimited=True)
        async with aclosing(stream):
            reading = _reading(stream)
            try:
                await self._look_around()
                pause = _FIRST_PAUSE
                while True:
                    await asyncio.wait({reading}, timeout=pause if self._expected else None)
                    pause = min(pause * 2, _LAST_PAUSE)
                    if reading.done():
                        await self._note(reading.result())
                        reading, pause = _reading(stream), _FIRST_PAUSE
                    for event in await self._settled():
                        yield event
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _look_around(self) -> None:
        """Learn which objects are CRI's: others live in its namespace too, and CRI never shows them."""
        await self._views(None)

    async def _note(self, envelope: event_pb2.Envelope | None) -> None:
        if envelope is None:
            raise RuntimeUnavailable("containerd ended the event stream", call="events.Subscribe")
        kind, identity = _decoded(envelope.topic, envelope.event.value)
        if kind == "created" and identity not in self._kinds:
            await self._learn(identity)
        if kind is not None and identity in self._kinds:
            deadline = asyncio.get_running_loop().time() + _PATIENCE
            self._expected = (*self._expected, Expected(kind, identity, deadline))

    async def _learn(self, identity: str) -> None:
        """Ask containerd whether a new object is one of CRI's."""
        # Late, since only an old containerd needs them.
        from cri_stubs.containerd.services.containers.v1 import containers_pb2
        from cri_stubs.containerd.services.containers.v1.containers_pb2_grpc import ContainersStub

        request = containers_pb2.GetContainerRequest(id=identity)
        try:
            answer = await self._wire.unary("containers.Get", ContainersStub(self._wire.channel).Get, request)
        except (RuntimeNotFound, RuntimeTimeout):
            return
        kind = _KINDS.get(answer.container.labels.get(_KIND_LABEL, ""))
        if kind is not None:
            self._kinds[identity] = kind

    async def _settled(self) -> tuple[ContainerEvent, ...]:
        if not self._expected:
            return ()
        wanted = {each.id for each in self._expected}
        try:
            views = await self._views(wanted)
        except RuntimeTimeout:  # a busy containerd; the next look tells
            return ()
        shown, self._expected = settle(self._expected, views, self._pods, asyncio.get_running_loop().time())
        for event in shown:
            if event.kind == "deleted":
                self._kinds.pop(event.id, None)
                self._pods.pop(event.id, None)
        return shown

    async def _views(self, wanted: set[str] | None) -> dict[str, View]:
        """Ask CRI for the states of these objects, or of all."""
        views: dict[str, View] = {}
        kinds = {"container", "sandbox"} if wanted is None else {self._kinds[each] for each in wanted}
        only = next(iter(wanted)) if wanted is not None and len(wanted) == 1 else ""
        if "container" in kinds:
            request = runtime_pb2.ListContainersRequest(filter=runtime_pb2.ContainerFilter(id=only))
            answer = await self._wire.unary("cri.ListContainers", self._cri.ListContainers, request)
            for container in map(convert.container, answer.containers):
                views[container.id], self._pods[container.id] = container.state, container.pod_id
                self._kinds[container.id] = "container"
        if "sandbox" in kinds:
            asked = runtime_pb2.ListPodSandboxRequest(filter=runtime_pb2.PodSandboxFilter(id=only))
            listed = await self._wire.unary("cri.ListPodSandbox", self._cri.ListPodSandbox, asked)
            for pod in map(convert.pod, listed.items):
                views[pod.id], self._pods[pod.id] = pod.state, pod.id
                self._kinds[pod.id] = "sandbox"
        return views


def _reading(
    stream: AsyncGenerator[event_pb2.Envelope, None],
) -> asyncio.Task[event_pb2.Envelope | None]:
    """Read one envelope in a task, so that waiting for it can end without breaking off the read."""

    async def read() -> event_pb2.Envelope | None:
        return await anext(stream, None)

    return asyncio.create_task(read(), name="container-events")


def _decoded(topic: str, body: bytes) -> tuple[ContainerEventKind | None, str]:
    """Return what an event tells of which object; of tasks, only of main processes."""
    from cri_stubs.containerd.events import container_pb2, task_pb2  # late, since only an old containerd needs them

    if topic == "/containers/create":
        return "created", container_pb2.ContainerCreate.FromString(body).id
    if topic == "/containers/delete":
        return "deleted", container_pb2.ContainerDelete.FromString(body).id
    if topic == "/tasks/start":
        return "started", task_pb2.TaskStart.FromString(body).container_id
    exit_event = task_pb2.TaskExit.FromString(body)
    main = topic == "/tasks/exit" and exit_event.id == exit_event.container_id
    return ("stopped" if main else None), exit_event.container_id
