"""All operations that are known, what of them is in the journal, and who is told of their changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import datetime, timedelta

import msgspec
import structlog

from stoker.objects.checkpoints import Operation, OperationEvent
from stokerd.checkpoints.operations import ended
from stokerd.errors import Conflict, JournalError, LimitExceeded, NotFound
from stokerd.ids import begins
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.journal.rows import OperationRow

_log = structlog.get_logger("checkpoints")
_MOST_OPEN = 1000
_RETRY_PAUSE = 5.0


class Ledger:
    """What is told is in memory; the journal has each operation as it was asked for, each clone, and the end."""

    def __init__(self, journal: CheckpointJournal, clock: Callable[[], datetime]) -> None:
        self._journal, self._clock = journal, clock
        self._operations: dict[str, Operation] = {}
        self._digests: dict[str, str] = {}
        self._readers: dict[str, set[asyncio.Event]] = {}
        self._dirty: set[str] = set()
        self._late = asyncio.Event()
        self._accepting = asyncio.Lock()
        self._writing = asyncio.Lock()
        """One row at a time: an older state is never written over a newer one."""
        self._failing = False

    async def load(self) -> None:
        """Take up what the journal says."""
        for row in await self._journal.operations():
            if row.id in self._operations:
                continue
            try:
                operation = msgspec.json.decode(row.operation, type=Operation)
            except msgspec.MsgspecError as error:
                _log.error(
                    "an operation in the journal cannot be understood, and is left aside", id=row.id, why=str(error)
                )
                continue
            self._operations[row.id] = operation
            self._digests[row.id] = row.digest

    # ------------------------------------------------------------------------------------------ asking

    @property
    def operations(self) -> list[Operation]:
        """All, the newest first."""
        return list(reversed(self._operations.values()))

    def unfinished(self) -> list[Operation]:
        return [each for each in self._operations.values() if not ended(each)]

    def get(self, identity: str) -> Operation:
        """Return an operation that is known for certain."""
        return self._operations[identity]

    def find(self, name: str) -> Operation:
        """Return one by its id, its name, or an unambiguous beginning of its id; NotFound, Conflict."""
        if name in self._operations:
            return self._operations[name]
        everything = list(self._operations.values())
        for found in (
            [each for each in everything if each.request == name],
            [each for each in everything if begins(each.id, name)],
        ):
            if len(found) == 1:
                return found[0]
            if found:
                raise Conflict(f"{name!r} may be any of {len(found)} operations", hint="give more of the id")
        raise NotFound(f"there is no operation {name!r}", hint="`stoker operations` lists those that are known")

    def same(self, request: str, digest: str) -> Operation | None:
        """Return the operation of that name and content; Conflict where the content is another."""
        if not request:
            return None
        found = [each for each in self._operations.values() if each.request == request]
        for each in found:
            if self._digests.get(each.id) == digest:
                return each
        if found:
            raise Conflict(
                f"there is an operation {request!r} of another content", hint="give the new one another name, or none"
            )
        return None

    # ------------------------------------------------------------------------------------------ changing

    async def accept(self, operation: Operation, digest: str) -> Operation:
        """Write a new operation, or return the same one that is known; JournalError: then it was not accepted."""
        async with self._accepting:
            known = self.same(operation.request, digest)
            if known is not None:
                return known
            if len(self.unfinished()) >= _MOST_OPEN:
                raise LimitExceeded(f"{_MOST_OPEN} operations have not ended yet", hint="wait for some, or cancel them")
            await self._journal.save(_row(operation, digest))
            self._operations[operation.id] = operation
            self._digests[operation.id] = digest
            return operation

    def put(self, operation: Operation) -> None:
        """Let everybody see the new state."""
        self._operations[operation.id] = operation
        for changed in self._readers.get(operation.id, ()):
            changed.set()

    async def record(self, operation: Operation) -> None:
        """Let everybody see what has been reached so far, and write it down."""
        self.put(operation)
        await self._save(operation.id)

    async def finish(self, operation: Operation) -> None:
        """Let everybody see the end once the journal has it; where that fails, at once, and it is written later."""
        await self._save(operation.id, operation)

    async def _save(self, identity: str, end: Operation | None = None) -> None:
        try:
            await self._write(identity, end)
        except JournalError as error:
            self._blame(error)

    async def _write(self, identity: str, end: Operation | None = None) -> None:
        """Write an operation as it is by now, or its end, which everybody sees before anything else is written. What is
        broken off, too, is written later. JournalError."""
        async with self._writing:
            newest = end or self._operations.get(identity)
            if newest is None:
                return
            saved = False
            try:
                await self._journal.save(_row(newest, self._digests[identity]))
                saved = True
            finally:
                if not saved:
                    self._dirty.add(identity)
                    self._late.set()
                if end is not None:
                    self.put(end)

    async def follow(self, identity: str) -> AsyncGenerator[OperationEvent, None]:
        """Yield the operation as it is and whenever it has changed, its end being the last; a slow reader gets the
        newest state."""
        changed = asyncio.Event()
        readers = self._readers.setdefault(identity, set())
        readers.add(changed)
        try:
            while True:
                changed.clear()
                operation = self._operations[identity]
                yield OperationEvent(operation=operation)
                if ended(operation):
                    return
                await changed.wait()
        finally:
            readers.discard(changed)
            if not readers and self._readers.get(identity) is readers:
                del self._readers[identity]

    async def expire(self, ttl: float) -> None:
        """Forget operations that ended so many seconds ago. JournalError."""
        limit = self._clock() - timedelta(seconds=ttl)
        old = [each.id for each in self._operations.values() if each.finished_at and each.finished_at < limit]
        if not old:
            return
        async with self._writing:
            await self._journal.forget(old)
            for identity in old:
                self._operations.pop(identity, None)
                self._digests.pop(identity, None)

    # ------------------------------------------------------------------------------------------ the journal

    @property
    def problem(self) -> str:
        return "the journal cannot be written" if self._failing else ""

    async def run(self) -> None:
        """Write what could not be written, until cancelled."""
        while True:
            await self._late.wait()
            self._late.clear()
            await asyncio.sleep(_RETRY_PAUSE)
            await self.flush()

    async def flush(self) -> None:
        dirty, self._dirty = self._dirty, set()
        try:
            while dirty:
                identity = next(iter(dirty))
                await self._write(identity)
                dirty.discard(identity)
        except JournalError as error:
            self._blame(error)
            return
        finally:
            self._dirty |= dirty
        if self._failing:
            _log.info("the journal can be written again")
        self._failing = False

    def _blame(self, error: JournalError) -> None:
        if not self._failing:
            _log.error("the journal cannot be written; work goes on, its record waits", why=error.message)
        self._failing = True


def _row(operation: Operation, digest: str) -> OperationRow:
    return OperationRow(
        id=operation.id,
        request=operation.request,
        digest=digest,
        created_at=operation.created_at.timestamp() if operation.created_at is not None else 0.0,
        finished_at=operation.finished_at.timestamp() if operation.finished_at is not None else None,
        operation=msgspec.json.encode(operation).decode(),
    )
