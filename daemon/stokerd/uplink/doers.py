"""Wishes as calls of the daemon's rooms. Translations only: what the rooms' rules are, they know."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from stoker.objects.checkpoints import CommitRequest, Operation, OperationEvent
from stoker.objects.containers import RecreateEvent, RecreateRequest, RecreateStatus
from stoker.objects.images import Event, ItemEvent, ItemStatus, JobEvent, JobStatus, WarmRequest
from stoker.objects.link import ResultKey, ResultPhase, Wish
from stokerd.errors import InvalidInput
from stokerd.uplink.ports import Checkpoints, Containers, Images

T = TypeVar("T")
_LONGEST_NAME = 200


class Told(msgspec.Struct, frozen=True):
    """How far something is. ``detail`` is what the API would show of it."""

    phase: ResultPhase
    reason: str = ""
    message: str = ""
    hint: str = ""
    detail: Any = None


class Doer(Protocol):
    """Has one kind of wishes done. Raises StokerError."""

    needs_wish: bool
    """Whether it can go on after a crash only when the coordinator has said the wish again."""

    async def find(self, key: ResultKey) -> str:
        """Return the local id of what was begun of a wish, before a crash perhaps; empty: nothing was."""
        ...

    async def begin(self, wish: Wish) -> str:
        """Begin, and return a local id."""
        ...

    def follow(self, local: str, wish: Wish | None, /) -> AsyncIterator[Told]:
        """Yield how far it is, until its end. *wish*: None after a crash, unless it is needed."""
        ...

    async def break_off(self, local: str) -> None: ...

    async def undo(self, key: ResultKey) -> None:
        """Remove what a wish made that is over and wished for no more; a second time does nothing. Only of kinds whose
        works go with their wish (`wanting.LASTING`)."""
        ...


class Plain:
    """Doers of what is begun once and stays."""

    needs_wish = False

    async def undo(self, key: ResultKey) -> None:
        """What was made is people's own."""


def spec_of(wish: Wish, kind: type[T]) -> T:
    """Return what a wish asks for; InvalidInput."""
    try:
        return msgspec.msgpack.decode(wish.spec, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"the coordinator's wish cannot be read: {error}",
            hint="stokerd may be older than the coordinator",
        ) from None


def mark_of(key: ResultKey) -> str:
    """Return what a job's name ends with, so that it is found again."""
    digest = hashlib.blake2b(f"{key.uid}\0{key.generation}".encode(), digest_size=8).hexdigest()
    return f"[wish {digest}]"


# ---------------------------------------------------------------------------------------------- images


class WarmDoer(Plain):
    """Warm images."""

    def __init__(self, images: Images) -> None:
        self._images = images

    async def find(self, key: ResultKey) -> str:
        mark = mark_of(key)
        return next((job.id for job in self._images.jobs() if job.name.endswith(mark)), "")

    async def begin(self, wish: Wish) -> str:
        request = spec_of(wish, WarmRequest)
        mark = mark_of(ResultKey(wish.uid, wish.generation))
        name = f"{(request.name or wish.name)[:_LONGEST_NAME]} {mark}".strip()
        return (await self._images.warm(replace(request, name=name))).id

    async def follow(self, local: str, _wish: Wish | None) -> AsyncGenerator[Told, None]:
        job, items = JobStatus(id=local, state="Active"), dict[str, ItemStatus]()
        async with aclosing(cast("AsyncGenerator[Event, None]", self._images.follow(local))) as events:
            async for event in events:
                match event:
                    case JobEvent():
                        job = event.job
                        items = {item.reference: _without_layers(item) for item in job.items}
                    case ItemEvent():
                        job = replace(job, counts=event.counts)
                        items[event.item.reference] = _without_layers(event.item)
                    case _:
                        continue
                yield _warmed(replace(job, items=list(items.values())))

    async def break_off(self, local: str) -> None:
        await self._images.cancel(local)


def _without_layers(item: ItemStatus) -> ItemStatus:
    return replace(item, progress=replace(item.progress, layers=[]))


def _warmed(job: JobStatus) -> Told:
    if job.state == "Active":
        phase: ResultPhase = "Running" if any(item.phase != "Waiting" for item in job.items) else "Pending"
    else:
        phase = job.state
    told = next((item for item in job.items if item.phase == "Failed"), None) or (job.items[0] if job.items else None)
    if told is None:
        return Told(phase, detail=job)
    return Told(phase, told.reason, told.message, told.hint, job)


# ---------------------------------------------------------------------------------------------- containers


class RecreateDoer(Plain):
    """Recreate containers in place. A request's name is its wish's uid, so the room itself takes it up once."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    async def find(self, key: ResultKey) -> str:
        return next((each.id for each in self._containers.recreates() if each.name == key.uid), "")

    async def begin(self, wish: Wish) -> str:
        request = spec_of(wish, RecreateRequest)
        return (await self._containers.recreate(replace(request, name=wish.uid))).id

    async def follow(self, local: str, _wish: Wish | None) -> AsyncGenerator[Told, None]:
        tidings = cast("AsyncGenerator[RecreateEvent, None]", self._containers.follow_recreate(local))
        async with aclosing(tidings) as events:
            async for event in events:
                yield _recreated(event.recreate)

    async def break_off(self, local: str) -> None:
        await self._containers.cancel_recreate(local)


def _recreated(status: RecreateStatus) -> Told:
    phases: Mapping[str, ResultPhase] = {"Pending": "Pending", "Recreating": "Running"}
    phase: ResultPhase = phases.get(status.phase) or status.result or "Failed"
    failed = next((each for each in status.containers if each.phase == "Failed"), None)
    reason, hint = (failed.reason, failed.hint) if failed is not None else ("", "")
    message = status.message or (failed.message if failed is not None else "")
    return Told(phase, reason, message, hint, status)


# ---------------------------------------------------------------------------------------------- commits


class CommitDoer(Plain):
    """Images made of containers. An operation's request is its wish's uid."""

    def __init__(self, operations: Checkpoints) -> None:
        self._operations = operations

    async def find(self, key: ResultKey) -> str:
        return next((each.id for each in await self._operations.operations() if each.request == key.uid), "")

    async def begin(self, wish: Wish) -> str:
        return (await self._operations.commit(replace(spec_of(wish, CommitRequest), request=wish.uid))).id

    async def follow(self, local: str, _wish: Wish | None) -> AsyncGenerator[Told, None]:
        tidings = cast("AsyncGenerator[OperationEvent, None]", self._operations.follow_operation(local))
        async with aclosing(tidings) as events:
            async for event in events:
                yield operated(event.operation)

    async def break_off(self, local: str) -> None:
        await self._operations.cancel_operation(local)


def operated(operation: Operation) -> Told:
    """Return how far an operation is, as it is told."""
    cancelled = operation.phase == "Failed" and operation.reason == "Cancelled"
    phase: ResultPhase = "Cancelled" if cancelled else operation.phase
    return Told(phase, operation.reason, operation.message, operation.hint, operation)
