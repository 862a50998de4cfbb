"""A node's rooms as the uplink needs them, without a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from msgspec.structs import replace

from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest
from stoker.objects.checkpoints import (
    CheckpointInfo,
    CheckpointRequest,
    CloneInfo,
    CloneRequest,
    CommitRequest,
    Operation,
    OperationEvent,
    PushedTo,
)
from stoker.objects.containers import PodInfo, RecreateEvent, RecreateRequest, RecreateStatus
from stoker.objects.images import (
    Event,
    ImageChange,
    ImageStatus,
    ItemStatus,
    JobEvent,
    JobStatus,
    SpaceNeed,
    WarmRequest,
)
from stoker.objects.node import CapabilityStatus, NodeInfo
from stokerd.errors import Conflict, NotFound, StokerError
from stokerd.uplink.ports import Ports


class Bell:
    """Wakes all who wait whenever it is rung."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class FakeImages:
    """`ports.Images`: jobs that end when a test says so."""

    def __init__(self) -> None:
        self.present: list[ImageStatus] = []
        self.requests: list[WarmRequest] = []
        self.by_id: dict[str, JobStatus] = {}
        self.refuses: StokerError | None = None
        self.bell = Bell()

    async def warm(self, request: WarmRequest) -> JobStatus:
        if self.refuses is not None:
            raise self.refuses
        self.requests.append(request)
        items = [ItemStatus(image=each, reference=each, phase="Waiting") for each in request.images]
        job = JobStatus(id=f"warm-{len(self.requests)}", name=request.name, state="Active", items=items)
        self.by_id[job.id] = job
        return job

    def jobs(self) -> list[JobStatus]:
        return [replace(job, items=[]) for job in self.by_id.values()]

    def end(self, job_id: str, state: Any, reason: str = "") -> None:
        """Let a job be over."""
        job = self.by_id[job_id]
        items = [replace(item, phase=state, reason=reason) for item in job.items]
        self.by_id[job_id] = replace(job, state=state, items=items)
        self.bell.ring()

    async def follow(self, job_id: str) -> AsyncGenerator[Event, None]:
        while True:
            if job_id not in self.by_id:
                raise NotFound(f"no job {job_id}")
            yield JobEvent(job=self.by_id[job_id])
            if self.by_id[job_id].state != "Active":
                return
            await self.bell.wait()

    async def cancel(self, job_id: str) -> JobStatus:
        if self.by_id[job_id].state == "Active":
            self.end(job_id, "Cancelled")
        return self.by_id[job_id]

    async def watch(self) -> AsyncGenerator[Event, None]:
        while True:
            await self.bell.wait()
            yield ImageChange(kind="update", reference="any")

    async def list(self) -> list[ImageStatus]:
        return list(self.present)


class FakeContainers:
    """`ports.Containers`."""

    def __init__(self) -> None:
        self.there: list[PodInfo] = []
        self.requests: list[RecreateRequest] = []
        self.by_id: dict[str, RecreateStatus] = {}
        self.bell = Bell()

    async def pods(self) -> list[PodInfo]:
        return list(self.there)

    async def recreate(self, request: RecreateRequest) -> RecreateStatus:
        self.requests.append(request)
        status = RecreateStatus(id=f"recreate-{len(self.requests)}", name=request.name, phase="Recreating")
        self.by_id[status.id] = status
        return status

    def recreates(self) -> list[RecreateStatus]:
        return list(self.by_id.values())

    async def follow_recreate(self, request_id: str) -> AsyncGenerator[RecreateEvent, None]:
        while True:
            yield RecreateEvent(recreate=self.by_id[request_id])
            if self.by_id[request_id].phase == "Completed":
                return
            await self.bell.wait()

    def end(self, request_id: str, result: Any) -> None:
        self.by_id[request_id] = replace(self.by_id[request_id], phase="Completed", result=result)
        self.bell.ring()

    async def cancel_recreate(self, request_id: str) -> RecreateStatus:
        self.end(request_id, "Cancelled")
        return self.by_id[request_id]


class FakeCheckpoints:
    """`ports.Checkpoints`: what is asked for is done at once, or when a test says so, where its kind is ``held``."""

    in_use = True

    def __init__(self) -> None:
        self.done: list[Operation] = []
        self.requests: list[Any] = []
        self.held: set[str] = set()
        self.refuses: list[StokerError] = []
        """Raised by what is asked for next, one each."""
        self.kept: dict[str, CheckpointInfo] = {}
        self.running: dict[str, CloneInfo] = {}
        self.away: StokerError | None = None
        self.followed = 0
        self.bell = Bell()

    async def checkpoints(self) -> list[CheckpointInfo]:
        if self.away is not None:
            raise self.away
        stand = [each.checkpoint for each in self.running.values()]
        return [replace(each, clones=stand.count(each.id)) for each in self.kept.values()]

    async def clones(self) -> list[CloneInfo]:
        if self.away is not None:
            raise self.away
        return list(self.running.values())

    async def operations(self) -> list[Operation]:
        return self.done[::-1]

    def of(self, kind: str) -> list[Operation]:
        return [each for each in self.done if each.kind == kind]

    async def follow_operation(self, identity: str) -> AsyncGenerator[OperationEvent, None]:
        self.followed += 1
        while True:
            found = next(each for each in self.done if each.id == identity)
            yield OperationEvent(operation=found)
            if found.phase in {"Succeeded", "Failed"}:
                return
            await self.bell.wait()

    async def cancel_operation(self, name: str) -> Operation:
        found = next(each for each in self.done if each.id == name)
        if found.phase == "Running":
            self.end(found, phase="Failed", reason="Cancelled", cancelled=True)
        return found

    def end(self, operation: Operation, **what: Any) -> None:
        """Let an operation be over."""
        self.done = [replace(each, **what) if each.id == operation.id else each for each in self.done]
        self.bell.ring()

    def _do(self, kind: Any, request: Any, **what: Any) -> Operation:
        if self.refuses:
            raise self.refuses.pop(0)
        self.requests.append(request)
        phase: Any = "Running" if kind in self.held else "Succeeded"
        self.done.append(Operation(id=f"op-{len(self.done)}", kind=kind, phase=phase, request=request.request, **what))
        return self.done[-1]

    def _keep(self, identity: str, name: str) -> CheckpointInfo:
        self.kept[identity] = CheckpointInfo(id=identity, name=name)
        return self.kept[identity]

    async def create_checkpoint(self, request: CheckpointRequest) -> Operation:
        names = request.containers or ["app"]
        return self._do("Checkpoint", request, checkpoints=[self._keep(f"cp-{each}", request.name) for each in names])

    async def push_checkpoint(self, name: str, request: CheckpointPushRequest) -> Operation:
        return self._do("Push", request, pushed=PushedTo(reference=request.to, digest=f"sha256:{name}"))

    async def pull_checkpoint(self, request: CheckpointPullRequest) -> Operation:
        return self._do("Pull", request, checkpoints=[self._keep(f"cp-pulled-{len(self.kept)}", request.name)])

    async def clone(self, request: CloneRequest) -> Operation:
        operation = self._do("Clone", request)
        for number in range(len(self.running), len(self.running) + request.count):
            info = CloneInfo(
                id=f"clone-{number}", checkpoint=request.checkpoint, phase="Running", labels=dict(request.labels)
            )
            self.running[info.id] = info
        self.end(operation, clones=list(self.running.values()))
        return self.done[-1]

    async def commit(self, request: CommitRequest) -> Operation:
        return self._do("Commit", request)

    async def remove_checkpoint(self, name: str) -> list[CheckpointInfo]:
        if any(each.checkpoint == name for each in self.running.values()):
            raise Conflict(f"{name} is in use")
        return [self.kept.pop(name)]

    async def remove_clone(self, name: str) -> CloneInfo:
        if self.away is not None:
            raise self.away
        return self.running.pop(name)


class SwitchedOff(StokerError):
    reason = "SwitchedOff"


class FakeTopology:
    """`ports.Topology`: switched off."""

    async def report(self) -> Any:
        raise SwitchedOff("off")

    async def load_of_ports(self) -> Any:
        raise SwitchedOff("off")

    async def follow(self) -> AsyncGenerator[Any, None]:
        raise SwitchedOff("off")
        yield


class FakeNode:
    """All of them."""

    def __init__(self) -> None:
        self.images, self.containers, self.checkpoints = FakeImages(), FakeContainers(), FakeCheckpoints()
        self.problem = ""
        self.able, self.version = True, "2.1.4"

    async def info(self) -> NodeInfo:
        return NodeInfo(
            runtime_ready=not self.problem,
            runtime_message=self.problem,
            runtime_name="containerd",
            runtime_version="" if self.problem else self.version,
            capabilities=[CapabilityStatus(name="criu", available=self.able, detail="" if self.able else "is asked")],
            space=SpaceNeed(free_bytes=1 << 30),
        )

    @property
    def ports(self) -> Ports:
        return Ports(self.images, self.containers, self.checkpoints, FakeTopology(), self.info)
