"""How a domain is doing, since when, and what counts as a change."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import Condition, HyperNode, NodeFacts, PortUse, Problem
from stoker_coordinator.hypernodes.observe import with_state
from tests.unit.coordinator.hypernodes.fabrics import THEN, Plan, all_facts, facts_of, leaf, source_of, trunks_of

PLAN = Plan(racks=4, nodes_per_rack=4, rails=4, racks_per_pod=2)
RACK, POD, ROOT = "ib-leaf-000-0", "ib-spine-00-0-0", "infiniband"


def after(minutes: float) -> datetime:
    return THEN + timedelta(minutes=minutes)


def started() -> Live:
    live = Live()
    live.central((source_of(trunks_of(PLAN)),))
    for facts in all_facts(PLAN):
        live.put(facts)
    live.settle(THEN)
    return live


def domain(live: Live, name: str) -> HyperNode:
    (found,) = [each for each in live.hypernodes() if each.name == name]
    return found


def condition(found: HyperNode, kind: str) -> Condition:
    (each,) = [each for each in found.conditions if each.type == kind]
    return each


def with_port(facts: NodeFacts, number: int, **more: object) -> NodeFacts:
    ports = list(facts.ports)
    ports[number] = replace(ports[number], **more)
    return replace(facts, ports=tuple(ports))


def test_a_cable_is_pulled_and_plugged_in_again() -> None:
    live = started()
    whole = live.hypernodes()
    down = with_port(facts_of(PLAN, 1), 2, state="down", reasons=("polling",), since=after(1), lost=after(1))
    live.put(down)
    delta = live.settle(after(1))
    assert [each.name for each in delta.changed] == [RACK, POD, ROOT]
    for name in (RACK, POD, ROOT):
        found = domain(live, name)
        assert (found.unhealthy_node_count, found.unhealthy_link_count) == (0, 1)
        (link,) = found.unhealthy_links
        assert (link.node, link.nic, link.port, link.state, link.reason, link.since) == (
            "n00001", "mlx5_2", 1, "down", "polling", after(1),
        )  # fmt: skip
        assert link.switch == "MF0;leaf-000-2:MQM9701/U1"
        assert found.available_gbps == found.capacity_gbps - 400
        assert condition(found, "Healthy").status == "False"
        assert condition(found, "Healthy").last_transition_time == after(1)
        assert found.last_change == after(1)
    (switch,) = [each for each in domain(live, RACK).switches if each.down]
    assert (switch.id, switch.links, switch.down) == (leaf(0, 2), 4, 1)
    live.put(with_port(facts_of(PLAN, 1), 2, since=after(9)))
    assert [each.name for each in live.settle(after(9)).changed] == [RACK, POD, ROOT]
    again = live.hypernodes()
    assert [replace(each, conditions=(), last_change=None) for each in again] == [
        replace(each, conditions=(), last_change=None) for each in whole
    ]
    assert condition(domain(live, ROOT), "Healthy").last_transition_time == after(9)


def test_a_node_that_is_not_ready_keeps_its_place_and_is_marked() -> None:
    live = started()
    away = with_state(facts_of(PLAN, 0), ready=False, since=after(5), reason="Unreachable")
    for minutes in (5, 60, 600):
        live.put(with_state(away, ready=False, since=after(minutes), reason="Unreachable"))
        live.settle(after(minutes))
        rack = domain(live, RACK)
        assert (rack.node_count, rack.ready_nodes) == (4, 3)
        assert "n00000" in {member.name for member in rack.members}
        (node,) = rack.unhealthy_nodes
        assert (node.name, node.reason, node.since) == ("n00000", "Unreachable", after(5))
        assert rack.last_change == after(5)
    live.put(with_state(away, ready=True, since=after(700)))
    live.settle(after(700))
    assert domain(live, RACK).unhealthy_nodes == ()
    live.remove("n00000")
    delta = live.settle(after(701))
    assert domain(live, RACK).node_count == 3
    assert [each.name for each in delta.changed] == [RACK, POD, ROOT]


def test_a_rack_without_nodes_is_no_domain_and_has_its_name_when_they_are_back() -> None:
    live = started()
    for number in range(4):
        live.remove(f"n{number:05d}")
    delta = live.settle(after(1))
    assert RACK in delta.removed
    assert RACK not in {each.name for each in live.hypernodes()}
    live.put(facts_of(PLAN, 3))
    live.settle(after(2))
    assert domain(live, RACK).node_count == 1


def test_what_makes_a_node_unfit() -> None:
    live = started()
    all_down = facts_of(PLAN, 0)
    for number in range(4):
        all_down = with_port(all_down, number, state="down", since=after(number))
    live.put(all_down)
    live.put(replace(facts_of(PLAN, 1), problems=(Problem("GpuFault", "GPU3: 2 memory errors", after(3)),)))
    live.settle(after(4))
    found = {each.name: each for each in domain(live, RACK).unhealthy_nodes}
    assert (found["n00000"].reason, found["n00000"].since) == ("NoLink", after(3))
    assert (found["n00001"].reason, found["n00001"].since) == ("GpuFault", after(3))
    assert "2 of 4 nodes" in condition(domain(live, RACK), "Healthy").message


def test_a_link_that_carries_is_well_though_its_switch_is_not_heard() -> None:
    """As after each restart of a node's stokerd, until the next frame of LLDP."""
    live = started()
    live.put(with_port(facts_of(PLAN, 0), 1, lost=after(2)))
    delta = live.settle(after(2))
    assert delta.changed == ()
    assert domain(live, RACK).unhealthy_link_count == 0


def test_a_port_without_a_cable_is_no_fault() -> None:
    live = started()
    facts = facts_of(PLAN, 0)
    spare = replace(facts.ports[0], nic="mlx5_9", switch="", state="down", gbps=0.0)
    live.put(replace(facts, ports=(*facts.ports, spare)))
    live.settle(after(1))
    assert domain(live, RACK).unhealthy_link_count == 0


def use(live: Live, nodes: range, congestion: float) -> None:
    for number in nodes:
        live.use(f"n{number:05d}", [PortUse(f"mlx5_{rail}", 1, 100.0, 50.0, congestion) for rail in range(4)])


def test_load_and_congestion_come_and_go_slowly() -> None:
    live = started()
    before = domain(live, RACK)
    seen = []
    for minute, congestion in enumerate([0.0, 0.2, 0.5, 0.2, 0.05], start=1):
        use(live, range(4), congestion)
        delta = live.settle(after(minute))
        assert [each.name for each in delta.changed] == [RACK, POD, ROOT]
        found = domain(live, RACK)
        seen.append(condition(found, "Congested").status)
        assert (found.sent_gbps, found.received_gbps) == (1600, 800)
        assert found.congestion == congestion
        assert found.last_change == before.last_change
    assert seen == ["False", "False", "True", "True", "False"]
    assert domain(live, POD).congestion == 0.025
    assert domain(live, "ib-leaf-001-0").sent_gbps == 0


def test_load_of_an_unknown_node_waits_for_it() -> None:
    live = Live()
    use(live, range(1), 0.4)
    live.put(facts_of(PLAN, 0))
    live.settle(THEN)
    assert live.hypernodes()[0].sent_gbps == 400


def test_lists_are_short_and_numbers_whole() -> None:
    plan = Plan(racks=30, nodes_per_rack=8, rails=2)
    live = Live()
    for facts in all_facts(plan):
        live.put(with_port(facts, 0, state="down"))
    live.settle(THEN)
    root = live.hypernodes()[-1]
    assert (root.unhealthy_link_count, len(root.unhealthy_links)) == (240, 64)


def test_names_and_times_are_the_same_after_a_restart() -> None:
    live = started()
    live.put(with_port(facts_of(PLAN, 1), 2, state="down", since=after(1)))
    live.settle(after(1))
    other = Live(memory=live.memory())
    other.central(live.sources.sources)
    for name in live.nodes():
        facts = live.facts(name)
        assert facts is not None
        other.put(facts)
    other.settle(after(500))
    assert other.hypernodes() == live.hypernodes()


def test_storage_and_compute_are_fabrics_of_their_own() -> None:
    live = Live()
    for number in range(8):
        facts = facts_of(PLAN, number)
        storage = replace(facts.ports[0], nic="mlx5_8", fabric="infiniband-storage", switch="feedfeedfeedfeed")
        live.put(replace(facts, ports=(*facts.ports, storage)))
    live.settle(THEN)
    assert [(each.fabric, each.tier, each.name) for each in live.hypernodes()] == [
        ("infiniband", 1, "ib-leaf-000-0"),
        ("infiniband", 1, "ib-leaf-001-0"),
        ("infiniband", 2, "infiniband"),
        ("infiniband-storage", 1, "ib-storage-leaf-000-0"),
        ("infiniband-storage", 2, "infiniband-storage"),
    ]


def test_links_between_switches_that_are_down() -> None:
    live = started()
    reading = live.sources.sources[0].reading
    assert reading is not None
    first = reading.trunks[0]
    trunks = (replace(first, down=1, gbps=first.gbps / 2), *reading.trunks[1:])
    live.central((source_of(replace(reading, trunks=trunks)),))
    live.settle(after(1))
    rack = domain(live, RACK)
    assert (rack.uplinks, rack.uplinks_down, rack.uplink_gbps) == (16, 1, 6000)
    assert condition(rack, "Healthy").message == "unhealthy: 1 of 16 links upward"
    assert rack.last_change == after(1)
    assert domain(live, "ib-leaf-001-0").last_change == THEN
