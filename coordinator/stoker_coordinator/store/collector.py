"""Removes what its owners have left behind: an object goes when none of the objects that own it is there any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

import structlog

from stoker.objects.kinds import ALL, KINDS
from stoker.objects.meta import Key, Object
from stoker_coordinator.errors import Conflict, CoordinatorError, Expired, NotFound, StoreFailed
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("store")
_AGAIN_SECONDS = 5.0


class Owners:
    """Who is there, and who stands on whom. Pure."""

    def __init__(self) -> None:
        self._alive: dict[str, Key] = {}
        self._owned: dict[str, dict[Key, Object]] = {}
        """By the owner's uid."""

    def there(self, obj: Object) -> None:
        """Take note of an object as it is now."""
        self.gone(obj)
        self._alive[obj.metadata.uid] = obj.key
        for owner in obj.metadata.owner_references:
            self._owned.setdefault(owner.uid, {})[obj.key] = obj

    def gone(self, obj: Object) -> None:
        """Forget an object."""
        self._alive.pop(obj.metadata.uid, None)
        for owner in obj.metadata.owner_references:
            self._forget(owner.uid, obj.key)

    def moved(self, old: Object) -> None:
        """Forget whom an object stood on before it changed."""
        for owner in old.metadata.owner_references:
            self._forget(owner.uid, old.key)

    def _forget(self, uid: str, key: Key) -> None:
        owned = self._owned.get(uid)
        if owned is not None:
            owned.pop(key, None)
            if not owned:
                del self._owned[uid]

    def left_behind(self, candidates: Iterable[Object] | None = None) -> list[Object]:
        """Return those whose owners are all gone, of *candidates* (None: of all)."""
        if candidates is None:
            candidates = {obj.key: obj for owned in self._owned.values() for obj in owned.values()}.values()
        return [
            obj
            for obj in candidates
            if obj.metadata.owner_references
            and not obj.deleting
            and not any(owner.uid in self._alive for owner in obj.metadata.owner_references)
        ]

    def of(self, owner: Object) -> list[Object]:
        """Return what stands on *owner*."""
        return list(self._owned.get(owner.metadata.uid, {}).values())


async def collect(store: Store) -> None:
    """Run for ever; ends with StoreClosed."""
    while True:
        try:
            await _collect(store)
        except Expired:
            continue  # too much has happened at once: look at everything again


async def _collect(store: Store) -> None:
    owners, since = Owners(), store.revision
    for kind in ALL:
        page = await store.list(kind.type)
        since = min(since, page.revision)
        for obj in page.items:
            owners.there(obj)
    await _remove(store, owners.left_behind())
    async with aclosing(store.watch([], since=since, bookmarks=_AGAIN_SECONDS)) as events:
        async for event in events:
            if event.object is None:
                await _remove(store, owners.left_behind())  # what could not be removed before
                continue
            if event.old is not None:
                owners.moved(event.old)
            if event.type == "DELETED":
                owned = owners.of(event.object)
                owners.gone(event.object)
                await _remove(store, owners.left_behind(owned))
                continue
            owners.there(event.object)
            await _remove(store, owners.left_behind([event.object]))


async def _remove(store: Store, objects: Iterable[Object]) -> None:
    for obj in objects:
        meta = obj.metadata
        try:
            await store.delete(KINDS[obj.kind].type, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            continue  # it went by itself
        except StoreFailed as error:
            if error.reason == "Stopping":
                raise
            _log.warning("an object could not be removed after its owner", object=str(obj.key), why=error.message)
        except CoordinatorError as error:
            _log.error("an object could not be removed after its owner", object=str(obj.key), why=error.message)
        else:
            _log.info("removed after its owner", object=str(obj.key))
        await asyncio.sleep(0)  # a thousand of them hold nobody up
