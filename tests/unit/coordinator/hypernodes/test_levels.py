"""What stands above what: fat trees, rails, planes, and what is odd about real ones."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from stoker_coordinator.hypernodes.levels import declared, rise, without_circles
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import HyperNode, NodeFacts, Port, Reading
from stoker_coordinator.hypernodes.rules import violations
from stoker_coordinator.hypernodes.sources.trunks import Trunks
from tests.unit.coordinator.hypernodes.fabrics import (
    THEN,
    Plan,
    all_facts,
    core,
    facts_of,
    leaf,
    source_of,
    spine,
    trunks_of,
)


def built(plan: Plan, reading: Reading | None = None, more: Iterable[NodeFacts] = ()) -> list[HyperNode]:
    live = Live()
    live.central((source_of(reading or trunks_of(plan)),))
    for facts in [*all_facts(plan), *more]:
        live.put(facts)
    live.settle(THEN)
    found = live.hypernodes()
    assert violations(found) == []
    return found


def tiers(domains: Iterable[HyperNode]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in domains:
        found[each.tier] = found.get(each.tier, 0) + 1
    return found


def more_links(reading: Reading, *pairs: tuple[str, str]) -> Reading:
    found = Trunks()
    for one, other in pairs:
        found.add(one, other, 400.0)
    return replace(reading, trunks=reading.trunks + found.all())


THREE = Plan(racks=12, nodes_per_rack=4, rails=4, racks_per_pod=4)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(racks=1), {1: 1, 2: 1}),
        (Plan(racks=6), {1: 6, 2: 1}),
        (Plan(racks=6, rails=1), {1: 6, 2: 1}),
        (THREE, {1: 12, 2: 3, 3: 1}),
        (
            Plan(racks=40, nodes_per_rack=8, rails=8, racks_per_pod=8, spines_per_rail=4, cores_per_spine=4),
            {1: 40, 2: 5, 3: 1},
        ),
        (
            Plan(racks=9, racks_per_pod=4),
            {1: 9, 2: 2, 3: 1},
        ),  # the last pod has one rack: nothing is to be joined there
    ],
)
def test_fat_trees(plan: Plan, expected: dict[int, int]) -> None:
    found = built(plan)
    assert tiers(found) == expected
    (root,) = [each for each in found if not each.parent]
    assert root.node_count == plan.nodes
    assert all(each.node_count == plan.nodes_per_rack for each in found if each.tier == 1)


def test_without_a_word_of_switches_all_leaves_are_under_one_root() -> None:
    found = built(Plan(racks=3), Reading(source="ufm", fabric="infiniband"))
    assert tiers(found) == {1: 3, 2: 1}
    (connected,) = [each for each in found[-1].conditions if each.type == "Connected"]
    assert (connected.status, connected.reason) == ("Unknown", "NoCommonSwitch")


def test_any_missing_link_between_switches_changes_no_domain() -> None:
    reading = trunks_of(THREE)
    names = [(each.name, each.tier, each.members) for each in built(THREE)]
    for number in range(0, len(reading.trunks), 7):
        less = replace(reading, trunks=reading.trunks[:number] + reading.trunks[number + 1 :])
        assert [(each.name, each.tier, each.members) for each in built(THREE, less)] == names


@pytest.mark.parametrize(
    "pairs",
    [
        [(leaf(0, 0), spine(1, 0, 0))],  # a leaf in another pod's spine
        [(leaf(0, 0), core(0, 0, 0)), (leaf(1, 0), core(0, 0, 0))],  # leaves in a core
        [(spine(0, 0, 0), spine(0, 1, 0))],
        [(leaf(0, 0), leaf(1, 0))],
        [(leaf(99, rail), spine(0, rail, 0)) for rail in range(4)],  # leaves without nodes
        [("b" * 16, leaf(rack, rail)) for rack in range(12) for rail in range(4)],  # a switch above all leaves
    ],
)
def test_odd_cables_between_switches_change_no_domain_below(pairs: list[tuple[str, str]]) -> None:
    found = built(THREE, more_links(trunks_of(THREE), *pairs))
    plain = built(THREE)
    assert [each.members for each in found if each.tier == 1] == [each.members for each in plain if each.tier == 1]
    if pairs[0][0] != "b" * 16:
        assert tiers(found) == {1: 12, 2: 3, 3: 1}
    assert sum(not each.parent for each in found) == 1


def test_a_host_on_a_spine_makes_no_leaf_of_it() -> None:
    port = Port("mlx5_0", 1, "infiniband", switch=spine(0, 0, 0), state="healthy", gbps=400)
    found = built(THREE, more=[NodeFacts("ufm", ports=(port,))])
    assert tiers(found) == {1: 12, 2: 3, 3: 1}
    (above,) = [each for each in found if "ufm" in {m.name for m in each.members}]
    assert (above.tier, above.node_count) == (2, 17)


def test_switches_that_are_linked_to_each_other_all_stay_leaves() -> None:
    plan = Plan(racks=5, rails=1, nodes_per_rack=3)
    ring = [(leaf(one, 0), leaf(other, 0)) for one in range(5) for other in range(one)]
    found = built(plan, more_links(Reading(source="ufm", fabric="infiniband"), *ring))
    assert tiers(found) == {1: 5, 2: 1}


def test_half_a_fabric_falls_apart_under_one_root() -> None:
    reading = trunks_of(THREE)
    cores = {core(rail, number, each) for rail in range(4) for number in range(2) for each in range(2)}
    less = replace(reading, trunks=tuple(each for each in reading.trunks if not {each.one, each.other} & cores))
    found = built(THREE, less)
    assert tiers(found) == {1: 12, 2: 3, 3: 1}
    assert found[-1].switches == ()


def test_uplinks_and_oversubscription() -> None:
    found = built(THREE)
    rack, pod, root = (next(each for each in found if each.tier == tier) for tier in (1, 2, 3))
    # 4 nodes of 4 ports; 4 leaves with 2 spines each, by 2 links each
    assert (rack.capacity_gbps, rack.uplinks, rack.uplink_gbps, rack.oversubscription) == (6400, 16, 6400, 1)
    # 4 such racks below; 8 spines with 2 cores each
    assert (pod.capacity_gbps, pod.uplinks, pod.uplink_gbps, pod.oversubscription) == (25600, 16, 6400, 4)
    assert (root.uplinks, root.oversubscription) == (0, None)


def test_nodes_move_from_rack_to_rack() -> None:
    live = Live()
    live.central((source_of(trunks_of(THREE)),))
    for facts in all_facts(THREE):
        live.put(facts)
    live.settle(THEN)
    moved = replace(facts_of(THREE, 40), name="n00000")
    live.put(moved)
    delta = live.settle(THEN + timedelta(seconds=1))
    assert {each.name for each in delta.changed} == {
        "ib-leaf-000-0", "ib-leaf-010-0", "ib-spine-00-0-0", "ib-spine-02-0-0", "infiniband",
    }  # fmt: skip
    assert delta.removed == ()


def test_a_tree_that_is_told() -> None:
    parents = {"r1": "b1", "r2": "b1", "b1": "dc", "r3": "dc", "dc": "", "empty": "b1"}
    shape = declared(["r1", "r2", "r3"], {key: value for key, value in parents.items() if value})
    assert [(each.key, each.tier, each.children) for each in shape.uppers] == [
        ("b1", 2, ("r1", "r2")),
        ("dc", 3, ("b1", "r3")),
    ]
    assert shape.top == ("dc",)


def test_circles_are_cut() -> None:
    assert without_circles({"a": "b", "b": "c", "c": "a", "d": "d"}) == {"a": "b", "b": "c"}
    deep = {f"s{number:05d}": f"s{number + 1:05d}" for number in range(5000)}
    kept = without_circles(deep)
    assert 10 < len(kept) < 17
    declared(["s00000", "s04990"], kept)


def test_nothing_gives_nothing() -> None:
    shape = rise({}, {}, {})
    assert (shape.uppers, shape.top) == ((), ())
