"""The objects of some kinds as they are, and every change: listed, then watched, and listed anew when left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import structlog

from stoker.objects.meta import Key, Object
from stoker_coordinator.errors import Expired, StoreFailed
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("controllers")
_PAUSE = 1.0

Hear = Callable[[Object | None, Object | None], None]
"""Called with an object as it was and as it is; None: there was none, there is none."""


class Informer:
    """``objects`` is what there is, by key. Whoever hears of a change finds it there already."""

    def __init__(self, store: Store, kinds: Sequence[type[Object]]) -> None:
        self._store, self._kinds = store, tuple(kinds)
        self._objects: dict[Key, Object] = {}
        self._listed: dict[str, int] = {}
        self._hear: list[Hear] = []
        self.synced = asyncio.Event()
        """All that there was has been heard of."""

    @property
    def objects(self) -> Mapping[Key, Object]:
        return self._objects

    def hear(self, call: Hear) -> None:
        """Have *call* hear of everything from now on. It is quick, and in the event loop."""
        self._hear.append(call)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        while True:
            try:
                revision = await self._list()
                self.synced.set()
                async with aclosing(self._store.watch(self._kinds, since=revision)) as events:
                    async for event in events:
                        if event.object is not None and event.revision > self._listed[event.object.kind]:
                            self._change(event.object, gone=event.type == "DELETED")
            except Expired:
                _log.warning("changes came faster than they were followed; all objects are read again")
            except StoreFailed as error:
                _log.warning("the store cannot be followed; trying again", why=error.message)
                await asyncio.sleep(_PAUSE)

    async def _list(self) -> int:
        """Read all objects, and tell what became of them since they were last known."""
        seen: set[Key] = set()
        for kind in self._kinds:
            page = await self._store.list(kind)
            self._listed[str(kind.__struct_config__.tag)] = page.revision
            for each in page.items:
                seen.add(each.key)
                if self._objects.get(each.key) != each:
                    self._change(each)
        for key in [key for key in self._objects if key not in seen]:
            self._change(self._objects[key], gone=True)
        return min(self._listed.values(), default=0)

    def _change(self, obj: Any, *, gone: bool = False) -> None:
        old = self._objects.pop(obj.key, None)
        if not gone:
            self._objects[obj.key] = obj
        elif old is None:
            return
        for call in self._hear:
            call(old, None if gone else obj)
