"""What both stores do alike: everything but making a change durable."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from stoker.objects.kinds import kind_of
from stoker.objects.meta import Key, Object, ObjectMeta
from stoker_coordinator.errors import AlreadyExists, NotFound, StoreClosed, TooLarge
from stoker_coordinator.objects.selectors import ANY_FIELDS, EVERYTHING, FieldSelector, Selector, predicate
from stoker_coordinator.store import lifecycle
from stoker_coordinator.store.history import Change, History
from stoker_coordinator.store.protocol import Event, Page
from stoker_coordinator.store.state import State

T = TypeVar("T", bound=Object)


class Limits(Struct, frozen=True):
    """How much is kept."""

    object_bytes: int = 1 << 20
    """Of one object as JSON."""
    history_changes: int = 10_000
    history_seconds: float = 3600.0


class BaseStore:
    """Objects in memory; a subclass makes changes durable in `_persist` before anybody sees them."""

    def __init__(
        self,
        limits: Limits,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        make_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._limits = limits
        self._now = now
        self._clock = clock
        self._make_uid = make_uid
        self._history = History(limit=limits.history_changes, age=limits.history_seconds)
        self._state = State(self._history)
        self._last = 0
        """The last revision that was given away, committed or not."""
        self._done: dict[int, asyncio.Future[None]] = {}
        """For each change under way, by revision: done when it is committed."""
        self._closed = False

    async def _persist(self, change: Change, data: bytes) -> None:
        """Make *change* durable and then call `_commit`, in the order of calls; *data*: its object as JSON."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ reading

    @property
    def revision(self) -> int:
        return self._history.revision

    def counts(self) -> dict[str, int]:
        """Return how many objects there are, by kind."""
        return self._state.count()

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        found = await self.find(kind, name, namespace)
        if found is None:
            raise _not_found(_key(kind, name, namespace))
        return found

    async def find(self, kind: type[T], name: str, namespace: str = "") -> T | None:
        self._check_open()
        return cast("T | None", self._state.get(_key(kind, name, namespace)))

    async def list(
        self,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = ANY_FIELDS,
        limit: int = 0,
        token: str = "",
    ) -> Page[T]:
        self._check_open()
        meant = predicate(namespace, labels, fields)
        return cast("Page[T]", self._state.page(kind_of(kind).name, meant, limit, token))

    def watch(
        self,
        kinds: Sequence[type[Object]],
        *,
        since: int,
        namespace: str | None = None,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = ANY_FIELDS,
        bookmarks: float = 0.0,
    ) -> AsyncGenerator[Event[Any], None]:
        names = {kind_of(kind).name for kind in kinds}
        return self._history.watch(since, names, predicate(namespace, labels, fields), bookmarks)

    # ------------------------------------------------------------------------------------------ writing

    async def create(self, obj: T, *, dry_run: bool = False) -> T:
        obj = lifecycle.named(obj, secrets.randbits(64))

        def decide(current: T | None) -> T:
            if current is not None:
                raise AlreadyExists(f"{current.key} exists already")
            return lifecycle.made(obj, uid=self._make_uid(), now=self._now())

        return await self._write(obj.key, decide, dry_run=dry_run)

    async def update(self, obj: T, *, status: bool = False, dry_run: bool = False) -> T:
        def decide(current: T | None) -> T:
            return lifecycle.changed(_there(current, obj.key), obj, status=status)

        return await self._write(obj.key, decide, dry_run=dry_run)

    async def patch(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        patch: Mapping[str, Any],
        status: bool = False,
        dry_run: bool = False,
    ) -> T:
        key = _key(kind, name, namespace)

        def decide(current: T | None) -> T:
            return lifecycle.patched(_there(current, key), patch, status=status)

        return await self._write(key, decide, dry_run=dry_run)

    async def change(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        change: Callable[[T], T],
        status: bool = False,
        dry_run: bool = False,
    ) -> T:
        key = _key(kind, name, namespace)

        def decide(current: T | None) -> T:
            there = _there(current, key)
            return lifecycle.changed(there, change(there), status=status)

        return await self._write(key, decide, dry_run=dry_run)

    async def delete(
        self, kind: type[T], name: str, namespace: str = "", *, uid: str = "", revision: int = 0, dry_run: bool = False
    ) -> T:
        key = _key(kind, name, namespace)
        condition = ObjectMeta(uid=uid, resource_version=str(revision or ""))

        def decide(current: T | None) -> T | None:
            there = _there(current, key)
            lifecycle.check_meant(there, condition)
            return lifecycle.removed(there, now=self._now())

        return await self._write(key, decide, dry_run=dry_run)

    async def _write(self, key: Key, decide: Callable[[T | None], T | None], *, dry_run: bool = False) -> T:
        """Do what *decide* makes of the object as it is about to be; None removes it.

        Nothing is awaited between deciding and handing the change on, so changes of one object never cross.
        """
        self._check_open()
        current = cast("T | None", self._state.latest(key))
        wanted = decide(current)
        if wanted is current and wanted is not None:
            # What is there may still be on its way: whoever is told of it must be able to rely on it.
            await self._settled(key)
            return wanted
        gone = wanted is None or lifecycle.is_over(wanted)
        result = wanted if wanted is not None else current
        assert result is not None
        if dry_run:
            self._encode(key, result)
            return result
        revision = self._last + 1
        result = lifecycle.at_revision(result, revision)
        change = Change(revision, key, result, current, gone, self._clock())
        data = self._encode(key, result)
        self._last = revision
        self._state.begin(change)
        await self._persist(change, data)
        return result

    async def _settled(self, key: Key) -> None:
        ahead = self._state.ahead(key)
        if ahead is not None and (done := self._done.get(ahead.revision)) is not None:
            await asyncio.shield(done)

    def _encode(self, key: Key, obj: Object) -> bytes:
        data = msgspec.json.encode(obj)
        if len(data) > self._limits.object_bytes:
            raise TooLarge(f"{key} would have {len(data)} bytes, more than {self._limits.object_bytes}")
        return data

    def _commit(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Let everybody see what is durable now, and return what the history has dropped for it."""
        for change in changes:
            self._state.commit(change)
        dropped = self._history.trim(self._clock())
        self._history.wake()
        return dropped

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed", hint="try again once the coordinator is back")


def _key(kind: type[Object], name: str, namespace: str) -> Key:
    return Key(kind_of(kind).name, namespace, name)


def _there(current: T | None, key: Key) -> T:
    if current is None:
        raise _not_found(key)
    return current


def _not_found(key: Key) -> NotFound:
    return NotFound(f"there is no {key}")
