"""Tells open pages which parts of them have changed, at most once a second each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

from stoker.objects.meta import Object
from stoker.service.in_flight import OpenStreams

Section = Literal["nodes", "jobs", "fabrics", "requests"]
_SECTIONS: dict[str, Section] = {
    "Node": "nodes",
    "NodeImage": "nodes",
    "ImagePullJob": "jobs",
    "ImageListPullJob": "jobs",
    "AdvancedCronJob": "jobs",
    "HyperNode": "fabrics",
    "ContainerRecreateRequest": "requests",
    "Checkpoint": "requests",
    "Commit": "requests",
    "Clone": "requests",
}
_PAUSE = 1.0
_HEARTBEAT = 15.0


class Changes:
    """Give `hear` to an informer. Each page that is open keeps a set of names, not a queue: it can only be so long."""

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self._pages: dict[asyncio.Event, set[str]] = {}
        self.streams = OpenStreams(lambda _: None)

    def hear(self, old: Object | None, new: Object | None) -> None:
        obj = new if new is not None else old
        if obj is not None and obj.kind in _SECTIONS:
            self.tell(_SECTIONS[obj.kind])

    def tell(self, section: Section) -> None:
        """Something of this section is different."""
        for event, names in self._pages.items():
            names.add(section)
            event.set()

    @property
    def full(self) -> bool:
        return self.streams.closing or len(self.streams) >= self._limit

    async def follow(self) -> AsyncGenerator[str, None]:
        """Yield names of sections, with blanks between, whenever something is different; "" now and then."""
        event = asyncio.Event()
        names = self._pages[event] = set()
        try:
            while True:
                try:
                    async with asyncio.timeout(_HEARTBEAT):
                        await event.wait()
                except TimeoutError:
                    yield ""
                    continue
                event.clear()
                if names:
                    told = " ".join(sorted(names))
                    names.clear()
                    yield told
                    await asyncio.sleep(_PAUSE)
        finally:
            del self._pages[event]
