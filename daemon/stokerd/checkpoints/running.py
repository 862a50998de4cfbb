"""Operations carried out, each in a task of its own, from the journal's first word of them to its last."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from stoker.objects.checkpoints import Operation, OperationKind
from stokerd.checkpoints import asking, operations, views
from stokerd.checkpoints.ending import to_the_end
from stokerd.checkpoints.ledger import Ledger
from stokerd.checkpoints.metrics import CheckpointMetrics
from stokerd.checkpoints.operations import OPERATION_LABEL
from stokerd.checkpoints.service import Checkpoints
from stokerd.errors import JournalError, StokerError

_log = structlog.get_logger("checkpoints")
_EXPIRY_INTERVAL = 30.0
_RETRY_PAUSE = 5.0
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


class Runner:
    """`load` first, then `run` in the task group. ``told`` hears of every end."""

    def __init__(
        self,
        room: Checkpoints,
        ledger: Ledger,
        salt: bytes,
        clock: Callable[[], datetime],
        metrics: CheckpointMetrics,
        told: Callable[[Operation], None],
    ) -> None:
        self._room, self._ledger, self._salt, self._clock = room, ledger, salt, clock
        self._metrics, self._told = metrics, told
        metrics.running.set_function(lambda: len(ledger.unfinished()))
        self._queue: asyncio.Queue[Task] = asyncio.Queue()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Event] = {}
        """Operations whose end is certain and being written down: it does not change any more."""
        self._lost: list[str] = []
        self._settled = asyncio.Event()

    @property
    def settled(self) -> bool:
        """Whether it is told of every operation that was interrupted how it came out."""
        return self._settled.is_set()

    async def load(self) -> None:
        """Take up what the journal says. What had not ended is looked at by `run`."""
        await self._ledger.load()
        self._lost = [each.id for each in self._ledger.unfinished()]

    async def run(self, ttl: Callable[[], float]) -> None:
        """Carry out what is accepted, until cancelled; what is under way then is undone. *ttl*: how long operations are
        remembered after their end, in seconds."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ledger.run(), name="checkpoints: ledger")
                group.create_task(self._settle(), name="checkpoints: look at what was interrupted")
                group.create_task(self._expire(ttl), name="checkpoints: expire operations")
                while True:
                    task = await self._queue.get()
                    group.create_task(self._carry_out(task), name=task.id)
        finally:
            await self._ledger.flush()

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
                if self._has_end(operation):
                    continue
                found = [each for each in made if each.labels.get(OPERATION_LABEL) == operation.id]
                end = operations.recovered(operation, map(views.checkpoint, found), self._clock())
                with self._ends(end):
                    await self._ledger.finish(end)
                _log.warning("an operation was interrupted", id=end.id, kind=end.kind, phase=end.phase)
        self._settled.set()

    async def _expire(self, ttl: Callable[[], float]) -> None:
        while True:
            try:
                await self._ledger.expire(ttl())
            except JournalError as error:
                _log.warning("old operations could not be removed from the journal", why=error.message)
            await asyncio.sleep(_EXPIRY_INTERVAL)

    # ------------------------------------------------------------------------------------------ asking

    async def accept(
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

    def same(self, kind: OperationKind, request: msgspec.Struct, name: str) -> Operation | None:
        """Return the operation that this request has made before; what it is about may be gone by now."""
        return self._ledger.same(name, asking.digest_of(kind, request, self._salt))

    async def cancel(self, name: str) -> Operation:
        """End an operation and have undone what it has begun; one that has ended, or is about to, stays as it is."""
        operation = self._ledger.find(name)
        ending = self._ending.get(operation.id)
        if ending is not None:
            await ending.wait()
            return self._ledger.get(operation.id)
        if operations.ended(operation):
            return operation
        operation = replace(operation, cancelled=True)
        self._ledger.put(operation)
        task = self._running.get(operation.id)
        if task is not None:
            task.cancel()
        elif operation.id not in self._lost:
            await self._finish(operations.cancelled(operation, self._clock()))
        return self._ledger.get(operation.id)

    # ------------------------------------------------------------------------------------------ carrying out

    async def _carry_out(self, task: Task) -> None:
        """See an operation to its end, whatever that is, and write it down. One that was cancelled before has one."""
        if self._has_end(self._ledger.get(task.id)):
            return
        this = asyncio.current_task()
        assert this is not None
        self._running[task.id] = this  # not before it has begun: a task that is cancelled until then does nothing
        try:
            await self._work_to_an_end(task)
        finally:
            del self._running[task.id]

    def _has_end(self, operation: Operation) -> bool:
        """Whether an operation has its end, be it that this is only just being written down."""
        return operation.id in self._ending or operations.ended(operation)

    async def _work_to_an_end(self, task: Task) -> None:
        try:
            end = await task.work(task.id)
        except asyncio.CancelledError:
            now = self._ledger.get(task.id)
            finish = operations.cancelled if now.cancelled else operations.interrupted
            await self._finish(finish(now, self._clock()))
            if not now.cancelled:
                raise
            return
        except Exception as error:  # noqa: BLE001 - one that goes wrong is told, and ends no other
            end = operations.failed(self._ledger.get(task.id), _explained(error), self._clock(), task.secrets)
        await self._finish(end)

    async def _finish(self, operation: Operation) -> None:
        """Write the end down, whoever stops waiting for that."""
        with self._ends(operation):
            await to_the_end(self._write_down(operation), f"write down the end of {operation.id}")

    @contextmanager
    def _ends(self, operation: Operation) -> Iterator[None]:
        """No other end comes to it within the block, and nobody begins with it any more."""
        over = self._ending[operation.id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ending[operation.id]
            over.set()

    async def _write_down(self, operation: Operation) -> None:
        await self._ledger.finish(operation)
        self._metrics.ended(operation)
        self._told(operation)
        say = _log.info if operation.phase == "Succeeded" else _log.warning
        say("operation has ended", id=operation.id, kind=operation.kind, phase=operation.phase, reason=operation.reason)


def _explained(error: Exception) -> StokerError:
    """Return the first error of ours; anything else is a bug, and its log has a number."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, StokerError):
        return error
    number = secrets.token_hex(4)
    _log.error("an operation failed unexpectedly", error_id=number, exc_info=error)
    where = f"stokerd's log has the details: journalctl -u stokerd -g {number}"
    return Unforeseen(f"internal error {number}", hint=where)
