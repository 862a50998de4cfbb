"""Wishes that take several operations, one after another: checkpoints that are pushed, clones of what is pulled first.

Each operation is asked for under the wish's uid and what it is for; so whoever comes after a crash finds how far it is,
and goes on from there. What stokerd's own end interrupted is begun once more.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar, cast

from msgspec.structs import replace

from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest
from stoker.objects.checkpoints import Operation, OperationEvent, OperationKind, OperationPhase
from stoker.objects.link import CheckpointWish, CloneWish, ResultKey, Wish
from stokerd.errors import Conflict, NotFound, StokerError
from stokerd.uplink.doers import Told, operated, spec_of
from stokerd.uplink.ports import Checkpoints

WISH_LABEL = "coordinator.stoker.dev/wish"
"""On clones: the wish that made them."""
COPY = "coordinator-copy-"
"""What the names of checkpoints begin with that were pulled for clones; they go when nothing stands on them."""
_MOST_TRIES = 5
_RETRY_FIRST, _RETRY_MOST = 1.0, 30.0

T = TypeVar("T")
Begin = Callable[[str], Awaitable[Operation]]
"""Asks for an operation under a name."""
Sleep = Callable[[float], Awaitable[None]]


class Stages:
    """Operations of wishes, in their order."""

    def __init__(self, rooms: Checkpoints, sleep: Sleep = asyncio.sleep) -> None:
        self._rooms, self._sleep = rooms, sleep
        self._unwanted: set[str] = set()

    async def known(self, uid: str, stage: str = "") -> list[Operation]:
        """Return the operations of a wish that are known, the newest first."""
        return [each for each in await self._rooms.operations() if each.request.startswith(f"{uid}.{stage}")]

    async def follow(self, uid: str, stage: str, kind: OperationKind, begin: Begin) -> AsyncGenerator[Operation, None]:
        """Have one operation done, and yield how far it is, to its end."""
        pause = _RETRY_FIRST
        while True:
            tried = await self.known(uid, f"{stage}-")
            if tried and not (_interrupted(tried[0]) and len(tried) < _MOST_TRIES):
                found = tried[0]
            elif uid in self._unwanted:
                yield Operation(id="", kind=kind, phase="Failed", reason="Cancelled", message="it is wanted no more")
                return
            else:
                try:
                    found = await begin(f"{uid}.{stage}-{_next(tried)}")
                except StokerError as error:
                    wait = error.retryable and not isinstance(error, NotFound)
                    yield _refused(kind, error, wait=wait)
                    if not wait:
                        return
                    await self._sleep(pause)
                    pause = min(pause * 2, _RETRY_MOST)
                    continue
            async with aclosing(self.seen(found)) as states:
                async for found in states:
                    if not _interrupted(found):
                        yield found
            if not _interrupted(found):
                return
            if len(tried) + 1 >= _MOST_TRIES:
                yield found
                return

    async def seen(self, operation: Operation) -> AsyncGenerator[Operation, None]:
        """Yield how far an operation is, to its end. Of one that stokerd was killed in the end is known a moment after
        the next start."""
        tidings = cast("AsyncGenerator[OperationEvent, None]", self._rooms.follow_operation(operation.id))
        async with aclosing(tidings) as events:
            async for event in events:
                yield event.operation

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and ask again while that can help: containerd may be away."""
        pause = _RETRY_FIRST
        while True:
            try:
                return await ask()
            except StokerError as error:
                if not error.retryable:
                    raise
            await self._sleep(pause)
            pause = min(pause * 2, _RETRY_MOST)

    async def break_off(self, uid: str) -> None:
        """Begin nothing more for a wish, and end what is under way for it."""
        self._unwanted.add(uid)
        for each in await self.known(uid):
            if each.phase not in {"Succeeded", "Failed"}:
                await self._rooms.cancel_operation(each.id)

    def forget(self, uid: str) -> None:
        """The wish is no more."""
        self._unwanted.discard(uid)


def _interrupted(operation: Operation) -> bool:
    return operation.phase == "Failed" and operation.reason == "Interrupted" and not operation.cancelled


def _next(tried: list[Operation]) -> int:
    endings = [each.request.rpartition("-")[2] for each in tried]
    return max((int(each) for each in endings if each.isdecimal()), default=0) + 1


def _refused(kind: OperationKind, error: StokerError, *, wait: bool) -> Operation:
    phase: OperationPhase = "Pending" if wait else "Failed"
    return Operation(id="", kind=kind, phase=phase, reason=error.reason, message=error.message, hint=error.hint or "")


# ---------------------------------------------------------------------------------------------- checkpoints


class CheckpointDoer:
    """Checkpoints, pushed where a wish says so. The request of the first operation is the wish's uid."""

    needs_wish = True

    def __init__(self, rooms: Checkpoints, sleep: Sleep = asyncio.sleep) -> None:
        self._rooms, self._stages = rooms, Stages(rooms, sleep)

    async def find(self, key: ResultKey) -> str:
        return next((each.id for each in await self._rooms.operations() if each.request == key.uid), "")

    async def begin(self, wish: Wish) -> str:
        request = spec_of(wish, CheckpointWish).request
        return (await self._rooms.create_checkpoint(replace(request, request=wish.uid))).id

    async def follow(self, local: str, wish: Wish | None) -> AsyncGenerator[Told, None]:
        assert wish is not None
        spec = spec_of(wish, CheckpointWish)
        made = await self._operation(local)
        async with aclosing(self._stages.seen(made)) as states:
            async for made in states:
                if made.phase != "Succeeded" or not spec.destination:
                    yield operated(made)
        if made.phase != "Succeeded" or not spec.destination:
            return
        try:
            async with aclosing(self._pushed(wish.uid, spec, made)) as pushes:
                async for push in pushes:
                    yield push
        finally:
            self._stages.forget(wish.uid)

    async def _pushed(self, uid: str, spec: CheckpointWish, made: Operation) -> AsyncGenerator[Told, None]:
        if len(made.checkpoints) != 1:
            several = f"{len(made.checkpoints)} containers were kept, and a destination is for one: {spec.destination}"
            yield Told("Failed", "SeveralContainers", several, "name one container in spec.containers", made)
            return
        kept = made.checkpoints[0].id

        async def begin(request: str) -> Operation:
            push = CheckpointPushRequest(to=spec.destination, auths=spec.auths, request=request)
            return await self._rooms.push_checkpoint(kept, push)

        async with aclosing(self._stages.follow(uid, "push", "Push", begin)) as operations:
            async for push in operations:
                yield _with_push(made, push)

    async def _operation(self, identity: str) -> Operation:
        for each in await self._rooms.operations():
            if each.id == identity:
                return each
        raise NotFound(f"the operation {identity} is not known any more")

    async def break_off(self, local: str) -> None:
        operation = await self._operation(local)
        await self._stages.break_off(operation.request)
        await self._rooms.cancel_operation(local)

    async def undo(self, key: ResultKey) -> None:
        """A checkpoint stays until somebody removes it."""


def _with_push(made: Operation, push: Operation) -> Told:
    """Return how far a checkpoint that is made is with its push. It stays when that fails."""
    message = push.message
    if push.phase == "Failed":
        message = f"the checkpoint {made.checkpoints[0].id} is made and stays; it could not be pushed: {message}"
    told = replace(
        made,
        phase=push.phase,
        reason=push.reason,
        message=message,
        hint=push.hint,
        steps=push.steps,
        pushed=push.pushed,
        done_bytes=push.done_bytes,
        total_bytes=push.total_bytes,
    )
    return operated(told)


# ---------------------------------------------------------------------------------------------- clones


class CloneDoer:
    """Clones, of what is here or is got from a registry first. Their label says whose they are: whatever became of
    operations and of the journal, they are found and go with their wish."""

    needs_wish = True

    def __init__(self, rooms: Checkpoints, sleep: Sleep = asyncio.sleep) -> None:
        self._rooms, self._stages = rooms, Stages(rooms, sleep)
        self._used: Counter[str] = Counter()
        """Copies that some wish is at work with."""

    async def find(self, key: ResultKey) -> str:
        return key.uid if await self._stages.known(key.uid) else ""

    async def begin(self, wish: Wish) -> str:
        spec_of(wish, CloneWish)
        return wish.uid

    async def follow(self, local: str, wish: Wish | None) -> AsyncGenerator[Told, None]:
        assert wish is not None
        spec = spec_of(wish, CloneWish)
        name = copy_name(local, spec)
        self._used[name] += 1
        try:
            async with aclosing(self._made(local, name, spec)) as tidings:
                async for told in tidings:
                    yield told
        finally:
            self._used[name] -= 1

    async def _made(self, uid: str, name: str, spec: CloneWish) -> AsyncGenerator[Told, None]:
        tried = await self._stages.known(uid, "clone-")
        if tried:
            last = tried[0]
            async with aclosing(self._stages.seen(last)) as states:
                async for last in states:
                    if not _interrupted(last):
                        yield operated(last)
            if not _interrupted(last):
                return
        checkpoint = await self._here(spec, name)
        if not checkpoint:
            async with aclosing(self._pull(uid, name, spec)) as operations:
                async for pull in operations:
                    if pull.phase == "Succeeded":
                        checkpoint = pull.checkpoints[0].id
                    else:
                        yield operated(pull)
        if not checkpoint:
            return

        async def begin(request: str) -> Operation:
            await self._remove(uid)  # what an interrupted try has left would be one too many
            labels = {**spec.request.labels, WISH_LABEL: uid}
            wanted = replace(spec.request, checkpoint=checkpoint, request=request, labels=labels)
            return await self._rooms.clone(wanted)

        async with aclosing(self._stages.follow(uid, "clone", "Clone", begin)) as operations:
            async for clone in operations:
                yield operated(clone)

    async def _here(self, spec: CloneWish, name: str) -> str:
        """Return the checkpoint on this node that is meant; empty: it is to be pulled."""
        kept = await self._stages.patiently(self._rooms.checkpoints)
        for each in kept:
            if each.id == spec.request.checkpoint or (spec.reference and each.name == name):
                return each.id
        return "" if spec.reference else spec.request.checkpoint

    def _pull(self, uid: str, name: str, spec: CloneWish) -> AsyncGenerator[Operation, None]:
        async def begin(request: str) -> Operation:
            return await self._rooms.pull_checkpoint(
                CheckpointPullRequest(
                    reference=spec.reference,
                    like=spec.like,
                    trust=spec.trust,
                    name=name,
                    auths=spec.auths,
                    request=request,
                )
            )

        return self._stages.follow(uid, "pull", "Pull", begin)

    async def break_off(self, local: str) -> None:
        await self._stages.break_off(local)

    async def undo(self, key: ResultKey) -> None:
        """Remove the clones of a wish, and copies that nothing stands on any more."""
        await self._remove(key.uid)
        for each in await self._rooms.checkpoints():
            if each.name.startswith(COPY) and not each.clones and not self._used[each.name]:
                try:
                    await self._rooms.remove_checkpoint(each.id)
                except (Conflict, NotFound):
                    continue  # somebody made a clone of it, or was faster
        self._stages.forget(key.uid)

    async def _remove(self, uid: str) -> None:
        for each in await self._rooms.clones():
            if each.labels.get(WISH_LABEL) == uid:
                try:
                    await self._rooms.remove_clone(each.id)
                except NotFound:
                    continue


def copy_name(uid: str, spec: CloneWish) -> str:
    """Return under which name a checkpoint is pulled. What is named by its digest, and is trusted alike, is pulled once
    for all; what has only a tag may be another one next time."""
    whose = f"{spec.reference}\0{spec.like}\0{spec.trust}" if "@" in spec.reference else uid
    return COPY + hashlib.blake2b(whose.encode(), digest_size=12).hexdigest()
