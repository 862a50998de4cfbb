"""The scheduler alone: pulls that do what the test says, on a loop whose time costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from stokerd.errors import RuntimeFailure, RuntimeUnavailable
from stokerd.images import scheduler as module
from stokerd.images.failures import Failure
from stokerd.images.jobs import Item, Job, Pull
from stokerd.images.presence import Presence, Present
from stokerd.images.progress import Layer, PullProgress
from stokerd.images.pull import Pulled, Puller, PullOrder
from stokerd.images.queue import Decision, Limits, Room, Waiting, decide
from stokerd.images.retry import Backoff
from stokerd.images.scheduler import Outcome, Policy, Scheduler, Warm
from stokerd.journal.rows import ItemRow, JobRow
from stokerd.registry.credentials import Credential
from stokerd.registry.references import Reference, parse_reference
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import Descriptor, ImageRecord
from tests.unit.images.node import TestClock
from tests.unit.images.virtual import at_every_step, run_virtual, virtual, virtual_loop

GIB = 1 << 30
BROKEN = Failure("ConnectionBroken", "reset", retryable=True)
MISSING = Failure("NotFound", "there is none")
REFUSED = Failure("Unauthorized", "who are you?", auth=True)
LIMITED = Failure("RateLimited", "429", retryable=True, rate_limited=True)
GONE = Failure("RuntimeUnavailable", "no containerd", retryable=True)

Act = Callable[[PullOrder], Awaitable[Pulled | Failure]]


def present_of(name: str) -> Present:
    return Present(f"sha256:{name}", f"sha256:{name}", 1, pinned=False)


async def succeed(order: PullOrder) -> Pulled:
    await asyncio.sleep(1)
    return Pulled(present_of(order.name), 10)


def fail(failure: Failure, seconds: float = 1.0) -> Act:
    async def act(order: PullOrder) -> Failure:
        await asyncio.sleep(seconds)
        return failure

    return act


@dataclass
class Hand:
    """A pull that ends when the test says so."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: asyncio.Future[Pulled | Failure] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    cancelled: bool = False

    async def __call__(self, order: PullOrder) -> Pulled | Failure:
        self.begun.set()
        try:
            return await asyncio.shield(self.outcome)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def end(self, outcome: Failure | None = None) -> None:
        self.outcome.set_result(outcome or Pulled(present_of("x"), 10))


class FakePuller:
    """What is to happen with each image, attempt by attempt; then all succeed."""

    def __init__(self) -> None:
        self.acts: dict[str, list[Act]] = {}
        self.orders: list[PullOrder] = []
        self.starts: list[tuple[float, str]] = []
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.discarded: list[str] = []
        self.released: list[str] = []
        self.discard_with: Callable[[], Awaitable[None]] | None = None

    async def attempt(self, order: PullOrder) -> Pulled | Failure:
        host = order.reference.host
        self.orders.append(order)
        self.starts.append((virtual_loop().time(), order.name))
        self.under_way.update([host, ""])
        self.most |= self.under_way
        acts = self.acts.get(order.name, [])
        try:
            return await (acts.pop(0) if acts else succeed)(order)
        finally:
            self.under_way.subtract([host, ""])

    async def discard(self, reference: Reference) -> None:
        if self.discard_with is not None:
            await self.discard_with()
        await asyncio.sleep(0.1)
        self.discarded.append(reference.pull_spec)

    async def release(self, name: str) -> None:
        await asyncio.sleep(0)
        self.released.append(name)

    def times(self, name: str) -> list[float]:
        """When attempts on an image began, in seconds since the first of them all."""
        return [round(at - self.starts[0][0], 2) for at, started in self.starts if started == full(name)]


class FakeRuntime:
    def __init__(self) -> None:
        self.ready = True
        self.records: dict[str, ImageRecord] = {}
        self.images = self
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def turn(self, *, ready: bool) -> None:
        self.ready = ready
        for listener in self._listeners:
            listener()

    async def get(self, name: str) -> ImageRecord | None:
        await asyncio.sleep(0)
        return self.records.get(name)


class FakePresence:
    def __init__(self) -> None:
        self.present: set[str] = set()
        self.hold: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def find(self, reference: Reference) -> Present | None:
        self.asked.set()
        await asyncio.sleep(0)
        found = reference.pull_spec in self.present
        if self.hold is not None:
            await self.hold.wait()
        return present_of(reference.pull_spec) if found else None


class Recorder:
    """`scheduler.Listener` that remembers."""

    def __init__(self) -> None:
        self.done: dict[Item, Warm | Failure] = {}
        self.starts: Counter[Item] = Counter()
        self.pauses: list[tuple[Item, str, float]] = []
        self.attempts: list[Outcome | None] = []
        self.shown: dict[Item, list[float]] = {}
        self.pinning: asyncio.Event | None = None
        self.pinned: list[Item] = []
        self.changed = asyncio.Event()

    def started(self, item: Item, pull: Pull) -> None:
        assert item not in self.done
        self.starts[item] += 1

    def progressed(self, item: Item, progress: PullProgress) -> None:
        assert item not in self.done
        self.shown.setdefault(item, []).append(progress.percent)

    def waits(self, item: Item, failure: Failure, delay: float) -> None:
        assert item not in self.done
        self.pauses.append((item, failure.reason, delay))

    async def warmed(self, item: Item) -> None:
        self.pinned.append(item)
        if self.pinning is not None:
            await self.pinning.wait()

    def succeeded(self, item: Item, outcome: Warm) -> None:
        assert item not in self.done
        self.done[item] = outcome
        self.changed.set()

    def failed(self, item: Item, failure: Failure) -> None:
        assert item not in self.done
        self.done[item] = failure
        self.changed.set()

    def attempted(self, started: float, outcome: Outcome | None) -> None:
        self.attempts.append(outcome)


class Bench:
    def __init__(
        self, node: int = 2, registry: int = 2, *, pressure_limit: float = 80.0, backoff: Backoff | None = None
    ) -> None:
        self.puller = FakePuller()
        self.runtime = FakeRuntime()
        self.presence = FakePresence()
        self.listener = Recorder()
        self.pressure: float | None = None
        self.pressure_read = 0
        policy = Policy(Limits(node, registry), backoff or Backoff(1.0, 60.0, jitter=0.0), pressure_limit, 2.0)
        self.scheduler = Scheduler(
            cast("Runtime", self.runtime),
            cast("Puller", self.puller),
            cast("Presence", self.presence),
            policy,
            TestClock(),
            self._read_pressure,
            self.listener,
        )
        self._numbers = itertools.count(1)

    async def _read_pressure(self) -> float | None:
        self.pressure_read += 1
        await asyncio.sleep(0)
        return self.pressure

    def item(self, name: str = "x", *, auths: Iterable[str] = (), **row: Any) -> Item:
        values: dict[str, Any] = {
            "id": f"job-{next(self._numbers)}",
            "name": "",
            "policy": "IfNotPresent",
            "priority": 0,
            "attempts": 3,
            "timeout": None,
            "pin_seconds": None,
            "state": "Active",
            "created_at": 0.0,
        }
        job = Job(JobRow(**{**values, **row}), tuple(Credential(username=name) for name in auths))
        reference = parse_reference(full(name))
        return job.add(ItemRow(job.row.id, 0, name, str(reference)), reference)

    def want(self, name: str = "x", **how: Any) -> Item:
        item = self.item(name, **how)
        self.scheduler.want(item)
        return item

    def hand(self, name: str = "x") -> Hand:
        hand = Hand()
        self.puller.acts.setdefault(full(name), []).append(hand)
        return hand

    def act(self, *acts: Act, name: str = "x") -> None:
        self.puller.acts.setdefault(full(name), []).extend(acts)

    async def ended(self, *items: Item) -> list[str]:
        """Return how items ended: the failure's reason, Pulled or AlreadyPresent."""
        async with asyncio.timeout(100_000):
            for item in items:
                while item not in self.listener.done:
                    self.listener.changed.clear()
                    await self.listener.changed.wait()
        return [self.how(item) for item in items]

    def how(self, item: Item) -> str:
        outcome = self.listener.done[item]
        return outcome.reason if isinstance(outcome, Failure) else "Pulled" if outcome.pulled else "AlreadyPresent"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the scheduler; in the end it has to be empty."""
        task = asyncio.create_task(self.scheduler.run())
        try:
            yield
            async with asyncio.timeout(100_000):
                while self.scheduler.keys:  # noqa: ASYNC110 - costs no real time
                    await asyncio.sleep(0.01)
            assert (self.scheduler.running, self.scheduler.waiting) == (0, 0)
        finally:
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()


def full(name: str) -> str:
    return str(parse_reference(name if "/" in name else f"registry.test/{name}:v1"))


async def turns(count: int = 20) -> None:
    """Let everything happen that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------------ order


@virtual
async def test_limits_hold_for_the_node_and_for_each_registry() -> None:
    bench = Bench(node=5, registry=2)
    items = [bench.want(f"{host}.test/image-{n}:v1") for host in ("a", "b", "c") for n in range(6)]
    async with bench.running():
        await bench.ended(*items)
    assert bench.puller.most[""] == 5
    assert {bench.puller.most[f"{host}.test"] for host in ("a", "b", "c")} == {2}
    assert len(bench.puller.orders) == 18


@virtual
async def test_the_next_pull_starts_while_the_one_before_is_checked() -> None:
    async def act(order: PullOrder) -> Pulled:
        await asyncio.sleep(1)
        order.pulled()
        await asyncio.sleep(5)
        return Pulled(present_of(order.name), 10)

    bench = Bench(node=1)
    names = ("one", "two", "three")
    for name in names:
        bench.act(act, name=name)
    items = [bench.want(name) for name in names]
    async with bench.running():
        assert await bench.ended(*items) == ["Pulled"] * 3
    assert [bench.puller.times(name) for name in names] == [[0.0], [1.0], [2.0]]


@virtual
async def test_the_highest_priority_goes_first_and_a_later_job_can_raise_it() -> None:
    bench = Bench(node=1)
    items = [
        bench.want("blocker", priority=99),
        bench.want("low", priority=-1),
        bench.want("high", priority=9),
        bench.want("mid"),
    ]
    async with bench.running():
        await turns()
        items.append(bench.want("low", priority=20))
        passing = bench.want("mid", priority=50)
        bench.scheduler.drop(passing)
        await bench.ended(*items)
    assert [name for _, name in bench.puller.starts] == [full(n) for n in ("blocker", "low", "high", "mid")]


@virtual
async def test_a_pull_is_shared_by_all_who_want_the_image() -> None:
    bench = Bench()
    hand = bench.hand()
    first = bench.want()
    async with bench.running():
        await hand.begun.wait()
        others = [bench.want() for _ in range(5)]
        await turns()
        assert bench.listener.starts == Counter({first: 1, **dict.fromkeys(others, 1)})
        hand.end()
        assert await bench.ended(first, *others) == ["Pulled"] * 6
    assert len(bench.puller.orders) == 1


@virtual
async def test_an_image_that_is_there_is_not_pulled_and_a_lease_left_by_a_crash_is_let_go() -> None:
    bench = Bench()
    bench.presence.present.add(full("x"))
    async with bench.running():
        assert await bench.ended(bench.want()) == ["AlreadyPresent"]
    assert bench.puller.orders == []
    assert bench.puller.released == [full("x")]
    assert bench.puller.discarded == []


@virtual
async def test_a_tag_that_moved_is_told_with_its_former_digest() -> None:
    bench = Bench()
    bench.presence.present.add(full("x"))
    bench.runtime.records[full("x")] = ImageRecord(full("x"), Descriptor("m", "sha256:before", 1))
    async with bench.running():
        item = bench.want(policy="Always")
        assert await bench.ended(item) == ["Pulled"]
    outcome = bench.listener.done[item]
    assert isinstance(outcome, Warm)
    assert outcome.previous_digest == "sha256:before"


# ------------------------------------------------------------------------------------------------ policies


def test_always_is_never_satisfied_without_the_registry_whenever_it_joins() -> None:
    """The image is there, and one who takes that for an answer came first."""

    async def joined(step: int) -> bool:
        bench = Bench()
        bench.presence.present.add(full("x"))
        first = bench.want()
        late: list[Item] = []
        virtual_loop().at_step(step, lambda: late.append(bench.want(policy="Always")))
        async with bench.running():
            await bench.ended(first)
            await turns()
            disturbed = bool(late)
            await asyncio.sleep(5)
            await bench.ended(*late)
        assert [bench.how(item) for item in late] == ["Pulled"] * len(late)
        assert len(bench.puller.orders) == len(late)
        return disturbed

    at_every_step(joined, least=8)


@virtual
async def test_always_that_joins_a_pull_that_has_asked_the_registry_gets_an_attempt_of_its_own() -> None:
    """What the registry said before the request was made is not what was asked for."""
    bench = Bench()
    hand = bench.hand()
    first = bench.want()
    async with bench.running():
        await hand.begun.wait()
        late, patient = bench.want(policy="Always"), bench.want()
        await turns()
        assert (bench.listener.starts[late], bench.listener.starts[patient]) == (0, 1)
        hand.end()
        assert await bench.ended(first, patient, late) == ["Pulled"] * 3
    assert len(bench.puller.orders) == 2
    assert bench.puller.discarded == []
    assert (bench.listener.starts[late], bench.listener.starts[patient]) == (1, 1)


@virtual
async def test_who_is_content_with_what_is_there_does_not_depend_on_who_is_not() -> None:
    """They share a pull, but the registry is of no concern to one of them."""
    bench = Bench()
    bench.presence.present.add(full("x"))
    bench.act(fail(BROKEN, 100), fail(MISSING, 100))
    always, content = bench.want(policy="Always"), bench.want(timeout=5)
    async with bench.running():
        begun = virtual_loop().time()
        assert await bench.ended(content) == ["AlreadyPresent"]
        assert virtual_loop().time() - begun < 0.1
        await asyncio.sleep(10)
        joined = bench.want()
        assert await bench.ended(joined) == ["AlreadyPresent"]  # when the attempt has failed
        assert await bench.ended(always) == ["NotFound"]
    assert bench.listener.starts == {content: 1, always: 2, joined: 1}
    assert len(bench.puller.orders) == 2


@virtual
async def test_who_comes_while_a_success_is_seen_to_is_satisfied_by_it() -> None:
    bench = Bench()
    bench.listener.pinning = asyncio.Event()
    first = bench.want(pin_seconds=0)
    async with bench.running():
        await asyncio.sleep(2)
        assert bench.listener.pinned == [first]
        late, always = bench.want(), bench.want(policy="Always")
        bench.listener.pinning.set()
        assert await bench.ended(first, late, always) == ["Pulled", "AlreadyPresent", "Pulled"]
    assert bench.listener.starts == {first: 1, always: 1}
    assert len(bench.puller.orders) == 2


# ------------------------------------------------------------------------------------------------ nobody wants it


@pytest.mark.parametrize("act", [succeed, fail(BROKEN), fail(MISSING)])
def test_dropped_at_any_step_it_ends_and_leaves_nothing(act: Act) -> None:
    """Wherever it is dropped: `gone` comes, what was begun is discarded, and no attempt goes on for nobody."""

    async def dropped(step: int) -> bool:
        bench = Bench()
        bench.act(act)
        item = bench.want()
        pulls: list[Pull | None] = []
        virtual_loop().at_step(step, lambda: pulls.append(bench.scheduler.drop(item)))
        async with bench.running():
            async with asyncio.timeout(1000):
                while not pulls and item not in bench.listener.done:  # noqa: ASYNC110 - costs no real time
                    await asyncio.sleep(0.01)
            if pulls and pulls[0] is not None:
                begun, discarded = len(bench.puller.orders), len(bench.puller.discarded)
                await asyncio.wait_for(pulls[0].gone.wait(), 0.5)  # a pull itself takes a second
                assert len(bench.puller.orders) == begun
                succeeded = any(isinstance(outcome, Warm) for outcome in bench.listener.attempts)
                assert begun == 0 or succeeded or len(bench.puller.discarded) > discarded
        assert not (pulls and pulls[0] is not None and item in bench.listener.done)
        return bool(pulls)

    at_every_step(dropped, least=10)


@virtual
async def test_dropped_between_the_decision_and_the_attempt_nothing_is_pulled() -> None:
    bench = Bench()
    item = bench.want()
    async with bench.running():
        while not bench.scheduler.running:  # noqa: ASYNC110 - one turn of the loop at a time
            await asyncio.sleep(0)
        assert not bench.listener.starts
        pull = bench.scheduler.drop(item)
        assert pull is not None
        await asyncio.wait_for(pull.gone.wait(), 0.01)
    assert bench.puller.orders == []


@virtual
async def test_the_last_one_to_go_takes_the_attempt_along() -> None:
    bench = Bench()
    hand = bench.hand()
    one, two = bench.want(), bench.want()
    async with bench.running():
        await hand.begun.wait()
        assert bench.scheduler.drop(one) is None
        assert bench.scheduler.drop(one) is None
        await turns()
        assert not hand.cancelled
        pull = bench.scheduler.drop(two)
        assert pull is not None
        assert bench.scheduler.abandoned(full("x")) is pull
        await pull.gone.wait()
        assert hand.cancelled
        assert bench.puller.discarded == [full("x")]
        assert bench.scheduler.abandoned(full("x")) is None
    assert bench.listener.attempts == [None]


@virtual
async def test_wanted_again_while_it_is_broken_off_it_goes_on_where_it_was() -> None:
    """Who waits for its end does not wait for the pull of another."""
    bench = Bench()
    hand = bench.hand()
    first = bench.want()
    async with bench.running():
        await hand.begun.wait()
        pull = bench.scheduler.drop(first)
        assert pull is not None
        gone = pull.gone
        again = bench.want()
        assert gone.is_set()
        assert not pull.gone.is_set()
        assert bench.listener.starts[again] == 0  # it does not take part in an attempt that ends
        assert await bench.ended(again) == ["Pulled"]
    assert bench.puller.discarded == []
    assert hand.cancelled


@virtual
async def test_wanted_again_while_it_is_cleaned_up_it_starts_afresh() -> None:
    bench = Bench()
    hold = asyncio.Event()
    bench.act(fail(BROKEN))

    async def wait() -> None:
        await hold.wait()

    bench.puller.discard_with = wait
    first = bench.want()
    async with bench.running():
        await asyncio.sleep(1.5)
        pull = bench.scheduler.drop(first)
        assert pull is not None
        await turns()
        assert pull.state == "closing"
        gone, again = pull.gone, bench.want()
        assert gone.is_set()
        await asyncio.sleep(5)
        assert len(bench.puller.orders) == 1  # its remains are being removed
        hold.set()
        assert await bench.ended(again) == ["Pulled"]
    assert bench.puller.discarded == [full("x")]
    assert pull.attempt == 1


@virtual
async def test_cleaning_up_is_tried_again_until_it_works() -> None:
    bench = Bench()
    bench.act(fail(MISSING))
    tries = itertools.count(1)

    async def broken() -> None:
        if next(tries) < 4:
            raise RuntimeFailure("not now")

    bench.puller.discard_with = broken
    item = bench.want()
    async with bench.running():
        await bench.ended(item)
        before = virtual_loop().time()
    assert bench.puller.discarded == [full("x")]
    assert 15 <= virtual_loop().time() - before < 16


@virtual
async def test_whoever_wants_an_image_does_not_wait_until_it_can_be_cleaned_up() -> None:
    bench = Bench()
    bench.act(fail(MISSING))

    async def broken() -> None:
        raise RuntimeFailure("never")

    bench.puller.discard_with = broken
    first = bench.want()
    async with bench.running():
        await bench.ended(first)
        await asyncio.sleep(7)
        before = virtual_loop().time()
        again = bench.want()
        assert await bench.ended(again) == ["Pulled"]
        assert virtual_loop().time() - before < 1.1
    assert bench.puller.discarded == []


@virtual
async def test_without_containerd_nothing_is_cleaned_up_and_nobody_waits_for_it() -> None:
    bench = Bench()
    hand = bench.hand()

    async def unavailable() -> None:
        raise RuntimeUnavailable("gone")

    bench.puller.discard_with = unavailable
    item = bench.want()
    async with bench.running():
        await hand.begun.wait()
        bench.runtime.turn(ready=False)
        pull = bench.scheduler.drop(item)
        assert pull is not None
        await asyncio.wait_for(pull.gone.wait(), 1)


@virtual
async def test_what_an_earlier_run_left_is_removed_when_nobody_wants_it() -> None:
    bench = Bench()
    async with bench.running():
        pull = bench.scheduler.found(parse_reference(full("orphan")))
        assert pull is not None
        assert bench.scheduler.found(parse_reference(full("orphan"))) is pull
        await pull.gone.wait()
        assert bench.puller.discarded == [full("orphan")]
    assert bench.puller.orders == []
    assert bench.listener.attempts == []


@virtual
async def test_what_an_earlier_run_left_goes_with_the_last_who_wants_it() -> None:
    """Even if he goes before anything was attempted in this run."""
    bench = Bench()
    bench.runtime.ready = False
    item = bench.want()
    async with bench.running():
        assert bench.scheduler.found(item.reference) is None
        await turns()
        pull = bench.scheduler.drop(item)
        assert pull is not None
        await pull.gone.wait()
        assert bench.puller.discarded == [full("x")]


@virtual
async def test_what_an_earlier_run_left_is_used_by_who_comes_before_it_is_removed() -> None:
    bench = Bench()
    pull = bench.scheduler.found(parse_reference(full("x")))
    assert pull is not None
    gone, item = pull.gone, bench.want()
    assert gone.is_set()
    async with bench.running():
        assert await bench.ended(item) == ["Pulled"]
    assert bench.puller.discarded == []


# ------------------------------------------------------------------------------------------------ attempts


@virtual
async def test_attempts_are_counted_for_each_who_wants_the_image() -> None:
    bench = Bench()
    bench.act(*[fail(BROKEN)] * 10)
    early = bench.want(attempts=3)
    async with bench.running():
        await asyncio.sleep(4)
        assert len(bench.puller.orders) == 2
        late, single = bench.want(attempts=3), bench.want(attempts=1)
        assert await bench.ended(early, single, late) == ["ConnectionBroken"] * 3
    assert bench.listener.starts == {early: 3, late: 3, single: 1}
    assert len(bench.puller.orders) == 5


@virtual
async def test_the_absence_of_containerd_is_nobodys_failed_attempt() -> None:
    bench = Bench()
    bench.act(fail(BROKEN), *[fail(GONE)] * 5, fail(BROKEN), succeed)
    patient = bench.want(attempts=3)
    async with bench.running():
        await asyncio.sleep(2.5)
        hasty = bench.want(attempts=1)
        assert await bench.ended(patient, hasty) == ["Pulled", "ConnectionBroken"]
    assert len(bench.puller.orders) == 8


@virtual
async def test_what_cannot_help_is_not_tried_again() -> None:
    bench = Bench()
    bench.act(fail(MISSING))
    items = [bench.want(attempts=9), bench.want(attempts=1)]
    async with bench.running():
        assert await bench.ended(*items) == ["NotFound"] * 2
    assert len(bench.puller.orders) == 1
    assert bench.puller.discarded == [full("x")]


@virtual
async def test_pauses_grow_and_begin_anew_after_a_success() -> None:
    bench = Bench()
    bench.act(*[fail(BROKEN, 0)] * 4)
    async with bench.running():
        await bench.ended(bench.want(attempts=9))
    times = bench.puller.times("x")
    assert [round(b - a, 1) for a, b in itertools.pairwise(times)] == [1, 2, 4, 8]
    assert [delay for _, _, delay in bench.listener.pauses] == [1, 2, 4, 8]
    bench.act(fail(BROKEN, 0))
    async with bench.running():
        await bench.ended(bench.want())
    assert round(bench.puller.times("x")[-1] - bench.puller.times("x")[-2], 1) == 1


@virtual
async def test_a_fault_of_ours_costs_one_image() -> None:
    async def faulty(order: PullOrder) -> Pulled:
        raise KeyError("oops")

    bench = Bench()
    bench.act(faulty)
    items = [bench.want(), bench.want("y")]
    async with bench.running():
        assert await bench.ended(*items) == ["Internal", "Pulled"]


@virtual
async def test_progress_only_goes_forward_over_attempts() -> None:
    def seen(offset: int) -> PullProgress:
        return PullProgress((Layer("sha256:a", 100, "downloading", offset),), known=True)

    def reporting(failure: Failure | None, *offsets: int) -> Act:
        async def act(order: PullOrder) -> Pulled | Failure:
            for offset in offsets:
                order.report(seen(offset))
            await asyncio.sleep(1)
            return failure or Pulled(present_of("x"), 1)

        return act

    bench = Bench()
    bench.act(reporting(BROKEN, 10, 60), reporting(BROKEN, 0, 30), reporting(None, 20, 90))
    item = bench.want()
    async with bench.running():
        await asyncio.sleep(1.5)
        joined = bench.want()
        await bench.ended(item, joined)
    assert bench.listener.shown[item] == [5, 30, 30, 30, 30, 45]
    assert bench.listener.shown[joined] == [30, 30, 30, 45]


# ------------------------------------------------------------------------------------------------ registries


@virtual
async def test_a_registry_that_limits_the_rate_rests_as_a_whole() -> None:
    bench = Bench(node=9, registry=1)
    bench.act(fail(LIMITED, 0), fail(LIMITED, 0), name="hub.test/one:v1")
    items = [bench.want(f"hub.test/{n}:v1") for n in ("one", "two")] + [bench.want("other.test/x:v1")]
    async with bench.running():
        await turns(50)
        assert bench.scheduler.hold("hub.test/two:v1") == "RegistryResting"
        await bench.ended(*items)
    one, two = (bench.puller.times(f"hub.test/{n}:v1") for n in ("one", "two"))
    assert [round(at, 1) for at in one] == [0, 1, 3]
    assert two[0] >= 3  # it was not asked while the registry rested
    assert bench.puller.times("other.test/x:v1")[0] == 0


@virtual
async def test_the_pause_that_is_told_includes_the_registrys_rest() -> None:
    """Other images have brought the registry to strike more often than this one has failed."""
    bench = Bench(registry=1)
    names = [f"hub.test/{n}:v1" for n in range(4)]
    for name in names:
        bench.act(fail(LIMITED, 0), name=name)
    async with bench.running():
        await bench.ended(*[bench.want(name, attempts=1) for name in names[:3]], bench.want(names[3]))
    assert [delay for _, _, delay in bench.listener.pauses] == [8]
    assert bench.puller.times(names[3]) == [7, 15]


@virtual
async def test_an_image_that_is_there_says_nothing_of_the_registrys_patience() -> None:
    bench = Bench(registry=1)
    bench.presence.present.add("hub.test/here:v1")
    bench.act(fail(LIMITED, 0), fail(LIMITED, 0), name="hub.test/x:v1")
    async with bench.running():
        first = bench.want("hub.test/x:v1")
        await asyncio.sleep(0.5)
        here = bench.want("hub.test/here:v1", priority=5)
        await bench.ended(first, here)
    assert [delay for _, _, delay in bench.listener.pauses] == [1, 2]


# ------------------------------------------------------------------------------------------------ credentials


@virtual
async def test_an_attempt_goes_with_the_credentials_of_all_who_want_the_image() -> None:
    bench = Bench()
    items = [bench.want(auths=["a", "b"]), bench.want(auths=["b", "c"]), bench.want()]
    async with bench.running():
        await bench.ended(*items)
    assert [auth.username for auth in bench.puller.orders[0].auths] == ["a", "b", "c"]


@virtual
async def test_credentials_of_who_joined_are_tried_before_he_is_refused() -> None:
    bench = Bench()
    hand = bench.hand()
    bench.act(fail(REFUSED))
    stranger = bench.want()
    async with bench.running():
        await hand.begun.wait()
        friend = bench.want(auths=["a"], attempts=1)
        hand.end(REFUSED)
        await turns()
        assert bench.how(stranger) == "Unauthorized"
        assert friend not in bench.listener.done
        before = virtual_loop().time()
        assert await bench.ended(friend) == ["Unauthorized"]  # they were not good either
        assert virtual_loop().time() - before < 1.1  # and nobody paused for that
    assert [order.auths for order in bench.puller.orders] == [(), (Credential(username="a"),)]
    assert bench.puller.discarded == [full("x")]


@virtual
async def test_only_who_lost_his_credentials_is_told_so() -> None:
    bench = Bench()
    bench.act(fail(REFUSED))
    lost, never_had, has = bench.want(had_auths=True), bench.want(), bench.want(had_auths=True, auths=["a"])
    async with bench.running():
        await bench.ended(lost, never_had, has)
    hints = [
        outcome.hint for item in (lost, never_had, has) if isinstance(outcome := bench.listener.done[item], Failure)
    ]
    assert "not kept over a restart" in hints[0]
    assert hints[1:] == ["", ""]


# ------------------------------------------------------------------------------------------------ deadlines


@virtual
async def test_a_deadline_counts_pulling_alone_over_all_attempts() -> None:
    bench = Bench(node=1)
    bench.act(fail(BROKEN, 4), fail(BROKEN, 4), fail(BROKEN, 4))
    blocker, item = bench.want("blocker", priority=1), bench.want(timeout=10, attempts=9)
    bench.act(fail(MISSING, 100), name="blocker")
    async with bench.running():
        await bench.ended(blocker)
        begun = virtual_loop().time()
        assert await bench.ended(item) == ["DeadlineExceeded"]
        assert round(virtual_loop().time() - begun) == 4 + 1 + 4 + 2 + 2
    assert bench.puller.discarded[-1] == full("x")
    assert bench.listener.attempts[-1] is None


@virtual
async def test_each_has_a_deadline_of_his_own() -> None:
    bench = Bench()
    hand = bench.hand()
    hasty, patient = bench.want(timeout=5), bench.want()
    async with bench.running():
        await asyncio.sleep(2)
        late = bench.want(timeout=1)
        begun = virtual_loop().time()
        assert await bench.ended(late) == ["DeadlineExceeded"]
        assert round(virtual_loop().time() - begun, 1) == 1
        assert await bench.ended(hasty) == ["DeadlineExceeded"]
        assert round(virtual_loop().time() - begun, 1) == 3
        assert not hand.cancelled
        hand.end()
        assert await bench.ended(patient) == ["Pulled"]
    assert bench.puller.discarded == []


@virtual
async def test_when_all_who_take_part_are_past_their_deadline_the_rest_gets_a_new_attempt() -> None:
    bench = Bench()
    hand = bench.hand()
    hasty = bench.want(timeout=5)
    async with bench.running():
        await hand.begun.wait()
        late = bench.want(policy="Always", timeout=5)  # it waits for an attempt of its own, and its clock with it
        assert await bench.ended(hasty, late) == ["DeadlineExceeded", "Pulled"]
    assert hand.cancelled
    assert bench.puller.discarded == []


@pytest.mark.parametrize("order", ["deadline first", "drop first"])
def test_dropped_at_the_moment_of_the_deadline_it_ends_once(order: str) -> None:
    async def at_once() -> None:
        bench = Bench()
        bench.hand()
        item = bench.want(timeout=5)
        async with bench.running():
            await turns()
            if order == "deadline first":
                await bench.ended(item)
                assert bench.scheduler.drop(item) is None
            else:
                virtual_loop().call_at(virtual_loop().time() + 4.9999, bench.scheduler.drop, item)
                await asyncio.sleep(10)
                assert item not in bench.listener.done
        assert bench.puller.discarded == [full("x")]

    run_virtual(at_once())


# ------------------------------------------------------------------------------------------------ the node's state


@virtual
async def test_nothing_starts_while_the_disk_is_under_pressure() -> None:
    bench = Bench()
    bench.pressure = 90.0
    item = bench.want()
    async with bench.running():
        await asyncio.sleep(9)
        assert bench.puller.orders == []
        assert bench.scheduler.hold(full("x")) == "DiskPressure"
        assert bench.pressure_read == 5  # every two seconds
        bench.pressure = 80.0
        assert await bench.ended(item) == ["Pulled"]


@virtual
async def test_pressure_is_read_only_when_something_could_start() -> None:
    bench = Bench(node=1)
    hand = bench.hand()
    async with bench.running():
        first = bench.want()
        await hand.begun.wait()
        others = [bench.want(str(n)) for n in range(20)]
        await turns()
        assert bench.pressure_read == 1
        assert bench.scheduler.hold(full("3")) == "NodeBusy"
        hand.end()
        await bench.ended(first, *others)
    assert bench.pressure_read == 21


@virtual
async def test_without_a_limit_pressure_is_not_read() -> None:
    bench = Bench(pressure_limit=100)
    bench.pressure = 100.0
    async with bench.running():
        await bench.ended(bench.want())
    assert bench.pressure_read == 0


@virtual
async def test_nothing_starts_before_containerd_is_there() -> None:
    bench = Bench()
    bench.runtime.ready = False
    item = bench.want()
    async with bench.running():
        await asyncio.sleep(60)
        assert bench.puller.orders == []
        assert bench.scheduler.hold(full("x")) == "RuntimeDown"
        bench.runtime.turn(ready=True)
        assert await bench.ended(item) == ["Pulled"]


@virtual
async def test_what_a_pull_waits_for_is_told() -> None:
    bench = Bench(node=2, registry=1)
    hand = bench.hand("a.test/x:v1")
    bench.act(fail(BROKEN, 0), name="b.test/x:v1")
    async with bench.running():
        items = [bench.want(name) for name in ("a.test/x:v1", "a.test/y:v1", "b.test/x:v1")]
        await turns(50)
        holds = [bench.scheduler.hold(item.key) for item in items]
        assert holds == ["", "RegistryBusy", "Backoff"]
        assert bench.scheduler.hold("unknown.test/x:v1") == ""
        hand.end()
        await bench.ended(*items)


# ------------------------------------------------------------------------------------------------ stopping


@pytest.mark.parametrize("act", [succeed, fail(BROKEN), fail(MISSING)])
def test_stopped_at_any_step_no_task_is_left(act: Act) -> None:
    """`run_virtual` sees to it that there is none. What ran is not discarded: the next start goes on with it."""

    async def stopped(step: int) -> bool:
        bench = Bench(node=1)
        bench.act(act)
        items = [bench.want(timeout=50), bench.want(pin_seconds=0), bench.want("y")]
        task = asyncio.create_task(bench.scheduler.run())
        virtual_loop().at_step(step, task.cancel)
        await asyncio.wait({task}, timeout=20)
        disturbed = task.done()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        if items[0] not in bench.listener.done:
            assert bench.puller.discarded == []
        return disturbed

    at_every_step(stopped, least=10)


# ------------------------------------------------------------------------------------------------ very many


def test_ten_thousand_images_cost_no_more_each_than_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at for each pull that starts does not grow with the line."""
    looked = 0

    def counting(waiting: Iterable[Waiting], limits: Limits, room: Room, now: float) -> Decision:
        nonlocal looked
        entries = list(waiting)
        looked += len(entries)
        return decide(entries, limits, room, now)

    monkeypatch.setattr(module, "decide", counting)

    async def many(count: int) -> float:
        nonlocal looked
        looked = 0
        bench = Bench(node=4, registry=2)
        items = [bench.want(f"{'abc'[n % 3]}.test/{n}:v1", priority=n % 11) for n in range(count)]
        async with bench.running():
            await bench.ended(*items)
        assert len(bench.puller.orders) == count
        return looked / count

    few = run_virtual(many(1_000))
    assert run_virtual(many(10_000)) < 1.2 * few


@virtual
async def test_ten_thousand_who_want_one_image_and_go_again() -> None:
    bench = Bench()
    hand = bench.hand()
    first = bench.want()
    async with bench.running():
        await hand.begun.wait()
        others = [bench.want(priority=n % 7) for n in range(10_000)]
        for item in others:
            bench.scheduler.drop(item)
        hand.end()
        assert await bench.ended(first) == ["Pulled"]


@virtual
async def test_ten_thousand_are_cancelled_at_once() -> None:
    bench = Bench(node=1)
    hand = bench.hand("blocker")
    blocker = bench.want("blocker")
    async with bench.running():
        await hand.begun.wait()
        items = [bench.want(str(n)) for n in range(10_000)]
        assert bench.scheduler.waiting == 10_000
        pulls = [bench.scheduler.drop(item) for item in items]
        assert bench.scheduler.waiting == 0
        assert all(pull is not None and pull.gone.is_set() for pull in pulls)
        hand.end()
        await bench.ended(blocker)
    assert len(bench.puller.orders) == 1
