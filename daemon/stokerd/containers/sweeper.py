"""Removes what requests have left: old containers whose successors are proven, and what was never started."""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from stokerd.containers.book import Book
from stokerd.containers.inventory_model import Picture, seen
from stokerd.containers.job import Job
from stokerd.containers.model import Sight
from stokerd.containers.sweeping import leftovers, strays
from stokerd.errors import RuntimeFailure, RuntimeNotFound, RuntimeUnavailable
from stokerd.runtime.protocol import Runtime

_log = structlog.get_logger("containers")


class Sweeper:
    def __init__(self, runtime: Runtime, book: Book) -> None:
        self._runtime = runtime
        self._book = book

    @property
    def pending(self) -> bool:
        """Something of finished requests is still to be removed."""
        return any(job.finished and not job.clean for job in self._book.jobs)

    async def sweep(self, job: Job, sight: Sight) -> None:
        """Remove what a finished request has left, as far as the runtime lets us; the rest comes another time."""
        await asyncio.gather(*(self._sweep(job, name, sight) for name in [each.name for each in job.targets]))
        self._book.note(job)

    async def _sweep(self, job: Job, name: str, sight: Sight) -> None:
        for container in leftovers(job.target(name), sight, kubelet=job.row.owner == "kubelet"):
            if not await self._remove(container):
                return
        target = job.target(name)
        job.put(replace(target, row=replace(target.row, clean=True)))

    async def sweep_all(self) -> None:
        """Go through everything on the node. Raises RuntimeFailure.

        The listing is younger than the knowledge of which requests were over: what is "created" in it, and of a request
        that was over, nobody starts any more.
        """
        over = {job.id: job for job in self._book.jobs if job.finished}
        pods, containers = await asyncio.gather(self._runtime.pods.list(), self._runtime.containers.list())
        picture = Picture(pods, containers)
        for job in over.values():
            if not job.clean:
                await self.sweep(job, Sight(containers=tuple(seen(each) for each in picture.of(job.row.pod_id))))
        found = [(each.pod_id, seen(each)) for each in picture.containers]
        others = {job.id for job in self._book.jobs} - over.keys()
        removed = [each for each in strays(found, others, over.keys()) if await self._remove(each)]
        if removed:
            _log.info("removed containers that requests made and never started", count=len(removed))

    async def _remove(self, container: str) -> bool:
        try:
            await self._runtime.containers.remove(container)
        except RuntimeNotFound:
            return True
        except RuntimeUnavailable:
            return False
        except RuntimeFailure as error:
            _log.warning(
                "a container that is not needed any more could not be removed", id=container, why=error.message
            )
            return False
        return True
