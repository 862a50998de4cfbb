"""Why a node is where it is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from stoker_coordinator.hypernodes.explain import why
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import NodeFacts
from tests.unit.coordinator.hypernodes.fabrics import THEN, Plan, all_facts, core, facts_of, leaf, source_of, trunks_of

PLAN = Plan(racks=4, nodes_per_rack=3, rails=2, racks_per_pod=2)


@pytest.fixture
def live() -> Live:
    found = Live()
    found.central((source_of(trunks_of(PLAN)),))
    for facts in all_facts(PLAN):
        found.put(facts)
    found.settle(THEN)
    return found


@pytest.mark.parametrize("switch", [leaf(0, 1), "leaf-000-1", "MF0;leaf-000-1:MQM9701/U1", "LEAF-000-1"])
def test_its_own_switch(live: Live, switch: str) -> None:
    found = why(live, "n00002", switch)
    (edge,) = found.edges
    assert found.found
    assert (edge.one, edge.other, edge.source) == ("n00002 mlx5_1/1", "MF0;leaf-000-1:MQM9701/U1", "report/fabric")
    assert edge.why == "the fabric's dump calls it a switch, its port 3 since 2026-11-30 12:00:00Z"
    assert found.notes == (
        "the node is in ib-leaf-000-0 by 2 of its 2 links",
        "ib-leaf-000-0 is 2 switches, since most of their nodes are the same: leaf-000-0, leaf-000-1",
    )


def test_a_switch_above(live: Live) -> None:
    found = why(live, "n00002", core(1, 0, 0))
    assert [edge.source for edge in found.edges] == ["report/fabric", "ufm", "ufm"]
    assert [edge.links for edge in found.edges] == [1, 2, 1]
    assert found.edges[1].why == "2 links, 800 Gb/s"
    assert found.notes[-1] == "the switch is of infiniband, tier 3"


def test_what_was_lost_and_what_is_disputed(live: Live) -> None:
    facts = facts_of(PLAN, 2)
    lost = replace(
        facts.ports[0], lost=THEN + timedelta(hours=1), state="down", reasons=("polling",), disputed="ufm says x"
    )
    live.put(replace(facts, ports=(lost, *facts.ports[1:])))
    live.settle(THEN)
    notes = why(live, "n00002", "leaf-000-0").notes
    assert notes[:3] == (
        "mlx5_0/1: nobody has said so any more since 2026-11-30 13:00:00Z",
        "mlx5_0/1: ufm says x",
        "mlx5_0/1 is down: polling",
    )


def test_a_switch_that_is_of_no_domain(live: Live) -> None:
    for number in range(PLAN.nodes):
        facts = facts_of(PLAN, number)
        live.put(replace(facts, ports=(*facts.ports, replace(facts.ports[0], nic="stor0", switch="border"))))
    live.settle(THEN)
    notes = why(live, "n00000", "border").notes
    assert notes[-1] == "the switch is of no domain: 12 nodes hang on it, all of them with more links elsewhere"
    assert "2 of its 3 links" in notes[0]


def test_what_is_not_there(live: Live) -> None:
    assert why(live, "n9", "leaf-000-0").notes == ("there is no such node",)
    found = why(live, "n00000", "nowhere")
    assert not found.found
    assert found.notes == ("no way to that switch is known; its ports hang on leaf-000-0, leaf-000-1",)
    live.put(NodeFacts("bare"))
    live.settle(THEN)
    assert why(live, "bare", "leaf-000-0").notes == ("nothing is known of its ports",)
