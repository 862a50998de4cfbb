"""The store in a SQLite file. Everything current is in memory, too, so that nobody who reads ever waits for a disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.objects.kinds import AnyObject
from stoker.objects.meta import Key
from stoker_coordinator.errors import StoreFailed
from stoker_coordinator.store.base import BaseStore, Limits
from stoker_coordinator.store.database import Database, Outcome, Row, Write
from stoker_coordinator.store.history import Change
from stoker_coordinator.store.protocol import Store

_DROP_AT_ONCE = 4096


class SqliteStore(BaseStore):
    """Objects in ``store.db`` of a directory that belongs to this process alone while it is open."""

    def __init__(self, directory: Path, limits: Limits | None = None, **parts: Any) -> None:
        super().__init__(limits or Limits(), **parts)
        self._database = Database(directory, self._report)
        self._epoch = 0
        self._garbage: list[int] = []
        """Rows that should have been dropped before."""
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> None:
        """Take the directory and read everything. AlreadyRunning, StoreFailed; the directory is free again then."""
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._load)
        except BaseException:
            await asyncio.to_thread(self._database.close)
            raise
        self._database.start()
        self._drop_rows([*self._garbage, *_obsolete(self._history.trim(self._clock()))])
        self._garbage.clear()

    async def close(self) -> None:
        """Return when all changes under way are durable. May be called again."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._database.close)
        self._history.close()

    def _load(self) -> None:
        floor, rows = self._database.open()
        self._history.floor = self._history.revision = self._last = floor
        decoder = msgspec.json.Decoder(AnyObject)
        now = self._clock()
        for row in rows:
            change = self._change(row, decoder, now)
            self._state.place(change)
            if row.revision > floor:
                self._history.add(change)
            else:
                self._garbage += _obsolete([change])
            self._last = max(self._last, row.revision)

    def _change(self, row: Row, decoder: msgspec.json.Decoder[AnyObject], now: float) -> Change:
        try:
            obj = decoder.decode(row.data)
        except msgspec.MsgspecError as error:
            raise StoreFailed(
                f"the store has {row.kind} {row.namespace}/{row.name} in a form that this version does not know:"
                f" {error}",
                hint="run the version that wrote it, or restore a backup",
            ) from None
        key = Key(row.kind, row.namespace, row.name)
        return Change(row.revision, key, obj, self._state.get(key), row.gone, now)

    async def _persist(self, change: Change, data: bytes) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(_seen)
        self._done[change.revision] = done
        key = change.key
        row = Row(change.revision, key.kind, key.namespace, key.name, change.gone, data)
        self._database.submit(Write(row, epoch=self._epoch, tag=(change, done)))
        # Shielded: a caller that gives up does not undo a change that others may build on already.
        await asyncio.shield(done)

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        """In the thread: hand over what was done."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._take_over, outcomes)

    def _take_over(self, outcomes: Sequence[Outcome]) -> None:
        if any(error is not None and write.epoch == self._epoch for write, error in outcomes):
            # All that builds on a lost change is lost, too; from here on everything builds on what is committed.
            self._epoch += 1
            self._state.forget_ahead()
        self._drop(self._commit([write.tag[0] for write, error in outcomes if write.tag and error is None]))
        for write, error in outcomes:
            if write.tag is None:
                continue
            change, done = write.tag
            self._done.pop(change.revision, None)
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _drop(self, forgotten: Sequence[Change]) -> None:
        """Remove the rows that no change in the history needs any more."""
        if forgotten:
            self._drop_rows(list(_obsolete(forgotten)))

    def _drop_rows(self, revisions: Sequence[int]) -> None:
        for start in range(0, len(revisions), _DROP_AT_ONCE):
            drop = tuple(revisions[start : start + _DROP_AT_ONCE])
            self._database.submit(Write(drop=drop, floor=self._history.floor, epoch=self._epoch))


def _obsolete(forgotten: Sequence[Change]) -> Iterator[int]:
    for change in forgotten:
        if change.old is not None:
            yield change.old.revision
        if change.gone:
            yield change.revision


def _seen(done: asyncio.Future[None]) -> None:
    """Take note of a failure that nobody waits for any more, so that asyncio does not complain."""
    if not done.cancelled():
        done.exception()


_: type[Store] = SqliteStore
