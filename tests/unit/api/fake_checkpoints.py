"""CheckpointsPort with lists for a node, scripted by the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from stoker.objects.checkpoints import (
    CheckpointDetail,
    CheckpointInfo,
    CheckpointNode,
    CheckpointRequest,
    CloneInfo,
    CloneRequest,
    CommitRequest,
    CommittedImage,
    Operation,
    OperationEvent,
    OperationKind,
    OperationStep,
    PausedContainer,
    PauseRequest,
    PauseResult,
    RestoreRequest,
)
from stokerd.errors import NotFound
from tests.unit.api.feeds import Feed

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def checkpoint(identity: str = "cp-20260301-120000-abc123", **more: Any) -> CheckpointInfo:
    known: dict[str, Any] = {
        "namespace": "default",
        "pod": "web",
        "container": "app",
        "image": "nginx:1.27",
        "created_at": NOW,
        "bytes": 3 << 20,
        "memory_bytes": 2 << 20,
        "frozen_seconds": 0.042,
    }
    return CheckpointInfo(id=identity, **(known | more))


def clone(identity: str = "clone-0011223344556677", **more: Any) -> CloneInfo:
    known: dict[str, Any] = {
        "checkpoint": "cp-20260301-120000-abc123",
        "phase": "Running",
        "addresses": ["10.88.0.7"],
        "memory_bytes": 2 << 20,
        "pid": 4242,
        "created_at": NOW,
    }
    return CloneInfo(id=identity, **(known | more))


class FakeCheckpoints:
    """Operations stay as they are until a test updates them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, Exception] = {}
        """Method name -> what it raises."""
        self.made: list[CheckpointInfo] = [checkpoint()]
        self.clone_list: list[CloneInfo] = []
        self.operations_by_id: dict[str, Operation] = {}
        self.feeds: dict[str, list[Feed[OperationEvent]]] = {}
        self.on_follow: Callable[[Operation], object] = lambda operation: None

    def _enter(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        if name in self.failures:
            raise self.failures[name]

    def asked(self, name: str) -> Any:
        """Return what a method was called with last."""
        return next(argument for called, argument in reversed(self.calls) if called == name)

    def _begin(self, kind: OperationKind, subject: str, *, request: str = "", desired: int = 1) -> Operation:
        identity = f"op-{len(self.operations_by_id):010x}"
        operation = Operation(
            id=identity,
            kind=kind,
            phase="Pending",
            request=request or identity,
            subject=subject,
            desired=desired,
            created_at=NOW,
        )
        self.operations_by_id[identity] = operation
        return operation

    # ------------------------------------------------------------------------------------------ what tests do

    def update(self, identity: str, **more: Any) -> Operation:
        """Change an operation, and tell who follows it; an end ends the streams."""
        operation = replace(self.operations_by_id[identity], **more)
        self.operations_by_id[identity] = operation
        over = operation.phase in {"Succeeded", "Failed"}
        for feed in self.feeds.get(identity, []):
            feed.put(OperationEvent(operation=operation))
            if over:
                feed.put(None)
        return operation

    def step(self, identity: str, name: str) -> Operation:
        steps = [*self.operations_by_id[identity].steps, OperationStep(name=name, started_at=NOW)]
        return self.update(identity, phase="Running", started_at=NOW, steps=steps)

    def succeed(self, operation: Operation) -> Operation:
        """Let an operation come out as such a one does."""
        more: dict[str, Any] = {"phase": "Succeeded", "succeeded": operation.desired, "finished_at": NOW}
        if operation.kind in {"Checkpoint", "Verify"}:
            more["checkpoints"] = [checkpoint()]
        if operation.kind in {"Clone", "Restore"}:
            more["clones"] = [clone(f"clone-{number:016x}") for number in range(operation.desired)]
        if operation.kind == "Commit":
            more["image"] = CommittedImage(
                image="docker.io/library/app:v2",
                id="sha256:" + "a" * 64,
                digest="sha256:" + "b" * 64,
                layer_bytes=1 << 20,
                frozen_seconds=0.003,
            )
        return self.update(operation.id, **more)

    # ------------------------------------------------------------------------------------------ the port

    async def operations(self) -> list[Operation]:
        self._enter("operations", None)
        return list(reversed(self.operations_by_id.values()))

    async def operation(self, name: str) -> Operation:
        found = [each for each in self.operations_by_id.values() if each.id.startswith(name) or each.request == name]
        if len(found) != 1:
            raise NotFound(f"there is no operation {name!r}", hint="`stoker operations` lists those that are known")
        return found[0]

    async def cancel_operation(self, name: str) -> Operation:
        self._enter("cancel_operation", name)
        operation = await self.operation(name)
        if operation.phase in {"Succeeded", "Failed"}:
            return operation
        return self.update(operation.id, phase="Failed", reason="Cancelled", message="it was cancelled", cancelled=True)

    def follow_operation(self, identity: str) -> AsyncIterator[OperationEvent]:
        operation = self.operations_by_id[identity]
        feed = Feed[OperationEvent]([OperationEvent(operation=operation)])
        if operation.phase in {"Succeeded", "Failed"}:
            feed.put(None)
        else:
            self.feeds.setdefault(identity, []).append(feed)
            self.on_follow(operation)
        return feed()

    async def create_checkpoint(self, request: CheckpointRequest) -> Operation:
        self._enter("create_checkpoint", request)
        return self._begin("Checkpoint", request.pod, request=request.request)

    async def checkpoints(self) -> list[CheckpointInfo]:
        self._enter("checkpoints", None)
        return self.made

    async def checkpoint(self, name: str) -> CheckpointDetail:
        self._enter("checkpoint", name)
        return CheckpointDetail(
            info=self._find(name),
            node=CheckpointNode(kernel="6.12", architecture="x86_64", criu="4.2", runc="1.3", containerd="2.1"),
            root_bytes=1 << 20,
            root_entries=12,
            directory=f"/var/lib/stoker/checkpoints/{name}",
        )

    async def verify_checkpoint(self, name: str) -> Operation:
        self._enter("verify_checkpoint", name)
        return self._begin("Verify", self._find(name).id)

    async def remove_checkpoint(self, name: str) -> list[CheckpointInfo]:
        self._enter("remove_checkpoint", name)
        found = self._find(name)
        self.made.remove(found)
        return [found]

    async def restore(self, name: str, request: RestoreRequest) -> Operation:
        self._enter("restore", (name, request))
        return self._begin("Restore", self._find(name).id)

    async def clone(self, request: CloneRequest) -> Operation:
        self._enter("clone", request)
        return self._begin("Clone", self._find(request.checkpoint).id, desired=request.count)

    async def clones(self) -> list[CloneInfo]:
        self._enter("clones", None)
        return self.clone_list

    async def clone_status(self, name: str) -> CloneInfo:
        self._enter("clone_status", name)
        found = [each for each in self.clone_list if each.id.startswith(name)]
        if len(found) != 1:
            raise NotFound(f"there is no clone {name!r}", hint="`stoker clone ls` lists them")
        return found[0]

    async def remove_clone(self, name: str) -> CloneInfo:
        self._enter("remove_clone", name)
        found = await self.clone_status(name)
        self.clone_list.remove(found)
        return found

    async def commit(self, request: CommitRequest) -> Operation:
        self._enter("commit", request)
        return self._begin("Commit", f"{request.container} as {request.image}")

    async def pause(self, request: PauseRequest) -> PauseResult:
        self._enter("pause", request)
        return PauseResult(
            containers=[PausedContainer(id="c" * 64, state="Paused", namespace="default", pod="web", container="app")]
        )

    async def resume(self, request: PauseRequest) -> PauseResult:
        self._enter("resume", request)
        return PauseResult(
            containers=[PausedContainer(id="c" * 64, state="Running", namespace="default", pod="web", container="app")]
        )

    def _find(self, name: str) -> CheckpointInfo:
        found = [each for each in self.made if name == each.name or each.id.startswith(name)]
        if len(found) != 1:
            raise NotFound(f"no checkpoint {name} is here", hint="stoker checkpoint ls")
        return found[0]
