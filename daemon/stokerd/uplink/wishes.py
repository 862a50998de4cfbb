"""What the coordinator wishes for, done and told: each wish once, whatever ends in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import cast

import msgspec
import structlog

from stoker.objects.link import FINAL, MAX_RESULTS, Desired, Result, ResultKey, Wish
from stokerd.errors import JournalError, NotFound, StokerError
from stokerd.journal.rows import WishRow
from stokerd.journal.uplink import UplinkJournal
from stokerd.uplink.doers import Doer, Told
from stokerd.uplink.wanting import Adopt, Begin, BreakOff, Forget, Undo, key_of, plan

_log = structlog.get_logger("uplink")
_RETRY_FIRST, _RETRY_MOST = 1.0, 30.0
_JOURNAL_PAUSE = 5.0
_LONGEST_TEXT = 2000


class Wishes:
    """`load` first, then `run` in the room's task group. What runs goes on while the coordinator is away."""

    def __init__(
        self,
        journal: UplinkJournal,
        doers: Mapping[str, Doer],
        clock: Callable[[], float],
        changed: Callable[[], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """*changed* is called when there is something to say."""
        self._journal, self._doers, self._clock, self._changed, self._sleep = journal, doers, clock, changed, sleep
        self._rows: dict[ResultKey, WishRow] = {}
        self._loaded = False
        self._desired: Desired | None = None
        self._woken = asyncio.Event()
        self._followers: dict[ResultKey, asyncio.Task[None]] = {}
        self._breaking: set[ResultKey] = set()
        self._progress: dict[ResultKey, tuple[str, Told]] = {}
        """By wish its kind and how far it is: of those that are not over."""
        self._unsaid: dict[ResultKey, None] = {}
        """In the order in which something became new."""

    # ------------------------------------------------------------------------------------------ life

    async def load(self) -> None:
        """Take up what the journal says."""
        if not self._loaded:
            self._rows = {key_of(row): row for row in await self._journal.wishes()}
            self._loaded = True

    async def run(self) -> None:
        """Do what is wished for until cancelled. What runs in the rooms goes on, and is found again."""
        await self.load()
        self._followers.clear()
        self._breaking.clear()
        async with asyncio.TaskGroup() as group:
            for key, row in self._rows.items():
                doer = self._doers.get(row.kind)
                if row.phase not in FINAL and row.local and not (doer is not None and doer.needs_wish):
                    self._start(group, key, None)
            while True:
                self._woken.clear()
                if self._desired is not None:
                    await self._apply(group, self._desired)
                await self._woken.wait()

    def take(self, desired: Desired) -> None:
        """Go by what the coordinator says now."""
        if self._desired is None or desired.generation >= self._desired.generation:
            self._desired = desired
            self._woken.set()

    @property
    def generation(self) -> int:
        return self._desired.generation if self._desired is not None else 0

    # ------------------------------------------------------------------------------------------ telling

    def begin_stream(self) -> None:
        """Say everything again that the coordinator may not have."""
        unsaid = [key for key, row in self._rows.items() if row.phase in FINAL and not row.acknowledged]
        self._unsaid = dict.fromkeys((*unsaid, *self._progress))

    @property
    def unsaid(self) -> bool:
        return bool(self._unsaid)

    @property
    def unacknowledged(self) -> bool:
        """Whether there are results that nobody has said to have."""
        return any(row.phase in FINAL and not row.acknowledged for row in self._rows.values())

    def take_results(self) -> list[Result]:
        """Return what is to be said now, the newest of each wish."""
        found: list[Result] = []
        while self._unsaid and len(found) < MAX_RESULTS:
            key = next(iter(self._unsaid))
            del self._unsaid[key]
            row = self._rows.get(key)
            if row is not None and row.phase in FINAL:
                if row.result:
                    found.append(msgspec.msgpack.decode(row.result, type=Result))
            elif key in self._progress:
                kind, told = self._progress[key]
                found.append(_result(key, kind, told))
        return found

    async def acknowledge(self, keys: Sequence[ResultKey]) -> None:
        """The coordinator has these results."""
        rows = []
        for key in keys:
            row = self._rows.get(key)
            if row is not None and row.phase in FINAL and not row.acknowledged:
                rows.append(msgspec.structs.replace(row, acknowledged=True, result=b""))
        if rows:
            try:
                await self._journal.save(rows)
            except JournalError as error:
                _log.warning("acknowledged results are told again after a restart", why=error.message)
            self._rows.update((key_of(row), row) for row in rows)
            self._woken.set()

    # ------------------------------------------------------------------------------------------ doing

    async def _apply(self, group: asyncio.TaskGroup, desired: Desired) -> None:
        forgotten = []
        for action in plan(desired.wishes, desired.paused, self._rows.values(), self._followers):
            match action:
                case Begin(wish):
                    self._start(group, ResultKey(wish.uid, wish.generation), wish)
                case BreakOff(key):
                    if key not in self._breaking:
                        self._breaking.add(key)
                        group.create_task(self._break_off(key), name=f"uplink: break off {key.uid}")
                case Undo(key):
                    if key not in self._breaking:
                        self._breaking.add(key)
                        group.create_task(self._undo(key), name=f"uplink: undo {key.uid}")
                case Adopt(wish):
                    await self._adopt(wish)
                case Forget(key):
                    forgotten.append(key)
        if forgotten:
            await self._forget(forgotten)

    async def _adopt(self, wish: Wish) -> None:
        row = WishRow(wish.uid, wish.generation, wish.kind, "", self._clock(), phase="Succeeded", acknowledged=True)
        self._rows[key_of(row)] = row
        try:
            await self._journal.save([row])
        except JournalError as error:
            _log.warning("a wish that is over is written down later", wish=wish.uid, why=error.message)

    async def _forget(self, keys: Sequence[ResultKey]) -> None:
        try:
            await self._journal.forget([(key.uid, key.generation) for key in keys])
        except JournalError as error:
            _log.warning("old wishes could not be removed from the journal", why=error.message)
        for key in keys:
            self._rows.pop(key, None)

    def _start(self, group: asyncio.TaskGroup, key: ResultKey, wish: Wish | None) -> None:
        task = group.create_task(self._do(key, wish), name=f"uplink: wish {key.uid}")
        self._followers[key] = task
        task.add_done_callback(lambda _: self._followers.pop(key, None))

    async def _do(self, key: ResultKey, wish: Wish | None) -> None:
        """Begin a wish, unless it is begun, and follow it to its end."""
        kind = wish.kind if wish is not None else self._rows[key].kind
        try:
            doer = self._doers.get(kind)
            if doer is None:
                told = Told("Failed", "Unsupported", f"this stokerd knows nothing of wishes of the kind {kind[:40]!r}")
            else:
                told = await self._done(key, kind, doer, wish)
        except NotFound as error:
            told = Told("Failed", "Lost", f"what became of it is not known: {error.message}")
        except StokerError as error:
            told = Told("Failed", error.reason, error.message, error.hint or "")
        except Exception as error:  # noqa: BLE001 - the border: one wish must not end the others
            _log.error("a wish failed", wish=key.uid, kind=kind, exc_info=error)
            told = Told("Failed", "Internal", f"stokerd failed: {type(error).__name__}")
        await self._ended(key, kind, told)

    async def _done(self, key: ResultKey, kind: str, doer: Doer, wish: Wish | None) -> Told:
        local = self._rows[key].local if key in self._rows else ""
        if not local:
            assert wish is not None
            local = await self._begun(key, doer, wish)
        told = Told("Failed", "Lost", "it ended without a word")
        async with aclosing(cast("AsyncGenerator[Told, None]", doer.follow(local, wish))) as tidings:
            async for told in tidings:
                if told.phase in FINAL:
                    return told
                self._progress[key] = (kind, told)
                self._say(key)
        return told

    async def _begun(self, key: ResultKey, doer: Doer, wish: Wish) -> str:
        """Begin, after writing down that this is about to happen; try again while trying can help."""
        row = self._rows.get(key) or WishRow(key.uid, key.generation, wish.kind, "", self._clock())
        await self._keep(row)
        pause = _RETRY_FIRST
        while True:
            try:
                local = await doer.find(key) or await doer.begin(wish)
            except StokerError as error:
                if not error.retryable or isinstance(error, NotFound):
                    raise _refused(error) from error
                self._progress[key] = (wish.kind, Told("Pending", error.reason, error.message, error.hint or ""))
                self._say(key)
                await self._sleep(pause)
                pause = min(pause * 2, _RETRY_MOST)
            else:
                await self._keep(msgspec.structs.replace(row, local=local, phase="Running"))
                return local

    async def _break_off(self, key: ResultKey) -> None:
        """End what nobody wishes for any more."""
        row = self._rows.get(key)
        doer = self._doers.get(row.kind) if row is not None else None
        try:
            follower = self._followers.get(key)
            local = row.local if row is not None else ""
            if not local and follower is not None:
                follower.cancel()  # it waits to begin
                await asyncio.wait({follower})
            if doer is not None and (local := local or await doer.find(key)):
                await doer.break_off(local)
                follower = self._followers.get(key)
                if follower is not None:
                    return  # it hears of the end
            await self._ended(key, row.kind if row is not None else "", Told("Cancelled", "NoLongerWanted"))
        except NotFound:
            await self._ended(key, row.kind if row is not None else "", Told("Cancelled", "NoLongerWanted"))
        except StokerError as error:
            _log.warning("what is wished for no more could not be ended", wish=key.uid, why=error.message)
        finally:
            self._breaking.discard(key)

    async def _undo(self, key: ResultKey) -> None:
        """Remove what a wish has made that is wished for no more, however often that fails."""
        pause = _RETRY_FIRST
        try:
            doer = self._doers[self._rows[key].kind]
            while True:
                try:
                    await doer.undo(key)
                except StokerError as error:
                    _log.warning("what is wished for no more is still here", wish=key.uid, why=error.message)
                    await self._sleep(pause)
                    pause = min(pause * 2, _RETRY_MOST)
                else:
                    await self._forget([key])
                    return
        finally:
            self._breaking.discard(key)

    async def _ended(self, key: ResultKey, kind: str, told: Told) -> None:
        row = self._rows.get(key) or WishRow(key.uid, key.generation, kind, "", self._clock())
        result = msgspec.msgpack.encode(_result(key, kind, told))
        await self._keep(msgspec.structs.replace(row, phase=told.phase, result=result))
        self._progress.pop(key, None)
        self._say(key)
        self._woken.set()  # it may be wished for no more already

    async def _keep(self, row: WishRow) -> None:
        """Write a row down, however long the journal cannot be written."""
        told = False
        while True:
            try:
                await self._journal.save([row])
            except JournalError as error:
                if not told:
                    _log.error("the coordinator's wishes cannot be written down; tried again", why=error.message)
                told = True
                await self._sleep(_JOURNAL_PAUSE)
            else:
                self._rows[key_of(row)] = row
                return

    def _say(self, key: ResultKey) -> None:
        self._unsaid[key] = None
        self._changed()


class _Refused(StokerError):
    """A room would not begin; said with its own reason."""


def _refused(error: StokerError) -> StokerError:
    """Return an error that is not taken for "what was begun is lost"."""
    refused = _Refused(error.message, hint=error.hint)
    refused.reason = error.reason  # type: ignore[misc]
    return refused


def _result(key: ResultKey, kind: str, told: Told) -> Result:
    return Result(
        uid=key.uid,
        generation=key.generation,
        kind=kind,
        phase=told.phase,
        reason=told.reason,
        message=told.message[:_LONGEST_TEXT],
        hint=told.hint[:_LONGEST_TEXT],
        detail=msgspec.Raw(msgspec.msgpack.encode(told.detail)),
    )
