"""The pod and container halves of CRI v1, over containerd."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cri_stubs.cri.v1 import runtime_pb2
from cri_stubs.cri.v1.runtime_pb2_grpc import RuntimeServiceStub
from stokerd.errors import RuntimeInvalid, RuntimeNotFound
from stokerd.runtime import convert_pods as convert
from stokerd.runtime.blueprint_codec import container_config, pod_config
from stokerd.runtime.channel import Wire
from stokerd.runtime.pod_types import (
    Blueprint,
    Container,
    ContainerStatus,
    ExecResult,
    Pod,
    PodBlueprint,
    PodStatus,
)

_SANDBOX_TIMEOUT = 60.0
"""Running and stopping a sandbox waits for the node's network plugins."""
_CREATE_TIMEOUT = 60.0
"""Creating and starting wait for the disk, and for runc behind whatever else the node starts just now."""
_STOP_MARGIN = 60.0
"""After the kill: what a process needs to let go of its memory and devices. containerd gives up after two minutes."""
_EXEC_MARGIN = 10.0


class CriPodService:
    """`protocol.CriPods` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = RuntimeServiceStub(wire.channel)

    async def list(self) -> tuple[Pod, ...]:
        request = runtime_pb2.ListPodSandboxRequest()
        answer = await self._wire.unary("cri.ListPodSandbox", self._stub.ListPodSandbox, request)
        return tuple(map(convert.pod, answer.items))

    async def status(self, pod_id: str) -> PodStatus | None:
        request = runtime_pb2.PodSandboxStatusRequest(pod_sandbox_id=_named(pod_id), verbose=True)
        try:
            answer = await self._wire.unary("cri.PodSandboxStatus", self._stub.PodSandboxStatus, request)
        except RuntimeNotFound:
            return None
        return convert.pod_status(answer.status, convert.document(answer.info))

    async def run(self, pod: PodBlueprint) -> str:
        config = pod_config(pod.config)
        request = runtime_pb2.RunPodSandboxRequest(config=config, runtime_handler=pod.runtime_handler)
        answer = await self._wire.unary(
            "cri.RunPodSandbox", self._stub.RunPodSandbox, request, timeout=_SANDBOX_TIMEOUT
        )
        return answer.pod_sandbox_id

    async def stop(self, pod_id: str) -> None:
        request = runtime_pb2.StopPodSandboxRequest(pod_sandbox_id=_named(pod_id))
        try:
            await self._wire.unary("cri.StopPodSandbox", self._stub.StopPodSandbox, request, timeout=_SANDBOX_TIMEOUT)
        except RuntimeNotFound:  # 1.6 says so, later ones do not
            return

    async def remove(self, pod_id: str) -> None:
        request = runtime_pb2.RemovePodSandboxRequest(pod_sandbox_id=_named(pod_id))
        try:
            await self._wire.unary(
                "cri.RemovePodSandbox", self._stub.RemovePodSandbox, request, timeout=_SANDBOX_TIMEOUT
            )
        except RuntimeNotFound:
            return


class CriContainerService:
    """`protocol.CriContainers` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = RuntimeServiceStub(wire.channel)

    async def list(self, *, pod_id: str | None = None) -> tuple[Container, ...]:
        return await self._list(runtime_pb2.ContainerFilter(pod_sandbox_id=pod_id or ""))

    async def _list(self, wanted: runtime_pb2.ContainerFilter) -> tuple[Container, ...]:
        request = runtime_pb2.ListContainersRequest(filter=wanted)
        answer = await self._wire.unary("cri.ListContainers", self._stub.ListContainers, request)
        return tuple(map(convert.container, answer.containers))

    async def status(self, container_id: str) -> ContainerStatus | None:
        request = runtime_pb2.ContainerStatusRequest(container_id=_named(container_id), verbose=True)
        try:
            answer = await self._wire.unary("cri.ContainerStatus", self._stub.ContainerStatus, request)
        except RuntimeNotFound:
            return None
        image_id = answer.status.image_id or await self._image_id(answer.status)
        return convert.container_status(answer.status, convert.document(answer.info), image_id)

    async def _image_id(self, status: runtime_pb2.ContainerStatus) -> str:
        """Return the image id as the listing has it. Before 2.0 a status gives a reference by digest where there is
        one, and the id nowhere."""
        if "@" not in status.image_ref:
            return status.image_ref
        for listed in await self._list(runtime_pb2.ContainerFilter(id=status.id)):
            return listed.image_ref
        return status.image_ref

    async def create(self, pod_id: str, container: Blueprint, pod: PodBlueprint) -> str:
        request = runtime_pb2.CreateContainerRequest(
            pod_sandbox_id=_named(pod_id),
            config=container_config(container.config),
            sandbox_config=pod_config(pod.config),
        )
        answer = await self._wire.unary(
            "cri.CreateContainer", self._stub.CreateContainer, request, timeout=_CREATE_TIMEOUT
        )
        return answer.container_id

    async def start(self, container_id: str) -> None:
        request = runtime_pb2.StartContainerRequest(container_id=_named(container_id))
        await self._wire.unary("cri.StartContainer", self._stub.StartContainer, request, timeout=_CREATE_TIMEOUT)

    async def stop(self, container_id: str, grace: float) -> None:
        seconds = max(math.ceil(grace), 0)  # CRI knows whole seconds; none at all would be a kill
        request = runtime_pb2.StopContainerRequest(container_id=_named(container_id), timeout=seconds)
        try:
            await self._wire.unary(
                "cri.StopContainer", self._stub.StopContainer, request, timeout=seconds + _STOP_MARGIN
            )
        except RuntimeNotFound:  # 1.6 says so, later ones do not
            return

    async def remove(self, container_id: str) -> None:
        request = runtime_pb2.RemoveContainerRequest(container_id=_named(container_id))
        try:
            await self._wire.unary("cri.RemoveContainer", self._stub.RemoveContainer, request, timeout=_STOP_MARGIN)
        except RuntimeNotFound:
            return

    async def exec(self, container_id: str, argv: Sequence[str], *, timeout: float) -> ExecResult:
        seconds = max(math.ceil(timeout), 1)  # to CRI 0 means for ever
        request = runtime_pb2.ExecSyncRequest(container_id=_named(container_id), cmd=list(argv), timeout=seconds)
        answer = await self._wire.unary("cri.ExecSync", self._stub.ExecSync, request, timeout=seconds + _EXEC_MARGIN)
        return ExecResult(answer.exit_code, answer.stdout, answer.stderr)


def _named(identity: str) -> str:
    if not identity:  # to CRI it is the beginning of every id
        raise RuntimeInvalid("an id must not be empty")
    return identity
