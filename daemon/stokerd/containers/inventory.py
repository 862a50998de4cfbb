"""The pods and containers of the node, kept current by the runtime's events.

Events only mark what they concern; whoever asks for the picture first has that listed anew. So nothing is listed that
nobody asks for, and nobody is shown what has changed since. While no events come, everybody who asks asks the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from stokerd.containers.cancelling import heed_cancellation
from stokerd.containers.inventory_model import Picture
from stokerd.errors import NotFound, RuntimeFailure, RuntimeUnavailable
from stokerd.runtime.pod_types import Container, ContainerEvent, Pod
from stokerd.runtime.protocol import Runtime

_log = structlog.get_logger("containers")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_SINGLY = 8
"""Up to so many pods are listed one by one; more at once by one listing of everything."""
_SETTLING = 1.0
Listener = Callable[[ContainerEvent | None], None]
"""Is told every event; None: events may have been missed."""


class Inventory:
    """One per daemon. `run` in the task group; the rest may be called any time."""

    def __init__(self, runtime: Runtime, *, interval: float) -> None:
        self._runtime = runtime
        self._interval = interval
        self._picture = Picture()
        self._flowing = False
        self._all_stale = True
        self._stale: set[str] = set()
        self._refreshing = asyncio.Lock()
        self._listeners: list[Listener] = []
        runtime.on_change(self._doubt)

    def _doubt(self) -> None:
        """The runtime has come or gone, which the stream of events may not know yet."""
        self._flowing = False
        self._all_stale = True

    def on_event(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def apply(self, *, interval: float) -> None:
        self._interval = interval

    # ------------------------------------------------------------------------------------------ asking

    async def picture(self) -> Picture:
        """Return pods and containers as they are now; RuntimeFailure when the runtime was asked in vain."""
        if not self._flowing or not self._runtime.ready:
            return await self._list()
        async with self._refreshing:
            if self._all_stale or self._stale:
                await self._refresh()
            return self._picture

    async def find_pod(self, name: str, namespace: str = "") -> tuple[Pod, Picture]:
        """Return the pod meant by *name*; the containers of the picture may have changed since. NotFound, Conflict."""
        if self._flowing and self._runtime.ready and not self._all_stale:
            with contextlib.suppress(NotFound):
                return self._picture.find_pod(name, namespace), self._picture
            self.suspect()  # whoever has just made it may be quicker than its event
        picture = await self.picture()
        return picture.find_pod(name, namespace), picture

    async def find_container(self, name: str) -> tuple[Container, Picture]:
        """Return the container meant by *name*, as `find_pod` does."""
        picture = await self.picture()
        try:
            return picture.find_container(name), picture
        except NotFound:
            self.suspect()
            picture = await self.picture()
            return picture.find_container(name), picture

    def suspect(self) -> None:
        """Have everything listed anew when it is asked for next."""
        self._all_stale = True

    async def _list(self) -> Picture:
        pods, containers = await asyncio.gather(self._runtime.pods.list(), self._runtime.containers.list())
        return Picture(pods, containers)

    async def _refresh(self) -> None:
        everything, stale = self._all_stale or len(self._stale) > _SINGLY, self._stale
        self._all_stale, self._stale = False, set()  # what happens from here on is not in the listing
        try:
            if everything:
                self._picture = await self._list()
                return
            order = sorted(stale)
            listed = await asyncio.gather(*(self._runtime.containers.list(pod_id=pod) for pod in order))
            for pod, containers in zip(order, listed, strict=True):
                self._picture = self._picture.with_pod(pod, containers)
        except BaseException:
            self._all_stale = self._all_stale or everything
            self._stale |= stale
            raise

    # ------------------------------------------------------------------------------------------ events

    async def run(self) -> None:
        """Follow the runtime's events until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="containers: events")
            group.create_task(self._resync(), name="containers: resync")

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            await self._runtime.wait_ready()
            try:
                await self._heed(self._runtime.events.containers())
                pause = _FIRST_PAUSE
            except RuntimeUnavailable as error:
                pause = _FIRST_PAUSE
                _log.debug("the stream of container events broke", why=error.message)
            except RuntimeFailure as error:
                if pause == _FIRST_PAUSE:
                    _log.warning("no container events; pods are listed whenever it matters", why=error.message)
                pause = min(pause * 2, _LONGEST_PAUSE)
            finally:
                self._flowing = False
                self._tell(None)
            await asyncio.sleep(pause)

    async def _heed(self, events: AsyncIterator[ContainerEvent]) -> None:
        upcoming = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.sleep(0)  # the subscription is on its way before anything is listed
            self._all_stale = self._flowing = True
            self._tell(None)
            again = asyncio.get_running_loop().call_later(_SETTLING, self.suspect)
            try:
                while (event := await upcoming) is not None:
                    self._mark(event)
                    self._tell(event)
                    upcoming = asyncio.ensure_future(anext(events, None))
            finally:
                again.cancel()
        finally:
            upcoming.cancel()
            await asyncio.wait({upcoming})
            if not upcoming.cancelled():
                upcoming.exception()

    def _mark(self, event: ContainerEvent) -> None:
        if not event.pod_id or event.id == event.pod_id:
            self._all_stale = True
        else:
            self._stale.add(event.pod_id)

    def _tell(self, event: ContainerEvent | None) -> None:
        for listener in self._listeners:
            listener(event)

    async def _resync(self) -> None:
        """List everything now and then: an event that was lost is made up for."""
        while True:
            await asyncio.sleep(self._interval)
            self._all_stale = True
            if not self._flowing:
                continue
            try:
                await self.picture()
            except RuntimeFailure as error:
                heed_cancellation()
                _log.debug("pods could not be listed", why=error.message)
