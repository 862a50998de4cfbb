"""Which request runs when: one at a time on each pod, so many pods at one time, and no gap between two of them."""

from __future__ import annotations

import asyncio

import structlog

from stokerd.containers.book import Book
from stokerd.containers.clock import Clock
from stokerd.containers.drive import Books, Drive
from stokerd.containers.hands import Hands
from stokerd.containers.job import Job
from stokerd.containers.line import Waiting, ahead, startable
from stokerd.containers.model import Ask, Sight
from stokerd.containers.outcomes import settled
from stokerd.containers.scene import Scene, given_up
from stokerd.containers.sweeper import Sweeper
from stokerd.runtime.pod_types import ContainerEvent
from stokerd.runtime.protocol import Runtime

_log = structlog.get_logger("containers")
_MOST_PODS = 10_000


class Lanes:
    """`enter` takes a request up; `run` in the task group carries them out."""

    def __init__(
        self, runtime: Runtime, hands: Hands, clock: Clock, book: Book, sweeper: Sweeper, *, limit: int
    ) -> None:
        self._runtime = runtime
        self._hands = hands
        self._clock = clock
        self._book = book
        self._sweeper = sweeper
        self._limit = limit
        self._line: dict[str, Job] = {}
        """Requests that wait for their turn, in their order."""
        self._drives: dict[str, tuple[Job, Drive]] = {}
        """What is under way, by pod."""
        self._entered: asyncio.Queue[Job] = asyncio.Queue()
        self._moved = asyncio.Event()
        self._parking = False
        self._serial = 0
        self._last_event: dict[str, int] = {}
        self._last_doubt = 0

    # ------------------------------------------------------------------------------------------ asking

    @property
    def running(self) -> int:
        return len(self._drives)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def ahead(self, job: Job) -> str:
        """Return the request that goes right before a waiting one, "" when none does."""
        return ahead(self._waiting(), {pod: each.id for pod, (each, _) in self._drives.items()}, job.id)

    def last_on(self, pod_id: str) -> str:
        """Return the request that a new one on this pod would wait for."""
        queued = [each.id for each in self._line.values() if each.row.pod_id == pod_id]
        running = [self._drives[pod_id][0].id] if pod_id in self._drives else []
        return (running + queued)[-1] if running or queued else ""

    def _waiting(self) -> list[Waiting]:
        return [Waiting(each.id, each.row.pod_id) for each in self._line.values()]

    # ------------------------------------------------------------------------------------------ telling

    def enter(self, job: Job) -> None:
        self._line[job.id] = job
        self._entered.put_nowait(job)
        self._dispatch()

    def apply(self, *, limit: int) -> None:
        self._limit = limit
        self._dispatch()

    @property
    def serial(self) -> int:
        """The number of the last event: who looks at a pod after reading it knows what was before."""
        return self._serial

    def heed(self, event: ContainerEvent | None) -> None:
        """Pass an event on to the request of its pod; None, and what names no pod, to all."""
        self._serial += 1
        if event is not None and event.pod_id:
            if len(self._last_event) >= _MOST_PODS:
                self._last_event, self._last_doubt = {}, self._serial
            self._last_event[event.pod_id] = self._serial
            entry = self._drives.get(event.pod_id)
            if entry is not None:
                entry[1].heed(event)
            return
        self._last_doubt = self._serial
        for _, drive in self._drives.values():
            drive.heed(event)

    def poke(self) -> None:
        """The runtime has come or gone, or a request was cancelled."""
        for _, drive in self._drives.values():
            drive.poke(up=self._runtime.ready)
        for job in self._line.values():
            if job.row.cancelled:
                job.turn.set()

    async def park(self, limit: float) -> None:
        """Begin nothing more; return when no container is between two, or after *limit* seconds."""
        self._parking = True
        for _, drive in self._drives.values():
            drive.park()
        try:
            async with asyncio.timeout(limit):
                while any(drive.torn for _, drive in self._drives.values()):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            _log.warning("stokerd stops while containers are being recreated; the next start goes on with them")

    # ------------------------------------------------------------------------------------------ running

    async def run(self) -> None:
        """Carry out all requests until cancelled; may be run again."""
        self._drives.clear()  # a run before may have been cut off
        self._line = {job.id: job for job in self._book.unfinished() if job.accepted.is_set()}
        for job in self._line.values():
            job.turn.clear()
        while not self._entered.empty():
            self._entered.get_nowait()
        try:
            async with asyncio.TaskGroup() as group:
                for job in list(self._line.values()):
                    group.create_task(self._live(job), name=f"containers: {job.id}")
                self._dispatch()
                while True:
                    job = await self._entered.get()
                    group.create_task(self._live(job), name=f"containers: {job.id}")
        finally:
            self._drives.clear()

    def _dispatch(self) -> None:
        """Let go whoever may."""
        if self._parking:
            return
        for request in startable(self._waiting(), self._drives.keys(), self._limit):
            job = self._line[request]
            drive = Drive(job, self._hands, self._clock, self._books(job), self._book.heirs(job))
            drive.up = self._runtime.ready
            if max(self._last_event.get(job.row.pod_id, 0), self._last_doubt) > job.serial:
                drive.heed(None)  # what was seen when the request was made does not hold any more
            self._drives[job.row.pod_id] = job, drive
            self._line.pop(request)
            job.turn.set()

    def _books(self, job: Job) -> Books:
        def changed() -> None:
            self._book.changed(job)
            self._moved.set()

        return Books(changed, lambda row: self._book.write(job, row), lambda: self._book.note(job), self._moved.set)

    async def _live(self, job: Job) -> None:
        """One request from its acceptance to its end."""
        sweep = False
        try:
            if await self._turn(job):
                _, drive = self._drives[job.row.pod_id]
                job.begin(self._clock.time())
                self._book.changed(job)
                await drive.run()
                sweep = True
            else:
                self._give_up(job)
            await self._book.finish(job)
        finally:
            self._leave(job)
        sight = job.sight
        job.forget_secrets()
        if sweep:
            await self._sweeper.sweep(job, sight)
        else:
            job.mark_clean()
            self._book.note(job)

    async def _turn(self, job: Job) -> bool:
        """Wait for this request's turn; return False when it was cancelled, or its time was over, before."""
        while job.id in self._line:
            left = job.row.deadline_at - self._clock.time()
            if job.row.cancelled or left <= 0:
                return False
            job.turn.clear()
            try:
                async with asyncio.timeout(left):
                    await job.turn.wait()
            except TimeoutError:
                continue
        return True

    def _give_up(self, job: Job) -> None:
        """End a request that nothing was done for."""
        now = self._clock.time()
        row = job.row
        ask = Ask(row.id, row.pod_id, row.owner, job.spec, now, row.deadline_at, row.cancelled)
        for target in job.targets:
            end = given_up(Scene(ask, job.targets, Sight(), max(now, row.deadline_at)), target)
            if end is not None:
                job.put(settled(target, job.sight, end, now))

    def _leave(self, job: Job) -> None:
        self._line.pop(job.id, None)
        entry = self._drives.get(job.row.pod_id)
        if entry is not None and entry[0] is job:
            del self._drives[job.row.pod_id]
        self._moved.set()
        self._dispatch()
        for other in self._line.values():
            if other.row.pod_id == job.row.pod_id:
                self._book.changed(other)  # whom it waits for is another one now
