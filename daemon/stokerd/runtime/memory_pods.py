"""Pod sandboxes and containers in memory: what containerd keeps of them, and the processes under their shims.

Processes outlive a crash of containerd, as they do under real shims: timers of containers go on, and their ends are
seen when it is back. Nothing in the store waits; the services (`memory_cri_runtime`) do.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from stokerd.errors import RuntimeAlreadyExists, RuntimeBusy, RuntimeFailure, RuntimeInvalid, RuntimeNotFound
from stokerd.runtime.memory_artifacts import digest_of
from stokerd.runtime.memory_conduct import Conduct, Conducts
from stokerd.runtime.memory_pull import Generation
from stokerd.runtime.memory_spec import runtime_spec
from stokerd.runtime.pod_types import (
    Blueprint,
    Container,
    ContainerEvent,
    ContainerEventKind,
    ContainerMount,
    ContainerState,
    ContainerStatus,
    Pod,
    PodBlueprint,
    PodState,
    PodStatus,
)

T = TypeVar("T")

_SHARED_PID = 0
"""CRI's NamespaceMode.POD: every process of the pod ends with its pause process."""


@dataclass(slots=True, eq=False)
class MemoryPod:
    """A sandbox. ``config`` is the JSON of its PodSandboxConfig."""

    id: str
    config: dict[str, Any]
    runtime_handler: str
    created_at: datetime
    pid: int
    ip: str
    state: PodState = "ready"
    network: bool = True
    """Whether it has its network namespace still; stopping it takes that away, the death of its pause process not."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The pause process is gone."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.config.get("metadata") or {}

    @property
    def key(self) -> tuple[object, ...]:
        about = self.metadata
        return about.get("name"), about.get("namespace"), about.get("uid"), about.get("attempt", 0)

    @property
    def shares_pids(self) -> bool:
        security = (self.config.get("linux") or {}).get("security_context") or {}
        return bool((security.get("namespace_options") or {}).get("pid", _SHARED_PID) == _SHARED_PID)

    def value(self) -> Pod:
        about = self.metadata
        return Pod(
            id=self.id,
            name=about.get("name", ""),
            namespace=about.get("namespace", ""),
            uid=about.get("uid", ""),
            attempt=about.get("attempt", 0),
            state=self.state,
            created_at=self.created_at,
            labels=dict(self.config.get("labels") or {}),
            annotations=dict(self.config.get("annotations") or {}),
            runtime_handler=self.runtime_handler,
        )

    def status(self) -> PodStatus:
        ips = (self.ip,) if self.network else ()
        netns = f"/var/run/netns/cni-{self.id[:8]}" if self.network else ""
        return PodStatus(self.value(), ips, self.pid, netns, PodBlueprint(self.config, self.runtime_handler))


@dataclass(slots=True, eq=False)
class MemoryContainer:
    """A container. ``config`` is the JSON of its ContainerConfig, ``signals`` what it was sent."""

    id: str
    pod: MemoryPod
    config: dict[str, Any]
    image_ref: str
    created_at: datetime
    spec: dict[str, Any]
    state: ContainerState = "created"
    conduct: Conduct = field(default_factory=Conduct)
    pid: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    starting: bool = False
    signals: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str((self.config.get("metadata") or {}).get("name", ""))

    @property
    def attempt(self) -> int:
        return int((self.config.get("metadata") or {}).get("attempt", 0))

    @property
    def image(self) -> str:
        return str((self.config.get("image") or {}).get("image", ""))

    @property
    def key(self) -> tuple[object, ...]:
        """What its name is reserved by: the pod's identity, not its sandbox's id."""
        return (self.name, self.attempt, *self.pod.key)

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the main process, so long at most."""
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True

    def value(self) -> Container:
        return Container(
            id=self.id,
            pod_id=self.pod.id,
            name=self.name,
            attempt=self.attempt,
            image=self.image,
            image_ref=self.image_ref,
            state=self.state,
            created_at=self.created_at,
            labels=dict(self.config.get("labels") or {}),
            annotations=dict(self.config.get("annotations") or {}),
        )

    def status(self) -> ContainerStatus:
        logs, path = self.pod.config.get("log_directory") or "", self.config.get("log_path") or ""
        return ContainerStatus(
            container=self.value(),
            blueprint=Blueprint(self.config),
            pid=self.pid,
            started_at=self.started_at,
            finished_at=self.finished_at,
            exit_code=self.exit_code,
            reason=self.reason,
            message=self.message,
            log_path=f"{logs}/{path}" if logs and path else "",
            mounts=tuple(
                ContainerMount(
                    each.get("container_path", ""), each.get("host_path", ""), bool(each.get("readonly", False))
                )
                for each in self.config.get("mounts") or []
            ),
            spec=self.spec,
        )


class PodStore:
    """All sandboxes and containers of the node, and what happens to them."""

    def __init__(self, clock: Callable[[], datetime], generation: Generation) -> None:
        self.clock = clock
        self.generation = generation
        self.pods: dict[str, MemoryPod] = {}
        self.containers: dict[str, MemoryContainer] = {}
        self.conducts = Conducts()
        self.execs: list[tuple[str, tuple[str, ...]]] = []
        self.on_event: Callable[[ContainerEvent], None] = lambda _event: None
        self.on_create: Callable[[MemoryContainer], None] = lambda _container: None
        self.on_remove: Callable[[MemoryContainer], None] = lambda _container: None
        self._numbers = itertools.count(1)
        self._pids = itertools.count(20_000, 7)

    # ------------------------------------------------------------------------------------------ finding

    def pod(self, pod_id: str) -> MemoryPod | None:
        return _by_id(self.pods, pod_id)

    def container(self, container_id: str) -> MemoryContainer | None:
        return _by_id(self.containers, container_id)

    def of_pod(self, pod: MemoryPod) -> list[MemoryContainer]:
        return [each for each in self.containers.values() if each.pod is pod]

    def pod_name(self, pod_id: str) -> str:
        pod = self.pod(pod_id)
        return str(pod.metadata.get("name", "")) if pod is not None else ""

    def name(self, container_id: str) -> str:
        container = self.container(container_id)
        return container.name if container is not None else ""

    def recover(self) -> None:
        """containerd starts again: what it was about to start is created still."""
        for container in self.containers.values():
            container.starting = False

    # ------------------------------------------------------------------------------------------ sandboxes

    def run_pod(self, config: dict[str, Any], runtime_handler: str) -> MemoryPod:
        number = next(self._numbers)
        pod = MemoryPod(
            digest_of(f"pod {number}".encode()).partition(":")[2],
            config,
            runtime_handler,
            self.clock(),
            next(self._pids),
            f"10.88.{number // 250}.{number % 250 + 2}",
        )
        taken = next((other for other in self.pods.values() if other.key == pod.key), None)
        if taken is not None:
            raise RuntimeAlreadyExists(
                f'failed to reserve sandbox name "{_joined(pod.key)}": name "{_joined(pod.key)}" is reserved for '
                f'"{taken.id}"',
                status="FAILED_PRECONDITION",
                call="cri.RunPodSandbox",
            )
        self.pods[pod.id] = pod
        self.tell("created", pod.id, pod.id)
        self.tell("started", pod.id, pod.id)
        return pod

    def stop_pod(self, pod: MemoryPod) -> None:
        """Kill what runs in the sandbox, and end it."""
        for container in self.of_pod(pod):
            self.end(container, 137)
        self._end_pause(pod)
        pod.network = False

    def lose_pod(self, pod: MemoryPod) -> None:
        """The pause process dies: the sandbox is not ready any more, and keeps its network namespace."""
        if pod.shares_pids:
            for container in self.of_pod(pod):
                self.end(container, 137)
        self._end_pause(pod)

    def remove_pod(self, pod: MemoryPod) -> None:
        self.stop_pod(pod)
        for container in self.of_pod(pod):
            self.remove(container)
        del self.pods[pod.id]
        self.tell("deleted", pod.id, pod.id)

    def _end_pause(self, pod: MemoryPod) -> None:
        if pod.state == "ready":
            pod.state, pod.pid = "notready", 0
            pod.ended.set()
            self.tell("stopped", pod.id, pod.id)

    # ------------------------------------------------------------------------------------------ containers

    def create(self, pod_id: str, config: dict[str, Any], resolve: Callable[[str], str]) -> MemoryContainer:
        """Create a container in a sandbox; *resolve* gives the id of an image, or raises RuntimeNotFound."""
        call = "cri.CreateContainer"
        pod = self.pod(pod_id)
        if pod is None:
            raise RuntimeNotFound(f'failed to find sandbox id "{pod_id}": not found', status="NOT_FOUND", call=call)
        if pod.state != "ready" and self.generation != "2.1":  # 2.1 creates it there, and then does not start it
            raise RuntimeNotFound(
                f"failed to get sandbox container task: no running task found: task {pod.id} not found: not found",
                status="NOT_FOUND",
                call=call,
            )
        container_id = digest_of(f"container {next(self._numbers)}".encode()).partition(":")[2]
        spec = runtime_spec(container_id, config, pod.id, pod.config, pod.pid)
        container = MemoryContainer(container_id, pod, config, "", self.clock(), spec)
        taken = next((other for other in self.containers.values() if other.key == container.key), None)
        if taken is not None:
            name = _joined((container.name, *pod.key[:3], container.attempt))
            raise RuntimeAlreadyExists(
                f'failed to reserve container name "{name}": name "{name}" is reserved for "{taken.id}"',
                status="FAILED_PRECONDITION" if self.generation == "2.1" else "UNKNOWN",
                call=call,
            )
        container.image_ref = resolve(container.image)
        self.containers[container_id] = container
        self.on_create(container)
        self.tell("created", container_id, pod.id)
        return container

    def begin_start(self, container: MemoryContainer) -> None:
        """The first half of a start: is it allowed?"""
        call = "cri.StartContainer"
        if container.state != "created" or container.starting:
            state = (
                "already in starting state" if container.starting else f"in CONTAINER_{container.state.upper()} state"
            )
            kind = RuntimeBusy if container.starting else RuntimeInvalid
            raise kind(
                f'failed to set starting state for container "{container.id}": container is {state}',
                status="UNKNOWN",
                call=call,
            )
        if container.pod.state != "ready":
            raise RuntimeInvalid(f'sandbox container "{container.pod.id}" is not running', status="UNKNOWN", call=call)
        container.starting = True
        container.conduct = self.conducts.of(container.config)

    def finish_start(self, container: MemoryContainer) -> None:
        """The second half: it runs, or it has failed to."""
        container.starting = False
        if container.conduct.start_error:
            container.state, container.exit_code, container.reason = "exited", 128, "StartError"
            container.finished_at, container.message = self.clock(), container.conduct.start_error
            container.ended.set()
            raise RuntimeFailure(container.conduct.start_error, status="UNKNOWN", call="cri.StartContainer")
        container.state, container.started_at, container.pid = "running", self.clock(), next(self._pids)
        self.tell("started", container.id, container.pod.id)
        conduct = container.conduct
        if conduct.exits_after is not None:
            self._later(container, conduct.exits_after, conduct.exit_code, conduct.reason)

    def ask_to_stop(self, container: MemoryContainer) -> None:
        """Send the stop signal."""
        container.signals.append("TERM")
        if container.state == "running" and not container.conduct.ignores_term:
            self._later(container, container.conduct.stops_after, container.conduct.stop_code)

    def kill(self, container: MemoryContainer) -> None:
        container.signals.append("KILL")
        self.end(container, 137)

    def end(self, container: MemoryContainer, exit_code: int, reason: str = "") -> None:
        """The main process ends; one that does not run has none."""
        if container.state != "running":
            return
        for timer in container.timers:
            timer.cancel()
        container.timers.clear()
        container.state, container.exit_code, container.pid = "exited", exit_code, 0
        container.reason = reason or ("Error" if exit_code else "Completed")
        container.finished_at = self.clock()
        container.ended.set()
        self.tell("stopped", container.id, container.pod.id)

    def remove(self, container: MemoryContainer) -> None:
        """Remove a container; one that runs is killed first, as containerd does it."""
        if container.state == "running":
            self.kill(container)
        if self.containers.pop(container.id, None) is not None:
            self.on_remove(container)
            self.tell("deleted", container.id, container.pod.id)

    def used_images(self) -> Iterable[str]:
        for container in self.containers.values():
            yield from (name for name in (container.image, container.image_ref) if name)

    # ------------------------------------------------------------------------------------------ inside

    def tell(self, kind: ContainerEventKind, identity: str, pod_id: str) -> None:
        self.on_event(ContainerEvent(kind, identity, pod_id))

    def _later(self, container: MemoryContainer, seconds: float, exit_code: int, reason: str = "") -> None:
        if seconds <= 0:
            self.end(container, exit_code, reason)
            return
        loop = asyncio.get_running_loop()
        container.timers.append(loop.call_later(seconds, self.end, container, exit_code, reason))


def _joined(parts: Iterable[object]) -> str:
    return "_".join(str(part) for part in parts)


def _by_id(table: Mapping[str, T], identity: str) -> T | None:
    """Find by id, or by the only id that begins so."""
    if identity in table or not identity:
        return table.get(identity)
    found = [table[each] for each in table if each.startswith(identity)]
    return found[0] if len(found) == 1 else None
