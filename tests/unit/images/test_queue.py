from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stokerd.images.queue import Decision, Hold, Limits, Room, Waiting, decide, due_at, family_of, why

FREE = Room({}, {})


def wait(key: str, registry: str = "r", priority: int = 0, sequence: int = 0, not_before: float = 0.0) -> Waiting:
    return Waiting(key, registry, priority, sequence, not_before)


registries = st.sampled_from("abcd")
entries = st.lists(
    st.tuples(registries, st.integers(-3, 3), st.sampled_from((0.0, 0.0, 50.0, 100.0, 101.0, 150.0, 300.0))),
    max_size=20,
).map(lambda rows: [Waiting(str(n), registry, rank, n, at) for n, (registry, rank, at) in enumerate(rows)])
limits_ = st.builds(Limits, st.integers(1, 6), st.integers(1, 4))
rooms = st.builds(
    Room,
    st.dictionaries(registries, st.integers(0, 3)),
    st.dictionaries(registries, st.sampled_from((0.0, 99.0, 100.0, 120.0, 200.0))),
    pressure=st.just(False),
    runtime_ready=st.just(True),
)
shuffled = st.randoms(use_true_random=False)
NOW = 100.0


def started(waiting: Iterable[Waiting], decision: Decision) -> list[Waiting]:
    by_key = {entry.key: entry for entry in waiting}
    return [by_key[key] for key in decision.start]


def after(room: Room, entries: Iterable[Waiting]) -> Room:
    """Return the room as it is once *entries* run."""
    return replace(room, running=Counter(room.running) + Counter(entry.registry for entry in entries))


# ---------------------------------------------------------------------------------------------- what starts


def test_the_highest_priority_goes_first_and_the_longest_waiting_among_equals() -> None:
    queue = [wait("late", sequence=9), wait("urgent", priority=5, sequence=8), wait("early", sequence=1)]
    assert decide(queue, Limits(3, 3), FREE, 0.0).start == ("urgent", "early", "late")
    assert decide(queue, Limits(2, 2), FREE, 0.0).start == ("urgent", "early")


def test_a_busy_registry_does_not_keep_others_back() -> None:
    queue = [wait("a1", "a", 9, 1), wait("a2", "a", 9, 2), wait("b1", "b", 0, 3)]
    assert decide(queue, Limits(5, 1), FREE, 0.0).start == ("a1", "b1")
    assert decide(queue, Limits(5, 1), Room({"a": 1}, {}), 0.0).start == ("b1",)


def test_a_limit_that_was_lowered_under_what_runs_starts_nothing() -> None:
    assert decide([wait("x")], Limits(1, 1), Room({"r": 3}, {}), 0.0) == Decision()


@given(entries, limits_, rooms, shuffled)
def test_limits_are_never_exceeded(waiting: list[Waiting], limits: Limits, room: Room, shuffle: random.Random) -> None:
    shuffle.shuffle(waiting)
    chosen = started(waiting, decide(waiting, limits, room, NOW))
    assert len(chosen) <= max(limits.node - sum(room.running.values()), 0)
    for registry, count in Counter(entry.registry for entry in chosen).items():
        assert room.running.get(registry, 0) + count <= limits.registry


@given(entries, limits_, rooms, shuffled)
def test_what_starts_is_what_an_ordered_walk_through_the_queue_finds(
    waiting: list[Waiting], limits: Limits, room: Room, shuffle: random.Random
) -> None:
    used, free, expected = Counter(room.running), limits.node - sum(room.running.values()), []
    for entry in sorted(waiting, key=lambda item: (-item.priority, item.sequence)):
        if free > 0 and due_at(entry, room) <= NOW and used[entry.registry] < limits.registry:
            expected.append(entry.key)
            used[entry.registry] += 1
            free -= 1
    shuffle.shuffle(waiting)
    assert list(decide(waiting, limits, room, NOW).start) == expected


@given(entries, limits_, rooms, st.booleans())
def test_nothing_starts_under_pressure_or_without_a_runtime(
    waiting: list[Waiting], limits: Limits, room: Room, pressed: bool
) -> None:
    held = replace(room, pressure=True) if pressed else replace(room, runtime_ready=False)
    assert decide(waiting, limits, held, NOW) == Decision()


@given(entries, limits_, rooms)
def test_everyone_starts_in_the_end(waiting: list[Waiting], limits: Limits, room: Room) -> None:
    """Pulls end one by one, and the clock is moved only to where the decision says: nobody is forgotten."""
    running = [registry for registry, count in room.running.items() for _ in range(count)]
    left, now = list(waiting), NOW
    order: list[str] = []
    for _ in range(4 * len(waiting) + len(running) + 4):
        decision = decide(left, limits, replace(room, running=Counter(running)), now)
        order += decision.start
        running += [entry.registry for entry in started(left, decision)]
        left = [entry for entry in left if entry.key not in decision.start]
        if not left:
            break
        if running:
            running.pop(0)
        else:
            assert decision.wake_at is not None, "nothing runs, nothing starts, and nobody will look again"
            assert decision.wake_at > now
            now = decision.wake_at
    assert sorted(order, key=int) == [entry.key for entry in waiting]


# ---------------------------------------------------------------------------------------------- when to look again


@given(entries, limits_, rooms)
def test_wake_at_is_the_first_moment_that_changes_the_answer(
    waiting: list[Waiting], limits: Limits, room: Room
) -> None:
    decision = decide(waiting, limits, room, NOW)
    chosen = started(waiting, decision)
    left = [entry for entry in waiting if entry not in chosen]
    later = after(room, chosen)
    moments = sorted({due_at(entry, room) for entry in left if due_at(entry, room) > NOW})
    first = next((at for at in moments if decide(left, limits, later, at).start), None)
    assert decision.wake_at == first


@pytest.mark.parametrize(
    ("entry", "room", "wake_at"),
    [
        (wait("x", not_before=7.0), FREE, 7.0),
        (wait("x"), Room({}, {"r": 8.0}), 8.0),
        (wait("x", not_before=9.0), Room({}, {"r": 8.0}), 9.0),
        (wait("x", not_before=7.0), Room({"r": 1}, {}), None),  # the registry is busy: time does not help
        (wait("x", not_before=7.0), Room({"q": 2}, {}), None),  # the node is
        (wait("x", not_before=7.0), Room({}, {}, pressure=True), None),
        (wait("x", not_before=7.0), Room({}, {}, runtime_ready=False), None),
        (wait("x", not_before=4.0), FREE, None),  # starts now
    ],
)
def test_wake_at(entry: Waiting, room: Room, wake_at: float | None) -> None:
    assert decide([entry], Limits(2, 1), room, 5.0).wake_at == wake_at


def test_a_registry_that_what_starts_has_filled_is_not_looked_at_again_by_the_clock() -> None:
    queue = [wait("now", sequence=1), wait("later", sequence=2, not_before=7.0)]
    assert decide(queue, Limits(2, 1), FREE, 5.0) == Decision(("now",), None)
    assert decide(queue, Limits(2, 2), FREE, 5.0) == Decision(("now",), 7.0)


def test_the_earliest_of_several_wakes() -> None:
    queue = [wait("a", not_before=9.0), wait("b", not_before=7.0), wait("c", not_before=8.0), wait("d", "q", 0, 0, 8.0)]
    assert decide(queue, Limits(2, 2), FREE, 5.0).wake_at == 7.0


def test_a_pull_starts_at_the_very_moment_it_is_due() -> None:
    assert decide([wait("x", not_before=5.0)], Limits(1, 1), Room({}, {"r": 5.0}), 5.0).start == ("x",)


# ---------------------------------------------------------------------------------------------- why one waits


@pytest.mark.parametrize(
    ("entry", "room", "hold"),
    [
        (wait("x"), FREE, ""),
        (wait("x", not_before=6.0), FREE, "Backoff"),
        (wait("x"), Room({}, {"r": 6.0}), "RegistryResting"),
        (wait("x"), Room({}, {"r": 5.0}), ""),
        (wait("x"), Room({}, {"other": 6.0}), ""),
        (wait("x"), Room({"a": 2, "b": 1}, {}), "NodeBusy"),
        (wait("x"), Room({"r": 2}, {}), "RegistryBusy"),
        (wait("x"), Room({"a": 2}, {}), ""),
        (wait("x"), Room({}, {}, pressure=True), "DiskPressure"),
        (wait("x"), Room({}, {}, runtime_ready=False), "RuntimeDown"),
        # What hinders everything is said before what hinders this one, and what lasts before what is short.
        (wait("x", not_before=6.0), Room({"r": 9}, {"r": 6.0}, pressure=True, runtime_ready=False), "RuntimeDown"),
        (wait("x", not_before=6.0), Room({"r": 9}, {"r": 6.0}, pressure=True), "Backoff"),
        (wait("x"), Room({"r": 9}, {"r": 6.0}, pressure=True), "RegistryResting"),
    ],
)
def test_why(entry: Waiting, room: Room, hold: Hold) -> None:
    assert why(entry, Limits(3, 2), room, 5.0) == hold


@given(entries, limits_, rooms, st.booleans(), st.booleans())
def test_what_did_not_start_has_a_reason_and_what_starts_has_none(
    waiting: list[Waiting], limits: Limits, room: Room, pressure: bool, ready: bool
) -> None:
    room = replace(room, pressure=pressure, runtime_ready=ready)
    decision = decide(waiting, limits, room, NOW)
    chosen = started(waiting, decision)
    for entry in chosen:
        assert why(entry, limits, room, NOW) == ""
    for entry in waiting:
        if entry not in chosen:
            assert why(entry, limits, after(room, chosen), NOW) != ""


# ---------------------------------------------------------------------------------------------- long queues


def test_a_full_node_does_not_even_look_at_the_queue() -> None:
    def untouchable() -> Iterator[Waiting]:
        raise AssertionError("the queue was read")
        yield

    assert decide(untouchable(), Limits(2, 2), Room({"r": 2}, {}), 0.0) == Decision()
    assert decide(untouchable(), Limits(2, 2), Room({}, {}, pressure=True), 0.0) == Decision()
    assert decide(untouchable(), Limits(2, 2), Room({}, {}, runtime_ready=False), 0.0) == Decision()


def test_ten_thousand_waiting_cost_little() -> None:
    queue = [Waiting(str(n), f"r{n % 7}", n % 5, n, float(n % 3) * 60) for n in range(10_000)]
    started = time.process_time()
    for _ in range(10):
        assert len(decide(queue, Limits(2, 2), Room({"r1": 1}, {"r2": 100.0}), 60.0).start) == 1
    assert (time.process_time() - started) / 10 < 0.1  # some 10 ms; a sort of everything with holds for all took 40


# ------------------------------------------------------------------------------------------------ families


@pytest.mark.parametrize(
    ("repository", "family"),
    [
        ("docker.io/library/redis", "docker.io/library/redis"),
        ("r:5000/team/app-web", "r:5000/team/app"),
        ("r:5000/team/app-web-v2", "r:5000/team/app-web"),
        ("r:5000/team/app_web", "r:5000/team/app"),
        ("r:5000/te-am/app", "r:5000/te-am/app"),
        ("r.io/x", "r.io/x"),
        ("r.io/-x", "r.io/-x"),
    ],
)
def test_families(repository: str, family: str) -> None:
    assert family_of(repository) == family


def relatives(*families: str, priority: int = 0) -> list[Waiting]:
    return [Waiting(f"{n}{name}", "r", priority, n, 0.0, name) for n, name in enumerate(families)]


def test_pulls_of_different_families_go_together() -> None:
    start = decide(relatives("a", "a", "a", "b", "b"), Limits(2, 2), FREE, 0.0).start
    assert start == ("0a", "3b")


def test_a_running_family_lets_others_go_first() -> None:
    room = Room({"r": 1}, {}, families={"a"})
    assert decide(relatives("a", "b", "a"), Limits(2, 2), room, 0.0).start == ("1b",)


def test_a_family_alone_does_not_wait() -> None:
    assert decide(relatives("a", "a", "a"), Limits(2, 2), FREE, 0.0).start == ("0a", "1a")


def test_once_the_family_has_ended_the_first_come_is_the_first() -> None:
    assert decide(relatives("a", "b", "c"), Limits(1, 1), Room({}, {}, families=frozenset()), 0.0).start == ("0a",)


def test_priority_is_stronger_than_families() -> None:
    queue = [*relatives("a", "a", priority=5), *[Waiting("low", "r", 0, 9, 0.0, "b")]]
    assert decide(queue, Limits(2, 2), FREE, 0.0).start == ("0a", "1a")


@given(st.lists(st.sampled_from("abc"), max_size=60), st.integers(1, 4))
def test_whatever_the_families_as_many_start_as_without(families: list[str], slots: int) -> None:
    queue = relatives(*families)
    chosen = decide(queue, Limits(slots, slots), FREE, 0.0).start
    assert len(chosen) == len(set(chosen)) == min(slots, len(queue))
    if queue:
        assert chosen[0] == queue[0].key  # the first come is never passed over while nothing runs
