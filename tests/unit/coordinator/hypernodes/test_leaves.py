"""Which leaf switches are one domain, and where nodes are at home."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker_coordinator.hypernodes.leaves import Leaves

Cabling = Mapping[str, str]
"""Of each node: its switches, one letter each; twice for two links."""


_NONE: Mapping[str, str] = {}


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
    # On different switches: one that has two of five cables missing or astray may be taken for the border's.
    switches = [f"r{other}s{rail}" for other in range(count) for rail in range(rails)]
    ends = draw(st.lists(st.sampled_from(switches), max_size=2, unique=True))
    nodes = st.lists(st.sampled_from(sorted(links)), min_size=len(ends), max_size=len(ends), unique=True)
    for node, end in zip(draw(nodes), ends, strict=True):
        links[node][end] = 1
    return links, rack_of


def two_racks(
    *, border: bool = False, missing: Mapping[str, str] = _NONE, astray: Mapping[str, str] = _NONE
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Return two racks of five nodes and three rails; of some nodes one link is missing, others have one too many."""
    rack_of = {f"r{rack}n{number}": f"r{rack}" for rack in range(2) for number in range(5)}
    links = {node: {f"{rack}s{rail}": 1 for rail in range(3)} for node, rack in rack_of.items()}
    for node, own in links.items():
        own.pop(missing.get(node, ""), None)
        own.update({switch: 1 for switch in (astray.get(node), "border" if border else None) if switch})
    return links, rack_of


@given(racks())
@example(two_racks(missing={"r1n0": "r1s0", "r1n1": "r1s1"}, astray={"r0n0": "r1s0", "r0n1": "r1s0"}))
@example(two_racks(missing={"r0n0": "r0s0", "r0n1": "r0s1"}, astray={"r1n0": "r0s2", "r1n1": "r0s2"}))
@example(two_racks(border=True, astray={"r0n0": "r1s0", "r1n0": "r0s0"}))
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
