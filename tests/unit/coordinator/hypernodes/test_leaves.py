"""Which leaf switches are one domain, and where nodes are at home."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker_coordinator.hypernodes.leaves import Leaves

Cabling = Mapping[str, str]
"""Of each node: its switches, one letter each; twice for two links."""


def settled(cabling: Cabling, *, alone: bool = False) -> Leaves:
    leaves = Leaves(alone=alone)
    for node, switches in cabling.items():
        leaves.put(node, {switch: switches.count(switch) for switch in switches})
    leaves.settle()
    return leaves


def homes(cabling: Cabling) -> set[frozenset[str]]:
    return {frozenset(nodes) for nodes in settled(cabling).homes.values()}


def rack(name: str, switches: str, count: int) -> dict[str, str]:
    return {f"{name}{number}": switches for number in range(count)}


@pytest.mark.parametrize(
    ("why", "cabling", "expected"),
    [
        ("one switch", {"1": "a", "2": "a"}, ["12"]),
        ("two racks", {"1": "a", "2": "a", "3": "b"}, ["12", "3"]),
        ("rails", {"1": "abcd", "2": "abcd", "3": "efgh"}, ["12", "3"]),
        ("rails, a link missing", {"1": "abcd", "2": "abc", "3": "efgh"}, ["12", "3"]),
        ("two rails and two nodes, a link missing", {"1": "ab", "2": "a"}, ["12"]),
        (
            "a link of each rail missing",
            {"1": "bcd", "2": "acd", "3": "abd", **rack("x", "abcd", 3)},
            ["1 2 3 x0 x1 x2"],
        ),
        ("a switch above two lone nodes", {"1": "as", "2": "bs"}, ["1", "2"]),
        ("a switch that touches all", {**rack("x", "as", 3), **rack("y", "bs", 3)}, ["x0 x1 x2", "y0 y1 y2"]),
        ("a host in two racks", {**rack("x", "ab", 3), **rack("y", "cd", 3), "g": "abcd"}, None),
        ("a cable in the wrong rack", {**rack("x", "ab", 3), "y0": "cb", **rack("z", "cd", 3)}, None),
        ("more links count", {"1": "aab", "2": "b", "3": "b", "4": "a", "5": "a"}, ["145", "23"]),
        ("dual-homed bonds", {"1": "aabb", "2": "aabb", "3": "ccdd"}, ["12", "3"]),
        ("rails over racks", {**rack("x", "abz", 4), **rack("y", "cdz", 4)}, ["x0 x1 x2 x3", "y0 y1 y2 y3"]),
    ],
)
def test_homes(why: str, cabling: Cabling, expected: list[str] | None) -> None:
    found = homes(cabling)
    assert {node for each in found for node in each} == set(cabling)
    if expected is not None:
        assert found == {frozenset(each.split() if " " in each else each) for each in expected}
    else:
        assert len(found) == 2


def test_a_switch_that_is_nobodys_home_is_no_domain() -> None:
    leaves = settled({**rack("x", "as", 3), **rack("y", "bs", 3)})
    assert set(leaves.homes) == {"a", "b"}
    assert leaves.group_of["s"] == "s"


def test_where_a_source_tells_the_tree_no_two_switches_are_one() -> None:
    leaves = settled({"1": "ab", "2": "ab"}, alone=True)
    assert leaves.groups == {"a": ("a",), "b": ("b",)}


def test_a_change_far_away_is_none_here() -> None:
    leaves = settled({**rack("x", "ab", 4), **rack("y", "cd", 4)})
    leaves.put("x9", {"a": 1, "b": 1})
    changed = leaves.settle()
    assert changed.groups == {"a"}
    assert not changed.shape
    leaves.put("z", {"e": 1})
    assert leaves.settle() == ({"e"}, True)
    leaves.put("z", {})
    assert leaves.settle() == ({"e"}, True)
    assert "e" not in leaves.nodes
    assert leaves.settle() == (set(), False)


@st.composite
def racks(draw: st.DrawFn) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Draw racks of rails with missing links, stray cables, and a switch that touches everything."""
    links: dict[str, dict[str, int]] = {}
    rack_of: dict[str, str] = {}
    count, rails = draw(st.integers(2, 5)), draw(st.integers(3, 8))
    border = draw(st.booleans())
    for rack in range(count):
        for number in range(draw(st.integers(5, 10))):
            node = f"r{rack}n{number}"
            rack_of[node] = f"r{rack}"
            links[node] = {f"r{rack}s{rail}": 1 for rail in range(rails)}
            if border:
                links[node]["border"] = 1
    for node in draw(st.lists(st.sampled_from(sorted(links)), max_size=2, unique=True)):
        del links[node][f"{rack_of[node]}s{draw(st.integers(0, rails - 1))}"]
    for node in draw(st.lists(st.sampled_from(sorted(links)), max_size=2, unique=True)):
        other = draw(st.integers(0, count - 1))
        links[node][f"r{other}s{draw(st.integers(0, rails - 1))}"] = 1
    return links, rack_of


@given(racks())
@settings(max_examples=200, deadline=None)
def test_racks_are_found_with_links_missing_and_cables_astray(
    drawn: tuple[dict[str, dict[str, int]], dict[str, str]],
) -> None:
    links, rack_of = drawn
    leaves = Leaves()
    for node, own in links.items():
        leaves.put(node, own)
    leaves.settle()
    expected: dict[str, set[str]] = {}
    for node, rack in rack_of.items():
        expected.setdefault(rack, set()).add(node)
    assert sorted(leaves.homes.values(), key=sorted) == sorted(expected.values(), key=sorted)
