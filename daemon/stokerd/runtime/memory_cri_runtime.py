"""The pod and container services of one connection to the memory runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stokerd.errors import RuntimeFailure, RuntimeInvalid, RuntimeNotFound, RuntimeTimeout, StokerError
from stokerd.runtime.blueprint_codec import container_config, from_message, pod_config
from stokerd.runtime.memory_pods import MemoryContainer, PodStore
from stokerd.runtime.memory_services import Session
from stokerd.runtime.pod_types import (
    Blueprint,
    Container,
    ContainerStatus,
    ExecResult,
    Pod,
    PodBlueprint,
    PodStatus,
)
from stokerd.runtime.types import CriImage

FindImage = Callable[[str], CriImage | None]


class MemoryPods:
    """`protocol.CriPods`."""

    def __init__(self, session: Session, store: PodStore) -> None:
        self._session, self._store = session, store

    async def list(self) -> tuple[Pod, ...]:
        return await self._session.call(
            "cri.ListPodSandbox", lambda: tuple(pod.value() for pod in self._store.pods.values())
        )

    async def status(self, pod_id: str) -> PodStatus | None:
        named(pod_id, "cri.PodSandboxStatus")

        def work() -> PodStatus | None:
            pod = self._store.pod(pod_id)
            return pod.status() if pod is not None else None

        return await self._session.call("cri.PodSandboxStatus", work, self._store.pod_name(pod_id))

    async def run(self, pod: PodBlueprint) -> str:
        config = plain_pod(pod.config)
        return await self._session.call(
            "cri.RunPodSandbox",
            lambda: self._store.run_pod(config, pod.runtime_handler).id,
            str(config["metadata"]["name"]),
        )

    async def stop(self, pod_id: str) -> None:
        named(pod_id, "cri.StopPodSandbox")

        def work() -> None:
            pod = self._store.pod(pod_id)
            if pod is not None:
                self._store.stop_pod(pod)

        await self._session.call("cri.StopPodSandbox", work, self._store.pod_name(pod_id))

    async def remove(self, pod_id: str) -> None:
        named(pod_id, "cri.RemovePodSandbox")

        def work() -> None:
            pod = self._store.pod(pod_id)
            if pod is not None:
                self._store.remove_pod(pod)

        await self._session.call("cri.RemovePodSandbox", work, self._store.pod_name(pod_id))


class MemoryContainers:
    """`protocol.CriContainers`."""

    def __init__(self, session: Session, store: PodStore, find_image: FindImage) -> None:
        self._session, self._store, self._find_image = session, store, find_image

    async def list(self, *, pod_id: str | None = None) -> tuple[Container, ...]:
        def work() -> tuple[Container, ...]:
            return tuple(each.value() for each in self._store.containers.values() if pod_id in {None, each.pod.id})

        return await self._session.call("cri.ListContainers", work)

    async def status(self, container_id: str) -> ContainerStatus | None:
        named(container_id, "cri.ContainerStatus")

        def work() -> ContainerStatus | None:
            container = self._store.container(container_id)
            return container.status() if container is not None else None

        return await self._session.call("cri.ContainerStatus", work, self._store.name(container_id))

    async def create(self, pod_id: str, container: Blueprint, pod: PodBlueprint) -> str:
        named(pod_id, "cri.CreateContainer")
        config = plain_container(container.config)
        if self._store.generation == "1.6":  # whose CRI has no field for it
            config.pop("CDI_devices", None)
        plain_pod(pod.config)
        return await self._session.call(
            "cri.CreateContainer",
            lambda: self._store.create(pod_id, config, self._resolve).id,
            str(config["metadata"]["name"]),
        )

    def _resolve(self, image: str) -> str:
        found = self._find_image(image) if image else None
        if found is None:
            raise RuntimeNotFound(
                f'failed to resolve image "{image}": not found', status="NOT_FOUND", call="cri.CreateContainer"
            )
        return found.id

    async def start(self, container_id: str) -> None:
        call = "cri.StartContainer"
        named(container_id, call)

        async def work() -> None:
            container = self._known(container_id, call)
            self._store.begin_start(container)
            try:
                if container.conduct.starts_after > 0:
                    await asyncio.sleep(container.conduct.starts_after)
            except asyncio.CancelledError:
                container.starting = False
                raise
            self._store.finish_start(container)

        await self._session.run(call, work, self._store.name(container_id))

    async def stop(self, container_id: str, grace: float) -> None:
        named(container_id, "cri.StopContainer")

        async def work() -> None:
            container = self._store.container(container_id)
            if container is None or container.state != "running":
                return
            if grace > 0:
                self._store.ask_to_stop(container)
                await container.ends_within(grace)
            if container.state == "running":
                self._store.kill(container)

        await self._session.run("cri.StopContainer", work, self._store.name(container_id))

    async def remove(self, container_id: str) -> None:
        named(container_id, "cri.RemoveContainer")

        def work() -> None:
            container = self._store.container(container_id)
            if container is not None:
                self._store.remove(container)

        await self._session.call("cri.RemoveContainer", work, self._store.name(container_id))

    async def exec(self, container_id: str, argv: Sequence[str], *, timeout: float) -> ExecResult:
        call = "cri.ExecSync"
        named(container_id, call)
        work = partial(self._exec, container_id, tuple(argv), timeout)
        return await self._session.run(call, work, self._store.name(container_id))

    async def _exec(self, container_id: str, argv: tuple[str, ...], timeout: float) -> ExecResult:
        call = "cri.ExecSync"
        container = self._known(container_id, call)
        if container.state != "running":
            raise RuntimeInvalid(
                f"failed to exec in container: container is in CONTAINER_{container.state.upper()} state",
                status="UNKNOWN",
                call=call,
            )
        self._store.execs.append((container.id, argv))
        outcome, takes = self._store.conducts.command(container.config, argv)
        if takes > 0 and await container.ends_within(min(takes, timeout)):
            return ExecResult(137)  # with its container
        if takes > timeout:
            raise RuntimeTimeout(
                f"failed to exec in container: timeout {timeout:g}s exceeded: context deadline exceeded",
                status="DEADLINE_EXCEEDED",
                call=call,
            )
        if isinstance(outcome, StokerError):
            raise outcome
        if isinstance(outcome, str):
            raise RuntimeFailure(f"failed to exec in container: {outcome}", status="UNKNOWN", call=call)
        return outcome if isinstance(outcome, ExecResult) else outcome(argv)

    def _known(self, container_id: str, call: str) -> MemoryContainer:
        container = self._store.container(container_id)
        if container is None:
            raise RuntimeNotFound(
                f'an error occurred when try to find container "{container_id}": not found',
                status="NOT_FOUND",
                call=call,
            )
        return container


def named(identity: str, call: str) -> None:
    """Refuse the empty id: to CRI it is the beginning of every id."""
    if not identity:
        raise RuntimeInvalid("an id must not be empty", call=call)


def plain_pod(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sandbox's configuration as a verbose status would show it; refuse what real CRI has no field for."""
    return from_message(pod_config(config))


def plain_container(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's configuration as a verbose status would show it, likewise."""
    return from_message(container_config(config))
