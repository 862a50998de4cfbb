"""Whose turn it is: never more than allowed, spread over switches, nothing waits for a node that does not answer."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.objects.cluster_images import NodeTrouble
from stoker_coordinator.controllers.rollout import Place, Rollout, limit
from stoker_coordinator.controllers.tags import Found

DONE = Found("succeeded", ("a:1",), (), 100, 100)
BAD = Found("failed", (), (NodeTrouble("n", "a:1", "NotFound", "no such image"),), 10, 0)


@pytest.mark.parametrize(
    ("parallelism", "nodes", "expected"),
    [(None, 10, 1), (5, 10, 5), (0, 10, 0), ("10%", 10, 1), ("10%", 11, 2), ("100%", 7, 7), ("0%", 7, 0), ("3", 9, 3)],
)
def test_parallelism_is_a_number_or_a_share(parallelism: int | str | None, nodes: int, expected: int) -> None:
    assert limit(parallelism, nodes) == expected


def rollout(leaves: int, nodes: int) -> Rollout:
    made = Rollout()
    for number in range(leaves * nodes):
        made.place(Place(f"n{number:03}", f"leaf{number // nodes}"))
    return made


def test_every_switch_has_one_before_any_has_two() -> None:
    made = rollout(leaves=4, nodes=5)
    taken = made.take(4)
    assert Counter(made.nodes[name].place.leaf for name in taken) == {f"leaf{number}": 1 for number in range(4)}
    for name in taken[:2]:
        made.tell(name, DONE)
    freed = {made.nodes[name].place.leaf for name in taken[:2]}
    assert {made.nodes[name].place.leaf for name in made.take(4)} == freed


def test_a_silent_node_gives_its_turn_away_and_gets_one_when_it_is_back() -> None:
    made = rollout(leaves=1, nodes=2)
    assert made.take(1) == ["n000"]
    made.place(Place("n000", "leaf0", silent=True, open=False))
    assert made.take(1) == ["n001"]
    made.tell("n001", DONE)
    assert made.through
    assert made.troubles(5) == (NodeTrouble("n000", "", "NodeSilent", "the node does not answer"),)
    made.tell("n000", Found("waiting"))
    made.place(Place("n000", "leaf0"))
    assert not made.through
    assert made.take(1) == ["n000"]


def test_images_and_bytes_are_counted_over_all_nodes() -> None:
    made = rollout(leaves=1, nodes=3)
    made.take(3)
    made.tell("n000", DONE)
    made.tell("n001", BAD)
    made.tell("n002", Found("active", (), (), 100, 40))
    assert made.image("a:1") == (1, 1)
    assert (made.bytes_total, made.bytes_done) == (210, 140)
    made.drop("n000")
    assert (made.image("a:1"), made.bytes_total) == ((0, 1), 110)
    assert made.failed_nodes(5) == ("n001",)


class Machine(RuleBasedStateMachine):
    """Whatever happens in whatever order, it is as if all of it had been counted anew."""

    def __init__(self) -> None:
        super().__init__()
        self.made = Rollout()
        self.places: dict[str, Place] = {}
        self.found: dict[str, Found] = {}

    names = st.sampled_from([f"n{number}" for number in range(6)])

    @rule(name=names, leaf=st.sampled_from(["", "x", "y"]), silent=st.booleans(), opened=st.booleans())
    def place(self, name: str, leaf: str, silent: bool, opened: bool) -> None:
        self.places[name] = Place(name, leaf, silent=silent, open=opened)
        self.found.setdefault(name, Found("waiting"))
        self.made.place(self.places[name])

    @rule(name=names)
    def drop(self, name: str) -> None:
        self.places.pop(name, None)
        self.found.pop(name, None)
        self.made.drop(name)

    @rule(name=names, found=st.sampled_from([DONE, BAD, Found("waiting"), Found("active", (), (), 9, 3)]))
    def tell(self, name: str, found: Found) -> None:
        if name in self.places:
            self.found[name] = found
        self.made.tell(name, found)

    @rule(most=st.integers(0, 4))
    def take(self, most: int) -> None:
        free = [
            name
            for name, place in self.places.items()
            if self.found[name].state == "waiting" and place.open and not place.silent
        ]
        before = self.active()
        taken = self.made.take(most)
        assert set(taken) <= set(free)
        assert len(taken) == min(len(free), max(0, most - before))
        for name in taken:
            self.found[name] = Found("active")

    def active(self) -> int:
        return sum(self.found[name].state == "active" and not place.silent for name, place in self.places.items())

    @invariant()
    def counts_hold(self) -> None:
        states = Counter(
            "silent" if place.silent and self.found[name].state in {"waiting", "active"} else self.found[name].state
            for name, place in self.places.items()
        )
        for state in ("waiting", "active", "succeeded", "failed", "silent"):
            assert self.made.count(state) == states[state]
        assert self.made.bytes_total == sum(found.bytes_total for found in self.found.values())
        assert self.made.image("a:1") == (states["succeeded"], states["failed"])


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
