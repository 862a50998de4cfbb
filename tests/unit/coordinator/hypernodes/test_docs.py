"""docs/hypernodes.md has every field, condition and export."""

from __future__ import annotations

from pathlib import Path

from stoker_coordinator.hypernodes import leaves, status
from stoker_coordinator.hypernodes.exports import labels
from stoker_coordinator.hypernodes.exports.svg import MOST_CARDS
from stoker_coordinator.hypernodes.learning import TIMES_HELD
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import HyperNode, SwitchStatus, UnhealthyLink, UnhealthyNode
from stoker_coordinator.hypernodes.naming import FORGET_AFTER
from tests.unit.coordinator.hypernodes.fabrics import THEN, Plan, all_facts

DOCS = (Path(__file__).parents[4] / "docs/hypernodes.md").read_text(encoding="utf-8")


def test_every_field_is_described() -> None:
    kinds = (HyperNode, SwitchStatus, UnhealthyLink, UnhealthyNode)
    fields = {name for kind in kinds for name in kind.__struct_encode_fields__} - {"links"}
    assert {name for name in fields if f"`{name}`" not in DOCS} == set()


def test_every_condition_is_described() -> None:
    live = Live()
    for facts in all_facts(Plan()):
        live.put(facts)
    live.settle(THEN)
    types = {each.type for found in live.hypernodes() for each in found.conditions}
    assert {name for name in types if f"`{name}`" not in DOCS} == set()
    assert len(types) == 4


def test_every_key_of_labels_is_described() -> None:
    assert f"{labels.TIER}N" in DOCS
    assert labels.ACCELERATOR in DOCS
    assert labels.OLD[0] in DOCS


def test_numbers_are_those_of_the_code() -> None:
    assert f"{status.CONGESTED_FROM:g}" in DOCS
    assert f"{FORGET_AFTER.days} days" in DOCS
    assert f"At most {status.MOST_LISTED} unhealthy" in DOCS
    assert f"more than {MOST_CARDS}" in DOCS.replace("\n", " ")
    assert TIMES_HELD == 3
    assert "three fifths of the nodes" in DOCS.replace("\n", " ")
    assert "three fifths of the nodes" in (leaves.__doc__ or "")
