"""A gRPC server that speaks just enough of containerd, and that misbehaves when told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from cri_stubs.containerd.services.events.v1 import events_pb2_grpc
from cri_stubs.containerd.services.introspection.v1 import introspection_pb2, introspection_pb2_grpc
from cri_stubs.containerd.types import event_pb2
from cri_stubs.cri.v1 import runtime_pb2, runtime_pb2_grpc

Context = Any


class _Runtime(runtime_pb2_grpc.RuntimeServiceServicer):
    def __init__(self, fake: FakeContainerd) -> None:
        self.fake = fake

    async def Version(self, request: runtime_pb2.VersionRequest, context: Context) -> runtime_pb2.VersionResponse:
        await self.fake.turn("Version", context)
        return runtime_pb2.VersionResponse(
            version="0.1.0", runtime_name="containerd", runtime_version=self.fake.version, runtime_api_version="v1"
        )

    async def Status(self, request: runtime_pb2.StatusRequest, context: Context) -> runtime_pb2.StatusResponse:
        await self.fake.turn("Status", context)
        config = {"containerdRootDir": "/srv/containerd", "stateDir": "/run/x", "sandboxImage": "pause:1"}
        return runtime_pb2.StatusResponse(status=runtime_pb2.RuntimeStatus(), info={"config": json.dumps(config)})

    async def ListContainers(
        self, request: runtime_pb2.ListContainersRequest, context: Context
    ) -> runtime_pb2.ListContainersResponse:
        await self.fake.turn("ListContainers", context)
        containers = [
            runtime_pb2.Container(id="1", image=runtime_pb2.ImageSpec(image="app:v1"), image_ref="sha256:1"),
            runtime_pb2.Container(id="2", image=runtime_pb2.ImageSpec(image="sha256:1")),
        ]
        return runtime_pb2.ListContainersResponse(containers=containers)


class _Images(runtime_pb2_grpc.ImageServiceServicer):
    def __init__(self, fake: FakeContainerd) -> None:
        self.fake = fake

    async def ImageFsInfo(
        self, request: runtime_pb2.ImageFsInfoRequest, context: Context
    ) -> runtime_pb2.ImageFsInfoResponse:
        await self.fake.turn("ImageFsInfo", context)
        where = runtime_pb2.FilesystemIdentifier(mountpoint=self.fake.mountpoint)
        return runtime_pb2.ImageFsInfoResponse(image_filesystems=[runtime_pb2.FilesystemUsage(fs_id=where)])

    async def PullImage(self, request: runtime_pb2.PullImageRequest, context: Context) -> runtime_pb2.PullImageResponse:
        await self.fake.turn("PullImage", context)
        return runtime_pb2.PullImageResponse(image_ref=f"sha256:{request.auth.username}")

    async def ListImages(
        self, request: runtime_pb2.ListImagesRequest, context: Context
    ) -> runtime_pb2.ListImagesResponse:
        await self.fake.turn("ListImages", context)
        return runtime_pb2.ListImagesResponse(
            images=[
                runtime_pb2.Image(id=f"sha256:{number:064x}", repo_tags=[f"app:{'v' * 50_000}"])
                for number in range(self.fake.images)
            ]
        )


class _Events(events_pb2_grpc.EventsServicer):
    def __init__(self, fake: FakeContainerd) -> None:
        self.fake = fake

    async def Subscribe(self, request: Any, context: Context) -> AsyncIterator[event_pb2.Envelope]:
        await self.fake.turn("Subscribe", context)
        for topic in ("/images/create", "/images/other", "/images/delete"):
            body = event_pb2.Envelope(topic=topic)
            body.event.value = b"\n\x06app:v1"
            yield body
        await self.fake.turn("Subscribed", context)


class _Introspection(introspection_pb2_grpc.IntrospectionServicer):
    def __init__(self, fake: FakeContainerd) -> None:
        self.fake = fake

    async def Plugins(
        self, request: introspection_pb2.PluginsRequest, context: Context
    ) -> introspection_pb2.PluginsResponse:
        await self.fake.turn("Plugins", context)
        answer = introspection_pb2.PluginsResponse()
        if self.fake.plugin_problem:
            answer.plugins.add(id="cri").init_err.message = self.fake.plugin_problem
        return answer


class FakeContainerd:
    """``slow`` holds methods that hang until they are cancelled, ``failing`` statuses that methods end with;
    ``began``, ``ended`` and ``cancelled`` say what methods did, ``metadata`` what they were told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = "2.1.9"
        self.mountpoint = "/srv/containerd/io.containerd.snapshotter.v1.overlayfs"
        self.plugin_problem = ""
        self.images = 0
        self.slow: set[str] = set()
        self.failing: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.metadata: dict[str, dict[str, str]] = {}
        self.changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def start(self, *, cri: bool = True) -> None:
        self._server = grpc.aio.server()
        if cri:
            runtime_pb2_grpc.add_RuntimeServiceServicer_to_server(_Runtime(self), self._server)
            runtime_pb2_grpc.add_ImageServiceServicer_to_server(_Images(self), self._server)
        events_pb2_grpc.add_EventsServicer_to_server(_Events(self), self._server)
        introspection_pb2_grpc.add_IntrospectionServicer_to_server(_Introspection(self), self._server)
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        """Break off whatever runs."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def turn(self, method: str, context: Context) -> None:
        """What every method does first."""
        self.metadata[method] = {str(key): str(value) for key, value in context.invocation_metadata()}
        await self._note(self.began, method)
        try:
            if method in self.slow:
                await asyncio.Event().wait()
            if method in self.failing:
                await context.abort(*self.failing[method])
        except asyncio.CancelledError:
            await self._note(self.cancelled, method)
            raise
        await self._note(self.ended, method)

    async def _note(self, log: list[str], method: str) -> None:
        async with self.changed:
            log.append(method)
            self.changed.notify_all()

    async def wait_for(self, log: list[str], method: str, count: int = 1) -> None:
        """Return when *method* is in the log so many times."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: log.count(method) >= count)


@asynccontextmanager
async def serving(path: Path, *, cri: bool = True) -> AsyncIterator[FakeContainerd]:
    fake = FakeContainerd(path)
    await fake.start(cri=cri)
    try:
        yield fake
    finally:
        await fake.stop()
