"""Runs the pulls: starts what the queue says, shares one pull among all who want it, retries, gives up, cleans up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import structlog

from stokerd.errors import RuntimeFailure, StokerError
from stokerd.images.clock import Clock
from stokerd.images.failures import Failure, classify
from stokerd.images.jobs import Item, Pull
from stokerd.images.line import Line
from stokerd.images.presence import Presence, Present
from stokerd.images.progress import PullProgress, advance
from stokerd.images.pull import Pulled, Puller, PullOrder
from stokerd.images.queue import WINDOW, Decision, Hold, Limits, Room, Waiting, decide, family_of, why
from stokerd.images.retry import Backoff, registry_rest
from stokerd.registry.references import Reference
from stokerd.runtime.protocol import Runtime

_log = structlog.get_logger("images")
_CLEANUP_RETRY = 5.0
_RUNTIME_PAUSE = 0.5
"""After a call broke, until the connection's supervision has noticed too."""


@dataclass(frozen=True, slots=True)
class Warm:
    """An attempt that ended well; ``pulled`` is None when the image was there already."""

    present: Present
    pulled: Pulled | None
    previous_digest: str = ""


Outcome = Warm | Failure


class Listener(Protocol):
    """Told of everything that happens to items; implemented by the service."""

    def started(self, item: Item, pull: Pull) -> None: ...
    def progressed(self, item: Item, progress: PullProgress) -> None: ...
    def waits(self, item: Item, failure: Failure, delay: float) -> None: ...
    async def warmed(self, item: Item) -> None: ...
    def succeeded(self, item: Item, outcome: Warm) -> None: ...
    def failed(self, item: Item, failure: Failure) -> None: ...
    def attempted(self, started: float, outcome: Outcome | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """The scheduler's share of the settings. Seconds and percent."""

    limits: Limits
    backoff: Backoff
    pressure_limit: float
    pressure_interval: float


class Scheduler:
    """All pulls of the node, by what is pulled (`Reference.pull_spec`)."""

    def __init__(
        self,
        runtime: Runtime,
        puller: Puller,
        presence: Presence,
        policy: Policy,
        clock: Clock,
        pressure: Callable[[], Awaitable[float | None]],
        listener: Listener,
    ) -> None:
        self._runtime = runtime
        self._puller = puller
        self._presence = presence
        self._policy = policy
        self._clock = clock
        self._pressure = pressure
        self._listener = listener
        self._pulls: dict[str, Pull] = {}
        self._line = Line()
        self._running: set[Pull] = set()
        self._left: list[Pull] = []
        self._resting: dict[str, float] = {}
        self._strikes: dict[str, int] = {}
        self._sequence = 0
        self._changed = asyncio.Event()
        self._room = Room({}, self._resting)
        runtime.on_change(self._changed.set)

    # ------------------------------------------------------------------------------------------ who wants what

    def want(self, item: Item) -> None:
        """Put an item in the queue, or join the pull that is there for the same image."""
        pull = self._pulls.get(item.key) or self._new(item.reference)
        pull.add(item)
        if pull.state == "waiting":
            self._line.put(self._waiting(pull))
        elif pull.admits(item):
            self._enter(item, pull)
        pull.joined.set()
        self._changed.set()

    def drop(self, item: Item) -> Pull | None:
        """Take an item out. A pull that nobody wants any more is broken off and returned: wait until it is ``gone``."""
        pull = self._pulls.get(item.key)
        if pull is None or item not in pull.items:
            return None
        pull.remove(item)
        item.stop_clock(self._clock.monotonic())
        if pull.task is not None and not pull.taking and not pull.task.cancelling():
            pull.task.cancel()
        elif pull.state == "waiting":
            self._leave(pull)
        self._changed.set()
        return None if pull.items else pull

    def abandoned(self, key: str) -> Pull | None:
        """Return the pull that nobody wants any more, but that has left something that is still being removed."""
        pull = self._pulls.get(key)
        return None if pull is None or pull.items else pull

    def found(self, reference: Reference) -> Pull | None:
        """Take note that an earlier run has left something of an image. When nobody wants it, it is removed: wait for
        the pull that is returned to be ``gone``.
        """
        pull = self._pulls.get(reference.pull_spec)
        if pull is not None:
            pull.traces = True
            return None if pull.items else pull
        pull = self._new(reference)
        pull.traces = True
        self._left.append(pull)
        self._changed.set()
        return pull

    @property
    def keys(self) -> Collection[str]:
        """What is pulled or waits to be, as of the moment it is looked at."""
        return self._pulls.keys()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def hold(self, key: str) -> Hold:
        """Say what a pull waits for, as of the last decision; empty when it runs or is unknown."""
        pull = self._pulls.get(key)
        if pull is None or pull.state != "waiting":
            return ""
        return why(self._waiting(pull), self._policy.limits, self._room, self._clock.monotonic())

    def apply(self, policy: Policy) -> None:
        """Let a new policy hold. Pulls that run go on, even if there are now more of them than may be."""
        self._policy = policy
        self._changed.set()

    def _new(self, reference: Reference) -> Pull:
        self._sequence += 1
        pull = self._pulls[reference.pull_spec] = Pull(reference.pull_spec, reference, self._sequence)
        return pull

    def _leave(self, pull: Pull) -> None:
        """See to a waiting pull that an item has left."""
        if pull.items:
            self._line.put(self._waiting(pull))
            return
        self._line.take(pull.key)
        if pull.traces:
            self._left.append(pull)
        else:
            self._remove(pull)

    @staticmethod
    def _waiting(pull: Pull) -> Waiting:
        family = family_of(pull.reference.name)
        return Waiting(pull.key, pull.registry, pull.priority, pull.sequence, pull.not_before, family)

    # ------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Start pulls as they become due, until cancelled. Attempts that run then are left resumable.

        May run again after it was cancelled or has failed: it goes on with what was left in the middle.
        """
        self._take_up()
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                self._clean_up(group)
                wake_at = await self._start_due(group)
                timeout = None if wake_at is None else max(wake_at - self._clock.monotonic(), 0.0)
                try:
                    async with asyncio.timeout(timeout):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _take_up(self) -> None:
        """Put back what an earlier run has left in the middle."""
        now = self._clock.monotonic()
        for pull in list(self._pulls.values()):
            if pull.state == "waiting":
                continue
            for item in pull.items:
                item.stop_clock(now)
            pull.state, pull.task = "waiting", None
            pull.taking.clear()
            self._running.discard(pull)
            self._leave(pull)

    def _clean_up(self, group: asyncio.TaskGroup) -> None:
        left, self._left = self._left, []
        for pull in left:
            if pull.state == "waiting" and not pull.items and self._pulls.get(pull.key) is pull:
                pull.state = "closing"
                group.create_task(self._close(pull), name=f"clean up {pull.key}")

    async def _start_due(self, group: asyncio.TaskGroup) -> float | None:
        decision = self._decide(pressed=False)
        if not decision.start:
            return decision.wake_at
        pressed = await self._under_pressure()
        decision = self._decide(pressed=pressed)
        for key in decision.start:
            pull = self._pulls[key]
            self._line.take(key)
            pull.state = "running"
            self._running.add(pull)
            group.create_task(self._work(pull), name=f"warm {key}")
        return self._clock.monotonic() + self._policy.pressure_interval if pressed else decision.wake_at

    def _decide(self, *, pressed: bool) -> Decision:
        running = Counter(pull.registry for pull in self._running)
        families = frozenset(family_of(pull.reference.name) for pull in self._running)
        ready = self._runtime.ready
        self._room = Room(running, self._resting, pressure=pressed, runtime_ready=ready, families=families)
        limits, now = self._policy.limits, self._clock.monotonic()
        if len(self._running) >= limits.node:
            return Decision()
        return decide(self._line.foremost(WINDOW, now), limits, self._room, now)

    async def _under_pressure(self) -> bool:
        if self._policy.pressure_limit >= 100:
            return False
        pressure = await self._pressure()
        return pressure is not None and pressure > self._policy.pressure_limit

    # ------------------------------------------------------------------------------------------ one pull

    async def _work(self, pull: Pull) -> None:
        """Make one attempt for all who want the image, and settle what follows from it."""
        outcome: Outcome | None = None
        try:
            if pull.items:  # they may have gone before this has begun
                outcome = await self._attempt(pull)
                await self._settle(pull, outcome)
        finally:
            self._running.discard(pull)
        if pull.items:
            self._wait_again(pull)
        elif pull.traces:
            await self._close(pull)
        else:
            self._remove(pull)
        self._changed.set()

    def _wait_again(self, pull: Pull) -> None:
        pull.state = "waiting"
        self._line.put(self._waiting(pull))

    def _enter(self, item: Item, pull: Pull) -> None:
        pull.taking[item] = None
        item.pulling_since = self._clock.monotonic()
        self._listener.started(item, pull)

    async def _attempt(self, pull: Pull) -> Outcome | None:
        """Return what came of it; None when nobody wanted it to the end."""
        pull.attempt += 1
        pull.asked, pull.offered, pull.traces = False, frozenset(), True
        started = self._clock.time()
        for item in pull.items:
            self._enter(item, pull)
        async with asyncio.TaskGroup() as group:
            pull.task = group.create_task(self._try(pull), name=f"attempt {pull.key}")
            deadlines = group.create_task(self._enforce_deadlines(pull), name=f"deadlines {pull.key}")
            try:
                await asyncio.wait({pull.task})
            finally:
                deadlines.cancel()
        task, pull.task = pull.task, None
        outcome = None if task.cancelled() else task.result()
        self._listener.attempted(started, outcome)
        return outcome

    async def _try(self, pull: Pull) -> Outcome:
        try:
            before = await self._runtime.images.get(pull.key)
            present = await self._satisfy_content(pull)
            if present is not None and not pull.items:
                pull.asked = True
                # An earlier run may have been killed between the end of its pull and the end of its lease.
                await self._puller.release(pull.key)
                return Warm(present, None)
            pull.asked = True
            pull.offered = frozenset(pull.auths)
            order = PullOrder(
                pull.reference, pull.auths, lambda progress: self._report(pull, progress), lambda: self._make_room(pull)
            )
            outcome = await self._puller.attempt(order)
        except StokerError as error:
            return classify(error, pull.key)
        except Exception as error:  # noqa: BLE001 - a fault of ours must cost one image, not the daemon
            _log.exception("attempt failed unexpectedly", image=pull.key)
            return Failure("Internal", f"stokerd failed: {type(error).__name__}: {error}", "please report this")
        if isinstance(outcome, Failure):
            return outcome
        moved = before is not None and before.target.digest != outcome.present.digest
        return Warm(outcome.present, outcome, before.target.digest if before is not None and moved else "")

    def _make_room(self, pull: Pull) -> None:
        """Let the next pull start while what this one brought is being checked."""
        self._running.discard(pull)
        self._changed.set()

    def _report(self, pull: Pull, progress: PullProgress) -> None:
        """Pass progress on. Each attempt begins to look anew, but what is shown goes on from where it was."""
        pull.progress = advance(pull.progress, progress)
        for item in pull.taking:
            self._listener.progressed(item, pull.progress)

    async def _enforce_deadlines(self, pull: Pull) -> None:
        """Fail items whose pulling took too long; the last one takes the attempt with it."""
        while True:
            pull.joined.clear()
            now = self._clock.monotonic()
            left = {item: left for item in pull.taking if (left := item.remaining(now)) is not None}
            for item in [item for item, seconds in left.items() if seconds <= 0]:
                limit = item.job.row.timeout or 0.0
                self.drop(item)
                self._listener.failed(item, _deadline(item.key, limit))
                left.pop(item)
            try:
                async with asyncio.timeout(min(left.values(), default=None)):
                    await pull.joined.wait()
            except TimeoutError:
                continue

    # ------------------------------------------------------------------------------------------ what follows

    async def _settle(self, pull: Pull, outcome: Outcome | None) -> None:
        now = self._clock.monotonic()
        for item in pull.taking:
            item.stop_clock(now)
        if isinstance(outcome, Warm):
            pull.failed, pull.not_before, pull.traces = 0, 0.0, False
            if outcome.pulled is not None:
                self._strikes.pop(pull.registry, None)
            await self._satisfy(pull, outcome)
        elif outcome is not None:
            if pull.always:  # the others may have joined after the look at what is there
                with contextlib.suppress(RuntimeFailure):
                    await self._satisfy_content(pull)
            self._settle_failure(pull, outcome)
        pull.taking.clear()

    async def _satisfy_content(self, pull: Pull) -> Present | None:
        """Look for the image, and if it is there, tell those who are content with that, whoever asks the registry."""
        if all(item.always for item in pull.items):
            return None
        present = await self._presence.find(pull.reference)
        if present is not None:
            await self._satisfy(pull, Warm(present, None))
        return present

    async def _satisfy(self, pull: Pull, outcome: Warm) -> None:
        """Tell all whom the image satisfies; those who came too late with Always stay, for an attempt of their own."""
        asked = outcome.pulled is not None
        while satisfied := [item for item in pull.items if not item.always or (asked and item in pull.taking)]:
            for item in satisfied:  # more may join, or leave, while one is seen to
                if item in pull.items:
                    await self._listener.warmed(item)
                if item in pull.items:
                    taken = item in pull.taking
                    pull.remove(item)
                    self._listener.succeeded(item, outcome if taken else Warm(outcome.present, None))

    def _settle_failure(self, pull: Pull, failure: Failure) -> None:
        """Decide, item by item, between another attempt and the end."""
        delay = _RUNTIME_PAUSE
        counts = failure.reason != "RuntimeUnavailable"  # containerd's absence is nobody's failed attempt
        if counts:
            pull.failed += 1
            delay = self._policy.backoff.delay(pull.failed, self._clock.draw())
        if failure.rate_limited:
            delay = max(delay, self._rest(pull.registry))
        if failure.auth and any(self._untried(item, pull) for item in pull.taking):
            delay = 0.0
        for item in list(pull.taking):
            if self._untried(item, pull) and failure.auth:
                self._listener.waits(item, failure, delay)
                continue
            item.failed += counts
            if failure.retryable and (not counts or item.failed < item.job.row.attempts):
                self._listener.waits(item, failure, delay)
            else:
                pull.remove(item)
                self._listener.failed(item, _lost_auths(failure) if failure.auth and item.lost_auths else failure)
        pull.not_before = self._clock.monotonic() + delay

    @staticmethod
    def _untried(item: Item, pull: Pull) -> bool:
        """Say whether an item that joined brought credentials that the attempt did not go with."""
        return not pull.offered.issuperset(item.job.auths)

    def _rest(self, registry: str) -> float:
        strikes = self._strikes[registry] = self._strikes.get(registry, 0) + 1
        seconds = registry_rest(strikes, None, self._policy.backoff, self._clock.draw())
        self._resting[registry] = self._clock.monotonic() + seconds
        _log.warning("registry limits the rate; it rests", registry=registry, seconds=round(seconds, 1))
        return seconds

    # ------------------------------------------------------------------------------------------ the end

    async def _close(self, pull: Pull) -> None:
        """Remove what a pull left that nobody wants any more. Should somebody want it meanwhile, it starts afresh."""
        pull.state = "closing"
        failing = False
        while True:
            try:
                await self._puller.discard(pull.reference)
                pull.traces = False
                break
            except RuntimeFailure as error:
                if pull.items or not self._runtime.ready:
                    break  # it goes on with what is there; or once containerd is back, all leases are gone through
                if not failing:
                    _log.warning("cannot clean up yet; trying again", image=pull.key, why=error.message)
                failing = True
            await self._pause(pull)
        if failing and not pull.traces:
            _log.info("cleaned up", image=pull.key)
        if pull.items:
            pull.attempt = pull.failed = 0
            pull.not_before = 0.0
            pull.progress = PullProgress()
            self._wait_again(pull)
        else:
            self._remove(pull)
        self._changed.set()

    @staticmethod
    async def _pause(pull: Pull) -> None:
        """Wait before the next try at cleaning up, but not when somebody wants the image."""
        pull.joined.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLEANUP_RETRY):
                await pull.joined.wait()

    def _remove(self, pull: Pull) -> None:
        if self._pulls.get(pull.key) is pull:
            del self._pulls[pull.key]
        pull.gone.set()


def _deadline(name: str, seconds: float) -> Failure:
    return Failure(
        "DeadlineExceeded",
        f"{name} was being pulled for {seconds:g} s, its deadline (waiting not counted)",
        "allow more time, or look at how fast the registry delivers",
    )


def _lost_auths(failure: Failure) -> Failure:
    hint = "credentials that came with the request are not kept over a restart of stokerd; send the request again"
    return Failure(failure.reason, failure.message, hint, auth=True)
