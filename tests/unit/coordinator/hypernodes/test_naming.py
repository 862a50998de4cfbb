"""Names: valid, unique, after switches, and the same for as long as any of these is there."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_coordinator.hypernodes.naming import FORGET_AFTER, Names, own_part, prefix_of, slug
from stoker_coordinator.hypernodes.rules import is_name
from tests.unit.coordinator.hypernodes.fabrics import THEN


def assign(names: Names, called: dict[str, str] | None = None, days: float = 0, **domains: str) -> dict[str, str]:
    switches = {key: tuple(sorted(value)) for key, value in domains.items()}
    names.assign(switches, lambda switch: (called or {}).get(switch, ""), (), THEN + timedelta(days=days))
    return names.of


def test_names_are_of_the_first_switch() -> None:
    names = Names("infiniband", {})
    called = {"a": "MF0;Leaf-2:MQM9701/U1", "b": "MF0;Leaf-1:MQM9701/U1"}
    assert assign(names, called, one="ab", other="c") == {"one": "ib-leaf-1", "other": "ib-c"}


def test_two_switches_of_one_name_have_two() -> None:
    names = assign(Names("infiniband", {}), {"a": "leaf", "b": "leaf"}, one="a", other="b")
    assert len(set(names.values())) == 2
    assert all(name.startswith("ib-leaf") for name in names.values())


def test_names_stay_while_switches_are_replaced_one_by_one() -> None:
    names = Names("infiniband", {})
    first = assign(names, one="abcd", other="efgh")
    for switches in ("bcdx", "cdxy", "dxyz", "xyzw"):
        assert assign(names, one=switches, other="efgh") == first


def test_names_stay_when_others_come_and_go() -> None:
    names = Names("infiniband", {})
    first = assign(names, one="cd", other="ef")
    more = assign(names, one="cd", other="ef", a="ab", z="yz")
    assert {key: more[key] for key in first} == first
    assert assign(names, other="ef") == {"other": first["other"]}
    assert assign(names, one="cd", other="ef") == first


def test_of_a_domain_that_falls_apart_the_larger_part_keeps_the_name() -> None:
    names = Names("infiniband", {})
    name = assign(names, one="abcde")["one"]
    parts = assign(names, small="ab", large="cde")
    assert parts["large"] == name
    assert parts["small"] != name
    assert assign(names, small="ab", large="cde") == parts


def test_a_name_in_use_goes_before_one_that_was_given_up() -> None:
    names = Names("infiniband", {})
    assign(names, one="ab")
    assign(names, one="b", other="a")
    now = dict(names.of)
    assert assign(Names("infiniband", names.memory), one="b", other="a") == now


def test_names_that_were_given_up_are_forgotten_in_the_end() -> None:
    names = Names("infiniband", {})
    assign(names, one="ab")
    assign(names, other="cd")
    assert len(names.memory) == 2
    assign(names, days=FORGET_AFTER.days + 1, other="cd")
    assert len(names.memory) == 1


def test_many_names_that_were_given_up_do_not_pile_up() -> None:
    names = Names("infiniband", {})
    for number in range(600):
        names.assign({"k": (f"s{number}",)}, lambda _: "", (), THEN)
    assert len(names.memory) < 300


def test_a_root_is_called_as_its_fabric_is() -> None:
    names = Names("infiniband-storage", {})
    assert names.root == "infiniband-storage"
    assert assign(names, {"a": "x"}, one="a") == {"one": "ib-storage-x"}
    assert prefix_of("ethernet-management") == "eth-mgmt"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("MF0;A09-P1-IBLEAF-04-04:MQM9701/U1", "A09-P1-IBLEAF-04-04"), ("leaf-1", "leaf-1"), ("MF0;x", "MF0;x"), ("", "")],
)
def test_the_part_of_a_name_that_is_a_switchs_own(text: str, expected: str) -> None:
    assert own_part(text) == expected


@given(st.dictionaries(st.text(max_size=90), st.text(max_size=90), min_size=1, max_size=8), st.text(max_size=30))
def test_whatever_switches_are_called_names_are_valid_and_one_each(called: dict[str, str], fabric: str) -> None:
    names = Names(fabric, {})
    domains = {f"k{number}": (switch,) for number, switch in enumerate(called)}
    names.assign(domains, lambda switch: called[switch], (), THEN)
    found = [*names.of.values(), names.root]
    assert len(set(found)) == len(called) + 1
    assert all(is_name(name) and len(name) <= 63 for name in found)


@given(st.text(), st.integers(16, 63))
def test_slugs(text: str, limit: int) -> None:
    found = slug(text, limit)
    assert len(found) <= limit
    assert found == "" or is_name(found)
