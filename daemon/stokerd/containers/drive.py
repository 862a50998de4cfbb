"""Carries one request through: asks the planner what comes next, does it, and asks again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from msgspec.structs import replace

from stoker.objects.containers import Step
from stokerd.containers import actions as act
from stokerd.containers.actions import Action, Instant, subject
from stokerd.containers.clock import Clock
from stokerd.containers.hands import Hands
from stokerd.containers.job import Job
from stokerd.containers.model import NEVER, Ask, Target
from stokerd.containers.outcomes import Result, carried_out, learned, looked, settled
from stokerd.containers.planner import decide
from stokerd.containers.tidings import judge
from stokerd.journal.rows import TargetRow
from stokerd.runtime.pod_types import ContainerEvent

_log = structlog.get_logger("containers")
_STEPS: dict[type[Action], Step] = {
    act.Warm: "Warming",
    act.Create: "Creating",
    act.Commit: "Stopping",
    act.Hook: "PreStop",
    act.Stop: "Stopping",
    act.Start: "Starting",
    act.Examine: "Verifying",
    act.Check: "Verifying",
    act.Remove: "Removing",
    act.Blame: "RollingBack",
}
_SHORTEST_WAIT = 0.001


class Books(msgspec.Struct, frozen=True):
    """Where a drive writes down what it does. ``changed``: tell those who follow; ``write``: now, and wait for it;
    ``note``: soon; ``moved``: an action is over, whether or not those who follow are told of it."""

    changed: Callable[[], None]
    write: Callable[[TargetRow], Awaitable[None]]
    note: Callable[[], None]
    moved: Callable[[], None]


class Drive:
    """One request on its way. `run` returns when all of its containers have come to their end."""

    def __init__(self, job: Job, hands: Hands, clock: Clock, books: Books, heirs: frozenset[str]) -> None:
        self._job = job
        self._hands = hands
        self._clock = clock
        self._books = books
        self._heirs = heirs
        self._busy: dict[str, tuple[Action, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._events: list[ContainerEvent] = []
        self._newer: set[str] = set()
        """Containers of which more is known than the look that is under way can see."""
        self._suspicious = False
        """Something went wrong, or happened, while the look that is under way was taken."""
        self._since = clock.time()
        self.up = True
        self.parking = False

    # ------------------------------------------------------------------------------------------ what happens around it

    def poke(self, *, up: bool) -> None:
        """Decide again: the runtime has come or gone, or the request was cancelled."""
        if up and not self.up:
            self._since = self._clock.time()
        self.up = up
        self._wake.set()

    def park(self) -> None:
        """Touch nothing new from here on."""
        self.parking = True
        self._wake.set()

    def heed(self, event: ContainerEvent | None) -> None:
        """Take in an event of the pod; None: some may have been missed."""
        if event is None:
            self._suspect()
        else:
            self._events.append(event)
        self._wake.set()

    @property
    def torn(self) -> bool:
        """A container has been stopped, or is about to be, and its successor does not run yet."""
        kubelet = self._job.row.owner == "kubelet"
        return any(self._begun(each) and not each.final and self._lacks(each, kubelet) for each in self._job.targets)

    def _begun(self, target: Target) -> bool:
        """There is no way back. What is being written to the journal cannot be taken out of it again, and the stop
        follows at once."""
        action, _ = self._busy.get(target.name, (None, None))
        return target.committed or isinstance(action, act.Commit)

    def _lacks(self, target: Target, kubelet: bool) -> bool:
        if kubelet:
            return target.name in self._busy
        mine = (each for each in self._job.sight.named(target.name) if each.request == self._job.id)
        return not any(each.state == "running" for each in mine) or bool(target.row.verdict)

    # ------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while not all(each.final for each in self._job.targets):
                now = self._clock.time()
                self._read_events()
                ask = self._ask()
                decision = decide(ask, self._job.targets, self._job.sight, self._busy.keys(), now)
                self._abandon(now)
                if self._begin(group, decision.actions, now):
                    continue
                await self._wait(decision.wake_at)
            for _, task in self._busy.values():
                task.cancel()

    def _ask(self) -> Ask:
        row = self._job.row
        return Ask(
            id=row.id,
            pod_id=row.pod_id,
            owner=row.owner,
            spec=self._job.spec,
            started_at=row.started_at if row.started_at is not None else row.created_at,
            deadline_at=row.deadline_at,
            since=self._since,
            cancelled=row.cancelled,
            up=self.up,
            parking=self.parking,
            heirs=self._heirs,
        )

    def _begin(self, group: asyncio.TaskGroup, actions: tuple[Action, ...], now: float) -> bool:
        """Begin what is to be done; say whether something has been decided at once."""
        decided = False
        for action in actions:
            if isinstance(action, Instant):
                target = self._job.target(action.target)
                self._job.put(settled(target, self._job.sight, action, now))
                self._books.note()
                self._books.changed()
                decided = True
                continue
            if isinstance(action, act.Observe):
                self._newer, self._suspicious = set(), False
            else:
                self._show(action, now)
            name = subject(action)
            task = group.create_task(self._carry(action), name=f"containers: {type(action).__name__} {name}")
            self._busy[name] = action, task
        return decided

    def _show(self, action: Action, now: float) -> None:
        """Let those who follow see what is being done."""
        name = subject(action)
        target = self._job.target(name)
        if target.row.started_at is None:
            self._job.put(replace(target, row=replace(target.row, phase="Recreating", started_at=now)))
        step = "RollingBack" if target.row.verdict else _STEPS[type(action)]
        if self._job.steps.get(name) != step:
            self._job.steps[name] = step
            self._books.changed()

    async def _wait(self, wake_at: float | None) -> None:
        pause = None if wake_at is None else max(wake_at - self._clock.time(), _SHORTEST_WAIT)
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _abandon(self, now: float) -> None:
        """Break off the warming of images for what is not going to be touched any more."""
        if not self._job.row.cancelled and now < self._job.row.deadline_at:
            return
        for action, task in self._busy.values():
            if isinstance(action, act.Warm) and not self._job.target(action.target).committed:
                task.cancel()

    # ------------------------------------------------------------------------------------------ one action

    async def _carry(self, action: Action) -> None:
        try:
            if isinstance(action, act.Commit | act.Blame):
                await self._write_down(action)
            else:
                self._take_in(action, await self._hands.carry(self._job, action))
        finally:
            self._busy.pop(subject(action), None)
            self._wake.set()
            self._books.moved()

    async def _write_down(self, action: act.Commit | act.Blame) -> None:
        """What is meant is in the journal before it is done. A journal that cannot be written holds nothing up: what
        is there tells the rest."""
        target, _ = carried_out(self._job.target(action.target), self._job.sight, action, Result(), self._clock.time())
        await self._books.write(target.row)
        self._job.put(target)
        if isinstance(action, act.Blame):
            _log.warning("rolling back", request=self._job.id, container=target.name, why=action.verdict)

    def _take_in(self, action: Action, result: Result) -> None:
        now, job = self._clock.time(), self._job
        if isinstance(action, act.Observe):
            sight = looked(job.sight, result, self._newer, now)
            job.sight = replace(sight, at=NEVER) if self._suspicious else sight
            for target in job.targets:
                job.put(learned(target, result))
            return
        before = job.sight
        target, job.sight = carried_out(job.target(action.target), before, action, result, now)
        job.put(target)
        if job.sight.at == NEVER:
            self._suspicious = True
        known = {each.id: each for each in before.containers}
        after = {each.id: each for each in job.sight.containers}
        self._newer |= {each for each in {*known, *after} if known.get(each) != after.get(each)}

    # ------------------------------------------------------------------------------------------ events

    def _read_events(self) -> None:
        actions = [action for action, _ in self._busy.values()]
        creating = any(isinstance(action, act.Create) for action in actions)
        in_hand = {action.container for action in actions if isinstance(action, act.Start | act.Stop | act.Remove)}
        later = []
        for event in self._events:
            verdict = judge(event, self._job.sight, in_hand, creating=creating)
            if verdict == "later":
                later.append(event)
            elif verdict == "news":
                self._suspect()
        self._events = later

    def _suspect(self) -> None:
        self._suspicious = True
        self._job.sight = replace(self._job.sight, at=NEVER)
