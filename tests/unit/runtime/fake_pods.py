"""The pod and container half of a fake CRI: it notes what it is asked and answers what it is told to."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from cri_stubs.containerd.services.containers.v1 import containers_pb2, containers_pb2_grpc
from cri_stubs.containerd.services.events.v1 import events_pb2_grpc
from cri_stubs.containerd.types import event_pb2
from cri_stubs.cri.v1 import runtime_pb2 as cri
from cri_stubs.cri.v1 import runtime_pb2_grpc
from stokerd.runtime.channel import Wire, open_channel

Context = Any


class FakeCri(runtime_pb2_grpc.RuntimeServiceServicer):
    """``containers`` and ``pods`` are listed; ``asked`` holds requests and ``left`` the seconds that they had, by
    method; ``failing`` says how methods end; ``events`` is CRI's stream, None where the call is not known."""

    def __init__(self) -> None:
        self.containers: dict[str, cri.Container] = {}
        self.pods: dict[str, cri.PodSandbox] = {}
        self.status = cri.ContainerStatusResponse()
        self.pod_status = cri.PodSandboxStatusResponse()
        self.asked: defaultdict[str, list[Any]] = defaultdict(list)
        self.left: dict[str, float] = {}
        self.failing: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.events: asyncio.Queue[cri.ContainerEventResponse | None] | None = None
        self.native: asyncio.Queue[event_pb2.Envelope | None] = asyncio.Queue()
        self.kinds: dict[str, str] = {}
        self.looked = asyncio.Event()

    async def _turn(self, method: str, request: Any, context: Context) -> None:
        self.asked[method].append(request)
        self.left[method] = context.time_remaining()
        if method in self.failing:
            await context.abort(*self.failing[method])

    async def ListContainers(self, request: cri.ListContainersRequest, context: Context) -> cri.ListContainersResponse:
        await self._turn("ListContainers", request, context)
        self.looked.set()
        return cri.ListContainersResponse(containers=self.containers.values())

    async def ListPodSandbox(self, request: cri.ListPodSandboxRequest, context: Context) -> cri.ListPodSandboxResponse:
        await self._turn("ListPodSandbox", request, context)
        return cri.ListPodSandboxResponse(items=self.pods.values())

    async def ContainerStatus(
        self, request: cri.ContainerStatusRequest, context: Context
    ) -> cri.ContainerStatusResponse:
        await self._turn("ContainerStatus", request, context)
        return self.status

    async def PodSandboxStatus(
        self, request: cri.PodSandboxStatusRequest, context: Context
    ) -> cri.PodSandboxStatusResponse:
        await self._turn("PodSandboxStatus", request, context)
        return self.pod_status

    async def RunPodSandbox(self, request: cri.RunPodSandboxRequest, context: Context) -> cri.RunPodSandboxResponse:
        await self._turn("RunPodSandbox", request, context)
        return cri.RunPodSandboxResponse(pod_sandbox_id="pod")

    async def StopPodSandbox(self, request: cri.StopPodSandboxRequest, context: Context) -> cri.StopPodSandboxResponse:
        await self._turn("StopPodSandbox", request, context)
        return cri.StopPodSandboxResponse()

    async def RemovePodSandbox(
        self, request: cri.RemovePodSandboxRequest, context: Context
    ) -> cri.RemovePodSandboxResponse:
        await self._turn("RemovePodSandbox", request, context)
        return cri.RemovePodSandboxResponse()

    async def CreateContainer(
        self, request: cri.CreateContainerRequest, context: Context
    ) -> cri.CreateContainerResponse:
        await self._turn("CreateContainer", request, context)
        return cri.CreateContainerResponse(container_id="made")

    async def StartContainer(self, request: cri.StartContainerRequest, context: Context) -> cri.StartContainerResponse:
        await self._turn("StartContainer", request, context)
        return cri.StartContainerResponse()

    async def StopContainer(self, request: cri.StopContainerRequest, context: Context) -> cri.StopContainerResponse:
        await self._turn("StopContainer", request, context)
        return cri.StopContainerResponse()

    async def RemoveContainer(
        self, request: cri.RemoveContainerRequest, context: Context
    ) -> cri.RemoveContainerResponse:
        await self._turn("RemoveContainer", request, context)
        return cri.RemoveContainerResponse()

    async def ExecSync(self, request: cri.ExecSyncRequest, context: Context) -> cri.ExecSyncResponse:
        await self._turn("ExecSync", request, context)
        return cri.ExecSyncResponse(exit_code=3, stdout=b"out", stderr=b"err")

    async def GetContainerEvents(
        self, request: cri.GetEventsRequest, context: Context
    ) -> AsyncIterator[cri.ContainerEventResponse]:
        self.asked["GetContainerEvents"].append(request)
        if self.events is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method GetContainerEvents")
            raise AssertionError
        while (event := await self.events.get()) is not None:
            yield event


class _Events(events_pb2_grpc.EventsServicer):
    def __init__(self, fake: FakeCri) -> None:
        self.fake = fake

    async def Subscribe(self, request: Any, context: Context) -> AsyncIterator[event_pb2.Envelope]:
        self.fake.asked["Subscribe"].append(request)
        while (event := await self.fake.native.get()) is not None:
            yield event


class _Containers(containers_pb2_grpc.ContainersServicer):
    def __init__(self, fake: FakeCri) -> None:
        self.fake = fake

    async def Get(
        self, request: containers_pb2.GetContainerRequest, context: Context
    ) -> containers_pb2.GetContainerResponse:
        self.fake.asked["Get"].append(request)
        if request.id not in self.fake.kinds:
            await context.abort(grpc.StatusCode.NOT_FOUND, "not found")
        answer = containers_pb2.GetContainerResponse()
        answer.container.labels["io.cri-containerd.kind"] = self.fake.kinds[request.id]
        return answer


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[Wire, FakeCri]]:
    """Serve on the socket, and connect to it."""
    fake, server = FakeCri(), grpc.aio.server()
    runtime_pb2_grpc.add_RuntimeServiceServicer_to_server(fake, server)
    events_pb2_grpc.add_EventsServicer_to_server(_Events(fake), server)
    containers_pb2_grpc.add_ContainersServicer_to_server(_Containers(fake), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    channel = open_channel(str(path))
    try:
        yield Wire(channel, 5.0, 5.0), fake
    finally:
        await channel.close()
        await server.stop(None)
