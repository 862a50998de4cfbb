"""Operations from their beginning to their end, as the API tells them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from stoker.objects.checkpoints import (
    CheckpointInfo,
    CloneInfo,
    CommittedImage,
    Operation,
    OperationKind,
    OperationStep,
)
from stokerd.errors import StokerError

OPERATION_LABEL = "stoker.dev/operation"
"""On checkpoints: the operation that made them, by which its result is found after a crash."""
LABELS_OF_OURS = "stoker.dev/"
_HIDDEN = "[hidden]"
_SHORTEST_SECRET = 4
T = TypeVar("T", CheckpointInfo, CloneInfo)


def new(
    identity: str, kind: OperationKind, *, request: str, subject: str, now: datetime, desired: int = 1
) -> Operation:
    return Operation(
        id=identity,
        kind=kind,
        phase="Pending",
        request=request or identity,
        subject=subject,
        desired=desired,
        created_at=now,
    )


def ended(operation: Operation) -> bool:
    return operation.phase in {"Succeeded", "Failed"}


def begun(operation: Operation, now: datetime) -> Operation:
    return replace(operation, phase="Running", started_at=now)


def at_step(operation: Operation, name: str, now: datetime) -> Operation:
    """Begin with a step; the same one again goes on."""
    if operation.steps and operation.steps[-1].name == name:
        return operation
    return replace(operation, steps=[*operation.steps, OperationStep(name=name, started_at=now)])


def with_clone(operation: Operation, clone: CloneInfo) -> Operation:
    return replace(operation, clones=[*operation.clones, clone], succeeded=operation.succeeded + 1)


def succeeded(
    operation: Operation,
    now: datetime,
    *,
    checkpoints: Iterable[CheckpointInfo] = (),
    image: CommittedImage | None = None,
) -> Operation:
    return replace(
        operation,
        phase="Succeeded",
        succeeded=operation.desired,
        checkpoints=[*operation.checkpoints, *checkpoints],
        image=image,
        message="",
        finished_at=now,
    )


def failed(operation: Operation, error: StokerError, now: datetime, secrets: Iterable[str] = ()) -> Operation:
    """*secrets*: what came with the request and is to be in no message, whoever quoted it."""
    hidden = sorted((each for each in secrets if len(each) >= _SHORTEST_SECRET), key=len, reverse=True)

    def plain(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, _HIDDEN)
        return text

    message = plain(error.message)
    if operation.desired > 1:
        message = f"{operation.succeeded} of {operation.desired} are done; the first that failed: {message}"
    return replace(
        operation,
        phase="Failed",
        reason=error.reason,
        message=message,
        hint=plain(error.hint or ""),
        causes=[plain(each) for each in (*getattr(error, "causes", ()), *getattr(error, "problems", ()))],
        finished_at=now,
    )


def cancelled(operation: Operation, now: datetime) -> Operation:
    message = "it was cancelled; what was begun was undone"
    return replace(_undone(operation, message), reason="Cancelled", finished_at=now)


def interrupted(operation: Operation, now: datetime) -> Operation:
    """stokerd ended in the middle. What was begun has been undone, or is by the next start."""
    begun_at_all = operation.phase == "Running"
    message = f"stokerd ended meanwhile; {'what was begun was undone' if begun_at_all else 'nothing was begun'}"
    return replace(_undone(operation, message), reason="Interrupted", hint="ask for it once more", finished_at=now)


def _undone(operation: Operation, message: str) -> Operation:
    if operation.succeeded:
        message += f"; the {operation.succeeded} that run already stay"
    return replace(operation, phase="Failed", message=message)


def recovered(operation: Operation, checkpoints: Iterable[CheckpointInfo], now: datetime) -> Operation:
    """Say how an operation came out that stokerd did not see the end of, by the checkpoints that bear its id."""
    found = list(checkpoints)
    if operation.kind in {"Checkpoint", "Pull"} and found and len(found) == operation.desired:
        return succeeded(operation, now, checkpoints=found)
    if operation.cancelled:
        return cancelled(operation, now)
    ending = interrupted(operation, now)
    if operation.kind == "Commit" and operation.phase == "Running":
        message = "stokerd ended meanwhile; the image is there only if it was complete by then"
        return replace(ending, message=message, hint="stoker image ls")
    return ending
