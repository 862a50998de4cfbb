"""Runs the pulls: starts what the queue says, shares one pull among all who want it, retries, gives up, cleans up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from stokerd.errors import RuntimeFailure, StokerError
from stokerd.images.clock import Clock
from stokerd.images.failures import Failure, classify
from stokerd.images.jobs import Item, Pull
from stokerd.images.presence import Presence, Present
from stokerd.images.progress import PullProgress
from stokerd.images.pull import Pulled, Puller, PullOrder
from stokerd.images.queue import Hold, Limits, Room, Waiting, decide, why
from stokerd.images.retry import Backoff, registry_rest
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
    def attempted(self, pull: Pull, started: float, outcome: Outcome | None) -> None: ...


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
        self._resting: dict[str, float] = {}
        self._strikes: dict[str, int] = {}
        self._sequence = 0
        self._changed = asyncio.Event()
        self._room = Room({}, self._resting)
        runtime.on_change(self._changed.set)

    # ------------------------------------------------------------------------------------------ who wants what

    def want(self, item: Item) -> None:
        """Put an item in the queue, or join the pull that is there for the same image."""
        pull = self._pulls.get(item.key)
        if pull is None:
            self._sequence += 1
            pull = self._pulls[item.key] = Pull(item.key, item.reference, self._sequence)
        pull.items.append(item)
        if pull.running and not pull.closing:
            self._enter(item, pull)
            pull.joined.set()
        self._changed.set()

    def drop(self, item: Item) -> Pull | None:
        """Take an item out. A pull that nobody wants any more is broken off; wait for its ``idle``."""
        pull = self._pulls.get(item.key)
        if pull is None or item not in pull.items:
            return None
        pull.items.remove(item)
        item.stop_clock(self._clock.monotonic())
        if pull.items:
            return None
        if pull.running:
            if pull.task is not None:
                pull.task.cancel()
        elif pull.attempt == 0:
            self._remove(pull)
        self._changed.set()
        return pull

    @property
    def keys(self) -> frozenset[str]:
        """What is pulled or waits to be."""
        return frozenset(self._pulls)

    @property
    def running(self) -> int:
        return sum(pull.running for pull in self._pulls.values())

    @property
    def waiting(self) -> int:
        return len(self._pulls) - self.running

    def hold(self, key: str) -> Hold:
        """Say what a pull waits for, as of the last decision; empty when it runs or is unknown."""
        pull = self._pulls.get(key)
        if pull is None or pull.running:
            return ""
        return why(self._waiting(pull), self._policy.limits, self._room, self._clock.monotonic())

    @staticmethod
    def _waiting(pull: Pull) -> Waiting:
        return Waiting(pull.key, pull.registry, pull.priority, pull.sequence, pull.not_before)

    # ------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Start pulls as they become due, until cancelled. Attempts that run then are left resumable."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                wake_at = await self._start_due(group)
                timeout = None if wake_at is None else max(wake_at - self._clock.monotonic(), 0.0)
                try:
                    async with asyncio.timeout(timeout):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _start_due(self, group: asyncio.TaskGroup) -> float | None:
        for pull in [entry for entry in self._pulls.values() if not entry.items and not entry.running]:
            pull.running = pull.closing = True
            group.create_task(self._close(pull), name=f"clean up {pull.key}")
        if self.waiting == 0:
            return None
        pressed = await self._under_pressure()
        now = self._clock.monotonic()
        self._room = Room(
            Counter(pull.registry for pull in self._pulls.values() if pull.running and not pull.closing),
            self._resting,
            pressure=pressed,
            runtime_ready=self._runtime.ready,
        )
        waiting = (self._waiting(pull) for pull in self._pulls.values() if not pull.running)
        decision = decide(waiting, self._policy.limits, self._room, now)
        for key in decision.start:
            pull = self._pulls[key]
            if pull.items:  # it may have been dropped while the pressure was read
                pull.running = True
                group.create_task(self._work(pull), name=f"warm {key}")
        wake_at = decision.wake_at
        if pressed:
            again = now + self._policy.pressure_interval
            wake_at = again if wake_at is None else min(wake_at, again)
        return wake_at

    async def _under_pressure(self) -> bool:
        if self._policy.pressure_limit >= 100:
            return False
        pressure = await self._pressure()
        return pressure is not None and pressure > self._policy.pressure_limit

    # ------------------------------------------------------------------------------------------ one pull

    async def _work(self, pull: Pull) -> None:
        """Make one attempt for all who want the image, and settle what follows from it."""
        pull.attempt += 1
        started = self._clock.time()
        for item in pull.items:
            self._enter(item, pull)
        outcome = await self._attempt(pull)
        now = self._clock.monotonic()
        for item in pull.items:
            item.stop_clock(now)
        self._listener.attempted(pull, started, outcome)
        if isinstance(outcome, Warm):
            self._strikes.pop(pull.registry, None)
            while pull.items:  # more may join, or leave, while one is seen to
                item = pull.items[0]
                await self._listener.warmed(item)
                if item in pull.items:
                    pull.items.remove(item)
                    self._listener.succeeded(item, outcome)
        elif outcome is not None:
            self._settle_failure(pull, outcome)
        if isinstance(outcome, Warm) and not pull.items:
            self._remove(pull)
        elif not pull.items:
            await self._close(pull)
        else:
            pull.running = False
        self._changed.set()

    def _enter(self, item: Item, pull: Pull) -> None:
        item.pulling_since = self._clock.monotonic()
        self._listener.started(item, pull)

    async def _attempt(self, pull: Pull) -> Outcome | None:
        """Return what came of it; None when nobody wanted it to the end."""
        async with asyncio.TaskGroup() as group:
            pull.task = group.create_task(self._try(pull), name=f"attempt {pull.key}")
            deadlines = group.create_task(self._enforce_deadlines(pull), name=f"deadlines {pull.key}")
            try:
                await asyncio.wait({pull.task})
            finally:
                deadlines.cancel()
        task, pull.task = pull.task, None
        return None if task.cancelled() else task.result()

    async def _try(self, pull: Pull) -> Outcome:
        try:
            before = await self._runtime.images.get(pull.key)
            if not pull.always:
                present = await self._presence.find(pull.reference)
                if present is not None:
                    # An earlier run may have been killed between the end of its pull and the end of its lease.
                    await self._puller.release(pull.key)
                    return Warm(present, None)
            order = PullOrder(pull.reference, pull.auths, lambda progress: self._report(pull, progress))
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

    def _report(self, pull: Pull, progress: PullProgress) -> None:
        pull.progress = progress
        for item in pull.items:
            self._listener.progressed(item, progress)

    async def _enforce_deadlines(self, pull: Pull) -> None:
        """Fail items whose pulling took too long; the last one takes the attempt with it."""
        while True:
            pull.joined.clear()
            now = self._clock.monotonic()
            left = {item: left for item in pull.items if (left := item.remaining(now)) is not None}
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

    def _settle_failure(self, pull: Pull, failure: Failure) -> None:
        """Decide, item by item, between another attempt and the end."""
        delay = _RUNTIME_PAUSE
        if failure.reason != "RuntimeUnavailable":  # containerd's absence is nobody's failed attempt
            pull.failed += 1
            delay = self._policy.backoff.delay(pull.failed, self._clock.draw())
        if failure.rate_limited:
            self._rest(pull.registry)
        final = failure if not pull.lost_auths or not failure.auth else _lost_auths(failure)
        for item in list(pull.items):
            if failure.retryable and pull.failed < item.job.row.attempts:
                self._listener.waits(item, failure, delay)
            else:
                pull.items.remove(item)
                self._listener.failed(item, final)
        pull.not_before = self._clock.monotonic() + delay

    def _rest(self, registry: str) -> None:
        strikes = self._strikes[registry] = self._strikes.get(registry, 0) + 1
        seconds = registry_rest(strikes, None, self._policy.backoff, self._clock.draw())
        self._resting[registry] = self._clock.monotonic() + seconds
        _log.warning("registry limits the rate; it rests", registry=registry, seconds=round(seconds, 1))

    # ------------------------------------------------------------------------------------------ the end

    async def _close(self, pull: Pull) -> None:
        """Remove what a pull left that nobody wants any more. Should somebody want it meanwhile, it starts afresh."""
        pull.closing = True
        while True:
            try:
                await self._puller.discard(pull.reference)
                break
            except RuntimeFailure as error:
                if not self._runtime.ready:
                    break  # once containerd is back, all leases are gone through
                _log.warning("cannot clean up yet", image=pull.key, why=error.message)
                await asyncio.sleep(_CLEANUP_RETRY)
        pull.closing = pull.running = False
        if pull.items:
            pull.attempt = pull.failed = 0
            pull.not_before = 0.0
            pull.progress = PullProgress()
            self._changed.set()
        else:
            self._remove(pull)

    def _remove(self, pull: Pull) -> None:
        if self._pulls.get(pull.key) is pull:
            del self._pulls[pull.key]
        pull.running = pull.closing = False
        pull.idle.set()


def _deadline(name: str, seconds: float) -> Failure:
    return Failure(
        "DeadlineExceeded",
        f"{name} was being pulled for {seconds:g} s, its deadline (waiting not counted)",
        "allow more time, or look at how fast the registry delivers",
    )


def _lost_auths(failure: Failure) -> Failure:
    hint = "credentials that came with the request are not kept over a restart of stokerd; send the request again"
    return Failure(failure.reason, failure.message, hint, auth=True)
