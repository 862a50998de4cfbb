"""The client's methods about checkpoints, clones, commits, and the operations that these are."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from stoker.objects.checkpoints import (
    CheckpointDetail,
    CheckpointInfo,
    CheckpointRequest,
    CloneInfo,
    CloneRequest,
    CommitRequest,
    Operation,
    OperationEvent,
    PauseRequest,
    PauseResult,
    RestoreRequest,
)
from stoker.sse import Message
from stoker.transport import OnRetry, Transport, part

_decode = msgspec.json.Decoder(OperationEvent).decode


class CheckpointCalls(Transport):
    """Checkpoints, clones, and images made of containers.

    What takes long returns an Operation at once: `follow_operation` sees it to its end. Pods and containers may be
    named as in ContainerCalls; checkpoints and clones by id, a unique beginning of it, or the checkpoint's name.
    """

    async def create_checkpoint(self, request: CheckpointRequest) -> Operation:
        """Keep memory and root filesystem of containers as they are at one instant."""
        return await self._call("POST", "/v1/checkpoints", Operation, body=request)

    async def checkpoints(self) -> list[CheckpointInfo]:
        """Return the checkpoints on the node, newest first."""
        return await self._call("GET", "/v1/checkpoints", list[CheckpointInfo])

    async def checkpoint(self, name: str) -> CheckpointDetail:
        """Return one checkpoint."""
        return await self._call("GET", f"/v1/checkpoints/{part(name)}", CheckpointDetail)

    async def verify_checkpoint(self, name: str) -> Operation:
        """Have all of a checkpoint read again; the operation fails when something differs."""
        return await self._call("POST", f"/v1/checkpoints/{part(name)}/verify", Operation)

    async def remove_checkpoint(self, name: str) -> list[CheckpointInfo]:
        """Remove a checkpoint, or all that were taken in one freeze, by the id that these have in common; return what
        was removed. ClientError with the reason Conflict while clones stand on it."""
        return await self._call("DELETE", f"/v1/checkpoints/{part(name)}", list[CheckpointInfo])

    async def restore(self, name: str, request: RestoreRequest | None = None) -> Operation:
        """Bring the container of a checkpoint back in the place where it was."""
        body = request or RestoreRequest()
        return await self._call("POST", f"/v1/checkpoints/{part(name)}/restore", Operation, body=body)

    async def clone(self, request: CloneRequest) -> Operation:
        """Bring the container of a checkpoint back, as often as asked, each with a network of its own."""
        return await self._call("POST", "/v1/clones", Operation, body=request)

    async def clones(self) -> list[CloneInfo]:
        """Return the clones on the node, newest first."""
        return await self._call("GET", "/v1/clones", list[CloneInfo])

    async def clone_status(self, name: str) -> CloneInfo:
        """Return one clone."""
        return await self._call("GET", f"/v1/clones/{part(name)}", CloneInfo)

    async def remove_clone(self, name: str) -> CloneInfo:
        """End a clone and remove all that is its own."""
        return await self._call("DELETE", f"/v1/clones/{part(name)}", CloneInfo)

    async def commit(self, request: CommitRequest) -> Operation:
        """Make an image of a container's root filesystem."""
        return await self._call("POST", "/v1/commits", Operation, body=request)

    async def pause(self, request: PauseRequest) -> PauseResult:
        """Freeze containers until they are resumed."""
        return await self._call("POST", "/v1/pause", PauseResult, body=request)

    async def resume(self, request: PauseRequest) -> PauseResult:
        """Let frozen containers run."""
        return await self._call("POST", "/v1/resume", PauseResult, body=request)

    # ------------------------------------------------------------------------------------------ operations

    async def operations(self) -> list[Operation]:
        """Return the operations that stokerd knows, newest first."""
        return await self._call("GET", "/v1/operations", list[Operation])

    async def operation(self, name: str) -> Operation:
        """Return one operation, by its id, its name or a unique beginning of the id."""
        return await self._call("GET", f"/v1/operations/{part(name)}", Operation)

    async def cancel_operation(self, name: str) -> Operation:
        """End an operation and have undone what it has begun."""
        return await self._call("DELETE", f"/v1/operations/{part(name)}", Operation)

    async def follow_operation(
        self, name: str, *, patience: float = 120.0, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[OperationEvent, None]:
        """Yield the operation as it is, then every change, the last one being its end.

        It goes on in stokerd when the connection breaks, so this connects again, with growing pauses, until nothing was
        heard for *patience* seconds; then it raises DaemonUnreachable. *on_retry* is told the cause and the pause in
        seconds.
        """
        path = f"/v1/operations/{part(name)}/events"
        async with aclosing(self._follow(path, _read, _is_end, patience=patience, on_retry=on_retry)) as events:
            async for event in events:
                yield event


def _read(message: Message) -> OperationEvent | None:
    return _decode(message.data) if message.event == "operation" else None


def _is_end(event: OperationEvent) -> bool:
    return event.operation.phase in {"Succeeded", "Failed"}
