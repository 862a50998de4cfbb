"""ContainersPort with lists for a node, scripted by the tests."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from stoker.objects.containers import (
    ContainerDetail,
    ContainerInfo,
    ContainerPhase,
    MountInfo,
    Owner,
    PlannedStep,
    PodDetail,
    PodInfo,
    PodPhase,
    RecreateEvent,
    RecreatePlan,
    RecreateRequest,
    RecreateResult,
    RecreateStatus,
    Step,
    TargetStatus,
)
from stokerd.errors import Conflict, NotFound
from tests.unit.api.feeds import Feed

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def long_id(name: str) -> str:
    """An id as containerd makes them; the same name has the same one."""
    return hashlib.sha256(name.encode()).hexdigest()


def container(
    name: str, pod: str, *, attempt: int = 0, phase: ContainerPhase = "Running", image: str = "nginx:1.27"
) -> ContainerInfo:
    """A container of a pod that is named ``namespace/name``."""
    namespace, _, pod_name = pod.rpartition("/")
    return ContainerInfo(
        id=long_id(f"{pod}/{name}/{attempt}"),
        name=name,
        pod_id=long_id(pod),
        phase=phase,
        pod=pod_name,
        namespace=namespace,
        attempt=attempt,
        image=image,
        created_at=datetime.now(UTC) - timedelta(minutes=5, seconds=0.1),
        owner="stoker",
    )


def pod(name: str, *containers: ContainerInfo, owner: Owner = "stoker", phase: PodPhase = "Ready") -> PodInfo:
    """A pod that is named ``namespace/name``."""
    namespace, _, short = name.rpartition("/")
    return PodInfo(
        id=long_id(name),
        name=short,
        phase=phase,
        namespace=namespace,
        uid=f"uid-of-{short}",
        owner=owner,
        created_at=datetime.now(UTC) - timedelta(hours=2, minutes=5, seconds=0.1),
        labels={"app": short},
        annotations={"note": "hush"},
        containers=list(containers),
    )


class FakeContainers:
    """A node with pods; requests to recreate stay as they are until a test updates them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, Exception] = {}
        """Method name -> what it raises."""
        self.gates: dict[str, asyncio.Event] = {}
        """Method name -> what it waits for."""
        self.entered: dict[str, asyncio.Event] = {}
        self.all_pods: list[PodInfo] = []
        self.by_id: dict[str, RecreateStatus] = {}
        self.feeds: dict[str, list[Feed[RecreateEvent]]] = {}
        self.on_follow: Callable[[RecreateStatus], None] = lambda status: None
        self.steps: list[PlannedStep] = []
        self.plan_warnings: list[str] = []

    async def _enter(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        self.entering(name).set()
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.failures:
            raise self.failures[name]

    def entering(self, name: str) -> asyncio.Event:
        return self.entered.setdefault(name, asyncio.Event())

    # the inventory

    async def pods(self) -> list[PodInfo]:
        await self._enter("pods", None)
        return self.all_pods

    async def pod(self, name: str) -> PodDetail:
        await self._enter("pod", name)
        return PodDetail(
            info=self._pod(name),
            ips=["10.88.0.4"],
            pid=812,
            netns="/run/netns/cni-1",
            hostname="host-a",
            log_directory="/var/log/pods/a",
        )

    def _pod(self, name: str) -> PodInfo:
        found = [
            pod
            for pod in self.all_pods
            if name in {pod.name, f"{pod.namespace}/{pod.name}", pod.uid} or pod.id.startswith(name)
        ]
        one: PodInfo = self._only(found, "pod", name)
        return one

    @staticmethod
    def _only(found: list[Any], what: str, name: str) -> Any:
        if not found:
            raise NotFound(f"there is no {what} {name!r}", hint=f"stoker {what}s lists them")
        if len(found) > 1:
            raise Conflict(f"{name!r} fits several {what}s: " + ", ".join(sorted(one.id[:13] for one in found)))
        return found[0]

    async def containers(self) -> list[ContainerInfo]:
        await self._enter("containers", None)
        return [one for pod in self.all_pods for one in pod.containers]

    async def container(self, name: str) -> ContainerDetail:
        await self._enter("container", name)
        every = [one for pod in self.all_pods for one in pod.containers]
        names = [f"{one.pod}/{one.name}" for one in every]
        found = [one for one, full in zip(every, names, strict=True) if full == name or one.id.startswith(name)]
        found = [one for one in found if one.attempt == max(other.attempt for other in found)]
        info = self._only(found, "container", name)
        if info.phase == "Exited":
            return ContainerDetail(info=info, exit_code=0, reason="Completed", started_at=NOW, finished_at=NOW)
        return ContainerDetail(
            info=info,
            pid=4711,
            started_at=NOW,
            log_path="/var/log/pods/a/main/0.log",
            command=["nginx", "-g", "daemon off;"],
            env_names=["HOME", "TOKEN"],
            mounts=[MountInfo(container_path="/data", host_path="/mnt/data", readonly=True)],
            devices=["/dev/nvidia0"],
        )

    # recreate in place

    async def recreate(self, request: RecreateRequest) -> RecreateStatus:
        await self._enter("recreate", request)
        if request.name and any(status.name == request.name for status in self.by_id.values()):
            return next(status for status in self.by_id.values() if status.name == request.name)
        pod = self._pod(request.pod)
        wanted = {target.name: target.image for target in request.containers}
        if request.all:
            wanted = {one.name: "" for one in pod.containers}
        request_id = f"r{len(self.by_id) + 1:04d}"
        old = {one.name: one for one in pod.containers}
        self.by_id[request_id] = RecreateStatus(
            id=request_id,
            name=request.name or request_id,
            phase="Recreating",
            namespace=pod.namespace,
            pod=pod.name,
            pod_id=pod.id,
            pod_uid=pod.uid,
            owner=pod.owner,
            containers=[
                TargetStatus(
                    name=name, phase="Pending", image=image, old_id=old[name].id, old_attempt=old[name].attempt
                )
                for name, image in wanted.items()
            ],
            created_at=datetime.now(UTC),
        )
        return self.by_id[request_id]

    async def plan(self, request: RecreateRequest) -> RecreatePlan:
        await self._enter("recreate_plan", request)
        pod = self._pod(request.pod)
        return RecreatePlan(
            pod=pod.name,
            namespace=pod.namespace,
            pod_id=pod.id,
            owner=pod.owner,
            steps=self.steps,
            warnings=self.plan_warnings,
        )

    def recreates(self) -> list[RecreateStatus]:
        return list(reversed(self.by_id.values()))

    def recreate_status(self, request_id: str) -> RecreateStatus:
        found = [one for one in self.by_id.values() if one.id.startswith(request_id) or one.name == request_id]
        status: RecreateStatus = self._only(found, "recreate", request_id)
        return status

    async def cancel_recreate(self, request_id: str) -> RecreateStatus:
        await self._enter("cancel_recreate", request_id)
        status = self.recreate_status(request_id)
        if status.phase == "Completed":
            raise Conflict(f"{status.id} is over")
        self.finish(status.id, "Cancelled", message="cancelled by request")
        return self.by_id[status.id]

    def update(self, request_id: str, *targets: TargetStatus) -> None:
        """Put the new state of containers into the request and tell everybody who follows."""
        status = self.by_id[request_id]
        state = {target.name: target for target in status.containers} | {target.name: target for target in targets}
        self._tell(replace(status, containers=list(state.values())))

    def finish(self, request_id: str, result: RecreateResult, *targets: TargetStatus, message: str = "") -> None:
        """Update, and end the request."""
        status = self.by_id[request_id]
        state = {target.name: target for target in status.containers} | {target.name: target for target in targets}
        over = replace(status, containers=list(state.values()), phase="Completed", result=result, message=message)
        self._tell(replace(over, finished_at=datetime.now(UTC)))
        for feed in self.feeds.pop(request_id, []):
            feed.put(None)

    def _tell(self, status: RecreateStatus) -> None:
        self.by_id[status.id] = status
        for feed in self.feeds.get(status.id, []):
            feed.put(RecreateEvent(recreate=status))

    def follow_recreate(self, request_id: str) -> AsyncIterator[RecreateEvent]:
        status = self.recreate_status(request_id)
        feed = Feed([RecreateEvent(recreate=status)])
        if status.phase == "Completed":
            feed.put(None)
        else:
            self.feeds.setdefault(status.id, []).append(feed)
            self.on_follow(status)
        return feed()


def busy(target: TargetStatus, step: Step) -> TargetStatus:
    """A container that is being recreated."""
    started = datetime.now(UTC) - timedelta(seconds=3.1)
    return replace(target, phase="Recreating", step=step, new_attempt=target.old_attempt + 1, started_at=started)


def done(target: TargetStatus, downtime: float = 0.42) -> TargetStatus:
    """A container that was recreated."""
    return replace(
        busy(target, ""),
        phase="Succeeded",
        reason="Recreated",
        is_killed=True,
        new_id=long_id(f"{target.old_id}+"),
        downtime_seconds=downtime,
        finished_at=datetime.now(UTC),
    )


def broken(
    target: TargetStatus, reason: str = "ExitedEarly", hint: str = "", *, rolled_back: bool = True
) -> TargetStatus:
    """A container that could not be recreated."""
    return replace(
        done(target),
        phase="Failed",
        reason=reason,
        message="it ended with exit code 1",
        hint=hint,
        rolled_back=rolled_back,
        new_attempt=target.old_attempt + 2,
    )
