"""The line hands out few pulls, and the queue decides on them as it would on all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stokerd.images.line import _SLACK, Line
from stokerd.images.queue import Limits, Room, Waiting, decide

registries = st.sampled_from("abc")
moments = st.sampled_from((0.0, 0.0, 0.0, 5.0, 10.0, 20.0, 30.0))


class LineMachine(RuleBasedStateMachine):
    """Pulls come, change, leave; time passes, and never comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.all: dict[str, Waiting] = {}
        self.now = 0.0
        self.sequence = 0

    @rule(registry=registries, priority=st.integers(-2, 2), not_before=moments)
    def come(self, registry: str, priority: int, not_before: float) -> None:
        self.sequence += 1
        self.put(Waiting(str(self.sequence), registry, priority, self.sequence, self.now + not_before))

    def put(self, entry: Waiting) -> None:
        self.all[entry.key] = entry
        self.line.put(entry)

    @precondition(lambda self: self.all)
    @rule(data=st.data(), priority=st.integers(-2, 2), not_before=moments)
    def change(self, data: st.DataObject, priority: int, not_before: float) -> None:
        old = self.all[data.draw(st.sampled_from(sorted(self.all)))]
        self.put(Waiting(old.key, old.registry, priority, old.sequence, not_before))

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.all)))
        del self.all[key]
        self.line.take(key)

    @rule(seconds=st.floats(0, 15))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        limits=st.builds(Limits, st.integers(1, 4), st.integers(1, 3)),
        running=st.dictionaries(registries, st.integers(0, 2)),
        resting=st.dictionaries(registries, st.sampled_from((0.0, 3.0, 12.0, 40.0))),
    )
    def decide(self, limits: Limits, running: dict[str, int], resting: dict[str, float]) -> None:
        room = Room(running, resting)
        few = self.line.foremost(min(limits.registry, limits.node), self.now)
        assert decide(few, limits, room, self.now) == decide(self.all.values(), limits, room, self.now)

    @invariant()
    def counted(self) -> None:
        assert len(self.line) == len(self.all)


TestLine = LineMachine.TestCase


def test_few_are_looked_at_whatever_the_length() -> None:
    line = Line()
    for number in range(5000):
        line.put(Waiting(str(number), "ab"[number % 2], number % 7, number, 0.0 if number % 3 else 50.0))
    assert len(line.foremost(2, 0.0)) == 2 * (2 + 1)
    assert len(line.foremost(2, 60.0)) == 2 * 2


def test_what_never_comes_up_does_not_pile_up() -> None:
    """A pull far back in the line changes its rank again and again."""
    line = Line()
    line.put(Waiting("first", "r", 9, 0))
    for number in range(20 * _SLACK):
        line.put(Waiting("changing", "r", number % 5, 1))
        line.foremost(1, 0.0)
    assert sum(len(part.due) + len(part.later) for part in line._registries.values()) <= _SLACK + 10
    assert [entry.key for entry in line.foremost(2, 0.0)] == ["first", "changing"]


def test_an_empty_registry_is_forgotten() -> None:
    line = Line()
    line.put(Waiting("x", "r", 0, 0))
    line.take("x")
    line.take("never there")
    assert line.foremost(3, 0.0) == []
    assert line._registries == {}
    assert len(line) == 0


@given(st.lists(st.tuples(st.integers(-3, 3), moments), max_size=30))
def test_taking_the_best_again_and_again_goes_through_all_in_order(rows: list[tuple[int, float]]) -> None:
    line = Line()
    for number, (priority, not_before) in enumerate(rows):
        line.put(Waiting(str(number), "r", priority, number, not_before))
    order = []
    while len(line):
        best = line.foremost(1, 100.0)[0]
        order.append((-best.priority, best.sequence))
        line.take(best.key)
    assert order == sorted(order)
    assert len(order) == len(rows)
