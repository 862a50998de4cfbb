"""`api.ports.CheckpointsPort`: what is asked of the room becomes operations, names become ids."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from stoker.objects.checkpoints import (
    CheckpointDetail,
    CheckpointInfo,
    CheckpointRequest,
    CloneInfo,
    CloneRequest,
    CommitRequest,
    Operation,
    OperationEvent,
    OperationKind,
    PauseRequest,
    PauseResult,
    RestoreRequest,
)
from stokerd.checkpoints import asking, operations, views
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.ending import to_the_end
from stokerd.checkpoints.gate import Carriers, Gate, secrets_of
from stokerd.checkpoints.ledger import Ledger
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.memory import resident
from stokerd.checkpoints.metrics import CheckpointMetrics
from stokerd.checkpoints.operations import OPERATION_LABEL
from stokerd.checkpoints.retaining import Retainer
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.targets import Names, Target, shown
from stokerd.checkpoints.works import Works, commit_wish
from stokerd.errors import Conflict, InvalidInput, JournalError, NotFound, StokerError
from stokerd.ids import begins
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.runtime.protocol import NativeRuntime
from stokerd.settings import CheckpointSettings

_log = structlog.get_logger("checkpoints")
_EXPIRY_INTERVAL = 30.0
_RETRY_PAUSE = 5.0
T = TypeVar("T")
Work = Callable[[str], Coroutine[Any, Any, Operation]]
"""Is given the operation's id, and returns it as it ended well."""


class Unforeseen(StokerError):
    """A bug; the log has it."""

    reason = "Internal"


class Task(msgspec.Struct):
    """An operation that is to be carried out. ``secrets`` are to be in no message."""

    id: str
    work: Work
    secrets: tuple[str, ...] = ()


class Desk:
    """`load` first, then `run` in the task group; the rest may be called any time after `load`."""

    def __init__(
        self,
        runtime: NativeRuntime,
        room: Checkpoints,
        journal: CheckpointJournal,
        names: Names,
        settings: CheckpointSettings,
        salt: bytes,
        clock: Callable[[], datetime],
        metrics: CheckpointMetrics,
        carriers: Carriers,
    ) -> None:
        self._runtime, self._room, self._names = runtime, room, names
        self._settings, self._salt, self._clock = settings, salt, clock
        self._metrics = metrics
        self._ledger = Ledger(journal, clock)
        metrics.running.set_function(lambda: len(self._ledger.unfinished()))
        self._works = Works(room, self._ledger, settings, clock)
        self._retainer = Retainer(room, settings, clock)
        self._queue: asyncio.Queue[Task] = asyncio.Queue()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._lost: list[str] = []
        self._reconciled = asyncio.Event()
        self._networks = asyncio.Event()
        self.gate = Gate(runtime, carriers, room, self._ledger, self._accept, self._find, self._targets, clock)
        """What leaves the node and enters it."""

    # ------------------------------------------------------------------------------------------ life

    async def load(self) -> None:
        """Take up what the journal says. What had not ended is looked at by `run`."""
        await self._ledger.load()
        self._lost = [each.id for each in self._ledger.unfinished()]

    def apply(self, settings: CheckpointSettings) -> None:
        """Let new settings hold, without losing any work."""
        ahead = settings.networks_ahead != self._settings.networks_ahead
        self._settings = settings
        self._works.apply(settings)
        if ahead:
            self._networks.set()
        self._retainer.apply(settings)

    async def run(self) -> None:
        """Do the work until cancelled; what is under way then is undone. May run again after it has failed."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._room.run(), name="checkpoints: room")
                group.create_task(self._ledger.run(), name="checkpoints: ledger")
                group.create_task(self._settle(), name="checkpoints: look at what was interrupted")
                group.create_task(self._retain(), name="checkpoints: retention")
                group.create_task(self._expire(), name="checkpoints: expire operations")
                group.create_task(self._connect(), name="checkpoints: so many networks ahead")
                while True:
                    task = await self._queue.get()
                    if not operations.ended(self._ledger.get(task.id)):
                        self._running[task.id] = group.create_task(self._carry_out(task), name=task.id)
        finally:
            await self._ledger.flush()

    @property
    def reconciled(self) -> bool:
        return self._reconciled.is_set()

    @property
    def problem(self) -> str:
        """What is wrong, empty when nothing is."""
        return self._ledger.problem

    async def _settle(self) -> None:
        """When all that was left has been cleared up, say of each operation that was interrupted how it came out."""
        await self._room.cleared.wait()
        while self._lost:
            try:
                made = await self._room.list()
            except (StokerError, OSError) as error:
                _log.debug("cannot look at the checkpoints yet", why=str(error))
                await asyncio.sleep(_RETRY_PAUSE)
                continue
            while self._lost:
                operation = self._ledger.get(self._lost.pop())
                found = [each for each in made if each.labels.get(OPERATION_LABEL) == operation.id]
                end = operations.recovered(operation, map(views.checkpoint, found), self._clock())
                await self._ledger.finish(end)
                _log.warning("an operation was interrupted", id=end.id, kind=end.kind, phase=end.phase)
        self._reconciled.set()

    async def _retain(self) -> None:
        await self._room.cleared.wait()
        await self._retainer.run()

    async def _connect(self) -> None:
        while True:
            await self._networks.wait()
            self._networks.clear()
            try:
                await self._room.connect(self._settings.networks_ahead)
            except (StokerError, OSError) as error:
                _log.warning("networks cannot be made ahead now", why=str(error))

    async def _expire(self) -> None:
        while True:
            try:
                await self._ledger.expire(self._settings.operation_ttl)
            except JournalError as error:
                _log.warning("old operations could not be removed from the journal", why=error.message)
            await asyncio.sleep(_EXPIRY_INTERVAL)

    # ------------------------------------------------------------------------------------------ carrying out

    async def _carry_out(self, task: Task) -> None:
        """See an operation to its end, whatever that is, and write it down."""
        end: Operation
        try:
            end = await task.work(task.id)
        except asyncio.CancelledError:
            now = self._ledger.get(task.id)
            finish = operations.cancelled if now.cancelled else operations.interrupted
            await to_the_end(self._finish(finish(now, self._clock())), f"write down the end of {task.id}")
            if not now.cancelled:
                raise
            return
        except Exception as error:  # noqa: BLE001 - one that goes wrong is told, and ends no other
            end = operations.failed(self._ledger.get(task.id), _explained(error), self._clock(), task.secrets)
        finally:
            self._running.pop(task.id, None)
        await to_the_end(self._finish(end), f"write down the end of {task.id}")

    async def _finish(self, operation: Operation) -> None:
        await self._ledger.finish(operation)
        self._metrics.ended(operation)
        if operation.kind == "Checkpoint" and operation.phase == "Succeeded":
            self._retainer.look()
        say = _log.info if operation.phase == "Succeeded" else _log.warning
        say("operation has ended", id=operation.id, kind=operation.kind, phase=operation.phase, reason=operation.reason)

    async def _accept(
        self,
        kind: OperationKind,
        request: msgspec.Struct,
        name: str,
        subject: str,
        work: Work,
        *,
        desired: int = 1,
        secrets_: tuple[str, ...] = (),
    ) -> Operation:
        """Write an operation down, and have it begun; the same one that is known is returned as it is."""
        identity = f"op-{secrets.token_hex(5)}"
        made = operations.new(identity, kind, request=name, subject=subject, now=self._clock(), desired=desired)
        known = await self._ledger.accept(made, asking.digest_of(kind, request, self._salt))
        if known is made:
            self._queue.put_nowait(Task(identity, work, secrets_))
            _log.info("operation", id=identity, kind=kind, subject=subject)
        return known

    def _same(self, kind: OperationKind, request: msgspec.Struct, name: str) -> Operation | None:
        """Return the operation that this request has made before; what it is about may be gone by now."""
        return self._ledger.same(name, asking.digest_of(kind, request, self._salt))

    # ------------------------------------------------------------------------------------------ operations

    async def operations(self) -> list[Operation]:
        return self._ledger.operations

    async def operation(self, name: str) -> Operation:
        return self._ledger.find(name)

    async def cancel_operation(self, name: str) -> Operation:
        """End an operation and have undone what it has begun; one that has ended stays as it is."""
        operation = self._ledger.find(name)
        if operations.ended(operation):
            return operation
        operation = replace(operation, cancelled=True)
        self._ledger.put(operation)
        task = self._running.get(operation.id)
        if task is not None:
            task.cancel()
        elif operation.id not in self._lost:
            await self._ledger.finish(operations.cancelled(operation, self._clock()))
        return self._ledger.get(operation.id)

    def follow_operation(self, identity: str) -> AsyncGenerator[OperationEvent, None]:
        return self._ledger.follow(identity)

    # ------------------------------------------------------------------------------------------ checkpoints

    async def create_checkpoint(self, request: CheckpointRequest) -> Operation:
        asking.check_checkpoint(request)
        known = self._same("Checkpoint", request, request.request)
        if known is not None:
            return known
        targets = await self._targets(request.pod, request.containers)

        async def work(identity: str) -> Operation:
            return await self._works.checkpoint(identity, targets, self._works.wish(request, identity))

        return await self._accept("Checkpoint", request, request.request, shown(targets), work, desired=len(targets))

    async def checkpoints(self) -> list[CheckpointInfo]:
        """Return all that are complete, the newest first."""
        users = await self._room.users()
        return [views.checkpoint(each, users[each.id]) for each in reversed(await self._room.list())]

    async def checkpoint(self, name: str) -> CheckpointDetail:
        manifest = await self._find(name)
        clones = [each.id for each in await self._room.clones() if each.checkpoint == manifest.id]
        return views.checkpoint_detail(manifest, clones, str(self._settings.directory))

    async def verify_checkpoint(self, name: str) -> Operation:
        found = await self._find_all(name)

        async def work(identity: str) -> Operation:
            return await self._works.verify(identity, found)

        subject = _subject(found)
        return await self._accept("Verify", CheckpointRequest(pod=subject), "", subject, work, desired=len(found))

    async def remove_checkpoint(self, name: str) -> list[CheckpointInfo]:
        """Remove one, or all that were taken together; return them."""
        found = await self._find_all(name)
        await self._room.remove(found[0].group if len(found) > 1 else found[0].id)
        _log.info("checkpoint is removed", ids=[each.id for each in found])
        return [views.checkpoint(each) for each in found]

    # ------------------------------------------------------------------------------------------ clones

    async def clone(self, request: CloneRequest) -> Operation:
        asking.check_clone(request, self._settings.max_clones_per_request)
        known = self._same("Clone", request, request.request)
        if known is not None:
            return known
        manifest = await self._find(request.checkpoint)

        async def work(identity: str) -> Operation:
            return await self._works.clone(identity, manifest, request)

        return await self._accept(
            "Clone",
            request,
            request.request,
            _subject((manifest,)),
            work,
            desired=request.count,
            secrets_=asking.secrets_of(request),
        )

    async def clones(self) -> list[CloneInfo]:
        """Return all clones, the newest first."""
        found = await self._room.clones()
        memory = {each.id: views.memory_of(each) for each in await self._room.list()}
        seen = await asyncio.gather(*(self._seen(each, memory.get(each.checkpoint, 0)) for each in found))
        return sorted(seen, key=lambda each: (each.created_at or self._clock(), each.id), reverse=True)

    async def clone_status(self, name: str) -> CloneInfo:
        found = await self._find_clone(name)
        memory = {each.id: views.memory_of(each) for each in await self._room.list()}
        return await self._seen(found, memory.get(found.checkpoint, 0))

    async def remove_clone(self, name: str) -> CloneInfo:
        found = await self._find_clone(name)
        await self._room.remove_clone(found.id)
        _log.info("clone is removed", id=found.id)
        return views.clone(found, None)

    async def restore(self, name: str, request: RestoreRequest) -> Operation:
        found = await self._find_all(name)

        async def work(identity: str) -> Operation:
            return await self._works.restore(identity, found, request)

        subject = _subject(found)
        whole = CloneRequest(checkpoint=subject, mode=request.mode)
        return await self._accept("Restore", whole, request.request, subject, work, desired=len(found))

    async def _seen(self, clone: Clone, memory: int) -> CloneInfo:
        task = await self._runtime.tasks.get(clone.id)
        state = task.state if task is not None else None
        here = 0
        if clone.memory == "loading" and state not in {None, "stopped"}:
            here = await resident(self._runtime, clone.id)
        return views.clone(clone, state, memory=memory, resident=here)

    # ------------------------------------------------------------------------------------------ commits, pauses

    async def commit(self, request: CommitRequest) -> Operation:
        asking.check_commit(request)
        wish = commit_wish(request)
        known = self._same("Commit", request, request.request)
        if known is not None:
            return known
        targets = await self._targets(request.container, ())
        if len(targets) > 1:
            names = ", ".join(each.name for each in targets)
            raise InvalidInput(f"{request.container} has several containers: {names}", hint="name one: POD/CONTAINER")

        async def work(identity: str) -> Operation:
            made = await self._works.commit(identity, targets[0], wish)
            return await self.gate.after_commit(identity, made, wish.name, request.auths) if request.push else made

        subject, hidden = f"{targets[0].shown} as {wish.name}", secrets_of(request.auths)
        return await self._accept("Commit", request, request.request, subject, work, secrets_=hidden)

    async def pause(self, request: PauseRequest) -> PauseResult:
        """Freeze containers; when one cannot be, those that this call has frozen go on."""
        targets = await self._targets(request.pod, request.containers)
        frozen: list[str] = []
        try:
            for target in targets:
                task = await self._runtime.tasks.get(target.id)
                if task is not None and task.state == "running":
                    frozen.append(target.id)
                await self._room.pause(target.id)
        except BaseException:
            await to_the_end(self._thaw(frozen), f"thaw {shown(targets)}")
            raise
        return PauseResult(containers=[views.paused(each, frozen=True) for each in targets])

    async def _thaw(self, containers: Sequence[str]) -> None:
        for container in containers:
            try:
                await self._room.resume(container)
            except StokerError as error:
                _log.warning("cannot thaw a container", container=container, why=error.message)

    async def resume(self, request: PauseRequest) -> PauseResult:
        targets = await self._targets(request.pod, request.containers)
        for target in targets:
            await self._room.resume(target.id)
        return PauseResult(containers=[views.paused(each, frozen=False) for each in targets])

    # ------------------------------------------------------------------------------------------ names

    async def _find(self, name: str) -> Manifest:
        """Return a checkpoint by its id, its name, or an unambiguous beginning of its id; NotFound, Conflict."""
        try:
            return await self._room.inspect(name)
        except NotFound:
            found = [each for each in await self._room.list() if begins(each.id, name) or each.group == name]
            if not found:
                raise
        return _only(found, name, "checkpoints")

    async def _find_all(self, name: str) -> tuple[Manifest, ...]:
        """Return all that were taken together under this id or name, or the one checkpoint."""
        groups = await self._room.groups()
        found = [each for each in groups if each.id == name] or [each for each in groups if each.name == name]
        found = found or [each for each in groups if begins(each.id, name)]
        if found:
            return _only(found, name, "groups of checkpoints").members
        return (await self._find(name),)

    async def _find_clone(self, name: str) -> Clone:
        clones = await self._room.clones()
        found = [each for each in clones if each.id == name] or [each for each in clones if begins(each.id, name)]
        if not found:
            raise NotFound(f"there is no clone {name!r}", hint="`stoker clone ls` lists them")
        return _only(found, name, "clones")

    async def _targets(self, name: str, containers: Sequence[str]) -> tuple[Target, ...]:
        """Return the containers that are meant: of a pod, one alone, or a clone. What was restored in the place of a
        container is meant by that one's name. NotFound, Conflict."""
        restored = {each.origin: each.id for each in await self._room.clones() if each.origin}
        try:
            found = await self._names.targets(name, containers, restored.keys())
            return tuple(replace(each, id=restored.get(each.id, each.id)) for each in found)
        except NotFound as error:
            if containers:
                raise
            try:
                return (Target((await self._find_clone(name)).id),)
            except NotFound:
                raise error from None


def _subject(found: Sequence[Manifest]) -> str:
    """Return what checkpoints are called, in few words."""
    first = found[0]
    identity = first.group if len(found) > 1 else first.id
    return f"{identity} {first.name!r}" if first.name and first.name != identity else identity


def _only(found: list[T], name: str, what: str) -> T:
    if len(found) > 1:
        raise Conflict(f"{name!r} may be any of {len(found)} {what}", hint="give more of the id")
    return found[0]


def _explained(error: Exception) -> StokerError:
    """Return the first error of ours; anything else is a bug, and its log has a number."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, StokerError):
        return error
    number = secrets.token_hex(4)
    _log.error("an operation failed unexpectedly", error_id=number, exc_info=error)
    return Unforeseen(
        f"internal error {number}", hint=f"stokerd's log has the details: journalctl -u stokerd -g {number}"
    )
