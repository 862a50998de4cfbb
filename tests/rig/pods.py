"""Pods and containers on a node by bare CRI calls, as crictl or a kubelet would make them.

    async with BareCri(node) as cri:
        pod = await cri.run_pod("web")
        first = await cri.run(pod, "main", command=["sleep", "600"])
        assert (await cri.status(first)).state == runtime_pb2.CONTAINER_RUNNING

Leaving the block removes the pods that it made, and all that anybody put into them.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from cri_stubs.cri.v1 import runtime_pb2 as cri
from cri_stubs.cri.v1.runtime_pb2_grpc import ImageServiceStub, RuntimeServiceStub
from tests.rig import bundled
from tests.rig.node import Node

NAMESPACE = "rig"
SLEEP = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done")
"""Runs until it is told to stop, and then stops at once."""
STUBBORN = ("sh", "-c", "trap '' TERM; : > /tmp/ready; while :; do sleep 1; done")
"""Does not heed SIGTERM, as soon as it is `ready`."""


_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


def own_pids() -> cri.LinuxContainerConfig:
    """Return what gives a container a PID namespace of its own, as a kubelet does. CRI's default is the pod's."""
    options = cri.NamespaceOption(pid=cri.CONTAINER)
    return cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(namespace_options=options))


@dataclass(frozen=True)
class RigPod:
    """A sandbox and the configuration that it was made from."""

    id: str
    name: str
    uid: str
    config: cri.PodSandboxConfig
    log_directory: Path


@dataclass(frozen=True)
class Seen:
    """A container as a listing shows it."""

    id: str
    name: str
    attempt: int
    state: int
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.state == cri.CONTAINER_RUNNING


class BareCri:
    """CRI over one channel. Every call has a deadline."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._channel = grpc.aio.insecure_channel(f"unix:{node.endpoint}", options=_OPTIONS)
        self.runtime = RuntimeServiceStub(self._channel)
        self.images = ImageServiceStub(self._channel)
        self._pods: dict[str, RigPod] = {}

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.node.import_image, bundled.busybox_archive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*(self.remove_pod(pod) for pod in list(self._pods.values())))
        finally:
            await self._channel.close()

    # ------------------------------------------------------------------------------------------ pods

    async def run_pod(
        self,
        name: str,
        *,
        namespace: str = NAMESPACE,
        uid: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        host_network: bool = False,
    ) -> RigPod:
        """Make a pod sandbox with an address of its own, unless it is to share the node's."""
        uid = uid or str(uuid.uuid4())
        logs = self.node.artifacts_dir / "pods" / uid
        logs.mkdir(parents=True, exist_ok=True)
        options = cri.NamespaceOption(network=cri.NODE if host_network else cri.POD, pid=cri.CONTAINER)
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, namespace=namespace, uid=uid),
            hostname=name,
            log_directory=str(logs),
            labels=dict(labels or {}),
            annotations=dict(annotations or {}),
            linux=cri.LinuxPodSandboxConfig(
                security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
            ),
        )
        made = await self.runtime.RunPodSandbox(
            cri.RunPodSandboxRequest(config=config), timeout=60, wait_for_ready=True
        )
        pod = self._pods[made.pod_sandbox_id] = RigPod(made.pod_sandbox_id, name, uid, config, logs)
        return pod

    async def ip(self, pod: RigPod) -> str:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
        return (await self.runtime.PodSandboxStatus(request, timeout=10, wait_for_ready=True)).status.network.ip

    async def stop_pod(self, pod: RigPod) -> None:
        await self.runtime.StopPodSandbox(
            cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=60, wait_for_ready=True
        )

    async def remove_pod(self, pod: RigPod) -> None:
        """Remove the sandbox and all in it; one that is gone is no error."""
        self._pods.pop(pod.id, None)
        for seen in await self.list(pod):
            await self.stop(seen.id, 0)
        await self.stop_pod(pod)
        await self.runtime.RemovePodSandbox(
            cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id), timeout=60, wait_for_ready=True
        )

    # ------------------------------------------------------------------------------------------ containers

    async def create(
        self,
        pod: RigPod,
        name: str,
        *,
        image: str = bundled.BUSYBOX_REFERENCE,
        command: Sequence[str] = SLEEP,
        env: Mapping[str, str] | None = None,
        attempt: int = 0,
        config: cri.ContainerConfig | None = None,
        **more: Any,
    ) -> str:
        """Create a container; *more* are fields of ContainerConfig. *config* replaces all of it."""
        if config is None:
            envs = [cri.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items()]
            more.setdefault("linux", own_pids())
            config = cri.ContainerConfig(
                metadata=cri.ContainerMetadata(name=name, attempt=attempt),
                image=cri.ImageSpec(image=image),
                command=list(command),
                envs=envs,
                log_path=f"{name}.log",
                **more,
            )
        request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        return (await self.runtime.CreateContainer(request, timeout=30, wait_for_ready=True)).container_id

    async def start(self, container: str) -> None:
        await self.runtime.StartContainer(
            cri.StartContainerRequest(container_id=container), timeout=30, wait_for_ready=True
        )

    async def run(self, pod: RigPod, name: str, **options: Any) -> str:
        """Create and start; keywords are those of `create`."""
        container = await self.create(pod, name, **options)
        await self.start(container)
        return container

    async def stop(self, container: str, grace: int = 2) -> None:
        """Stop; one that somebody has removed meanwhile is no error."""
        request = cri.StopContainerRequest(container_id=container, timeout=grace)
        try:
            await self.runtime.StopContainer(request, timeout=grace + 30, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    async def remove(self, container: str) -> None:
        await self.runtime.RemoveContainer(
            cri.RemoveContainerRequest(container_id=container), timeout=30, wait_for_ready=True
        )

    async def list(self, pod: RigPod, name: str | None = None) -> list[Seen]:
        """Return the pod's containers, by name and attempt."""
        wanted = cri.ContainerFilter(pod_sandbox_id=pod.id)
        answer = await self.runtime.ListContainers(
            cri.ListContainersRequest(filter=wanted), timeout=10, wait_for_ready=True
        )
        seen = [
            Seen(each.id, each.metadata.name, each.metadata.attempt, each.state, dict(each.labels))
            for each in answer.containers
        ]
        return sorted((each for each in seen if name in {None, each.name}), key=lambda each: (each.name, each.attempt))

    async def status(self, container: str) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=container)
        return (await self.runtime.ContainerStatus(request, timeout=10, wait_for_ready=True)).status

    async def info(self, container: str) -> dict[str, Any]:
        """Return the verbose part: pid, config, runtimeSpec and more."""
        request = cri.ContainerStatusRequest(container_id=container, verbose=True)
        answer = await self.runtime.ContainerStatus(request, timeout=10, wait_for_ready=True)
        found: dict[str, Any] = json.loads(answer.info["info"])
        return found

    async def ready(self, container: str) -> None:
        """Return when a STUBBORN container does not heed SIGTERM any more."""
        async with asyncio.timeout(20):
            await self.exec(container, "sh", "-c", "until test -e /tmp/ready; do sleep 0.05; done")

    async def exec(self, container: str, *argv: str) -> str:
        """Return what a command printed; AssertionError when it failed."""
        request = cri.ExecSyncRequest(container_id=container, cmd=list(argv), timeout=10)
        answer = await self.runtime.ExecSync(request, timeout=20, wait_for_ready=True)
        assert answer.exit_code == 0, answer.stderr.decode(errors="replace")
        return answer.stdout.decode()
