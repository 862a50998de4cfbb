"""From reports, as stokerd writes them, to what is known of a node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.objects.topology import Nic, NicPort, PortHealth, PortLoad, PortNeighbour, TopologyLoad, TopologyReport
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import Port
from stoker_coordinator.hypernodes.observe import MOST_PORTS, observe, uses, with_state
from tests.unit.coordinator.hypernodes.fabrics import THEN

GOLDEN = Path(__file__).parents[3] / "data/topology/golden"
LATER = THEN + timedelta(minutes=5)


def golden(name: str) -> TopologyReport:
    return msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=TopologyReport)


def test_a_node_of_eight_gpus_and_twelve_nics() -> None:
    facts = observe(golden("h100"))
    fabrics: dict[str, int] = {}
    for port in facts.ports:
        fabrics[port.fabric] = fabrics.get(port.fabric, 0) + 1
        assert port.switch
    assert fabrics == {"infiniband": 8, "roce-storage": 2, "ethernet-management": 2}
    first = facts.ports[0]
    assert (first.nic, first.gbps, first.state) == ("mlx5_0", 400, "healthy")
    assert (first.switch, first.switch_port, first.source) == ("2c5eab0300b80001", "17", "report/fabric")
    assert first.aliases == ("a088c20300ab0000", "ibp0", "a0:88:c2:ab:00:00")


def test_nvlink_domains_are_a_fabric() -> None:
    facts = observe(golden("gb200"))
    (port,) = [port for port in facts.ports if port.fabric == "nvlink"]
    assert port.switch == "7e3a9c51-2f0d-4b6e-9a51-0c1d2e3f4a5b.2"
    live = Live()
    live.put(facts)
    live.settle(THEN)
    assert [each.name for each in live.hypernodes("nvlink")] == [
        "nvlink-7e3a9c51-2f0d-4b6e-9a51-0c1d2e3f4a5b-2",
        "nvlink",
    ]


@pytest.mark.parametrize("name", ["cpu", "gb200", "h100", "h200", "mi300"])
def test_every_machine_has_its_place(name: str) -> None:
    facts = observe(golden(name))
    live = Live()
    live.put(facts)
    live.settle(THEN)
    for fabric in live.trees:
        found = live.hypernodes(fabric)
        assert live.unplaced(fabric) == ([] if found else [facts.name])
        assert all(each.node_count == 1 for each in found)


def report(*ports: NicPort, **more: object) -> TopologyReport:
    nic = Nic(source="s", since=THEN, name="mlx5_0", use="compute", use_reason="", rdma=True, ports=list(ports), **more)  # type: ignore[arg-type]
    return TopologyReport(version=1, node="n1", since=THEN, nics=[nic])


def port(*switches: str, state: str = "healthy", kind: str = "switch", gbps: float = 400.0) -> NicPort:
    return NicPort(
        source="s",
        since=THEN,
        number=1,
        state="active",
        layer="ethernet",
        gbps=gbps,
        health=PortHealth(source="s", since=THEN, state=state),  # type: ignore[arg-type]
        neighbours=[
            PortNeighbour(source="lldp", since=THEN, kind=kind, reason="r", chassis=each, name=f"name-{each}")  # type: ignore[arg-type]
            for each in switches
        ],
    )


def test_a_pulled_cable_keeps_its_place() -> None:
    before = observe(report(port("0C:29:EF:00:00:01")))
    gone = report(port(state="down", gbps=0.0))
    gone.since = LATER
    after = observe(gone, before)
    (known,) = after.ports
    assert (known.switch, known.gbps, known.state, known.lost) == ("0c:29:ef:00:00:01", 400, "down", LATER)
    gone.since = LATER + timedelta(hours=1)
    assert observe(gone, after).ports[0].lost == LATER
    back = observe(report(port("0c:29:ef:00:00:01")), after).ports[0]
    assert (back.lost, back.state) == (None, "healthy")
    assert observe(report(port("s2")), after).ports[0].switch == "s2"


def test_an_adapter_that_is_gone_is_gone() -> None:
    before = observe(report(port("s1")))
    assert observe(TopologyReport(version=1, node="n1", since=LATER), before).ports == ()


@pytest.mark.parametrize(
    ("kind", "switch"), [("switch", "s1"), ("unknown", "s1"), ("host", ""), ("virtual", ""), ("self", "")]
)
def test_only_switches_are_neighbours_that_count(kind: str, switch: str) -> None:
    assert observe(report(port("s1", kind=kind))).ports[0].switch == switch


def test_interfaces_for_nobody_knows_what_are_on_no_fabric() -> None:
    unknown = report(port("s1"))
    unknown.nics[0].use = "unknown"
    facts = observe(unknown)
    assert (facts.ports, facts.unplaced) == ((), 1)
    assert observe(report(port("s1"), virtual_of="0000:01:00.0")).ports == ()


def test_readiness_and_labels_stay_over_reports() -> None:
    facts = with_state(observe(report(port("s1"))), ready=True, since=THEN, labels={"rack": "r1"})
    again = observe(report(port("s2")), facts)
    assert (again.ready, again.ready_since, again.labels) == (True, THEN, {"rack": "r1"})
    assert with_state(again, ready=True, since=LATER).ready_since == THEN
    assert with_state(again, ready=False, since=LATER).ready_reason == "NotReady"


def test_a_huge_report_is_cut() -> None:
    many = report(*[port("s1") for _ in range(5000)])
    facts = observe(many)
    assert (len(facts.ports), facts.unplaced) == (MOST_PORTS, 5000 - MOST_PORTS)


def test_load() -> None:
    load = TopologyLoad(
        node="n1",
        at=datetime(2026, 11, 30, tzinfo=UTC),
        ports=[
            PortLoad(nic="mlx5_0", port=1, sent_gbps=3.0, received_gbps=None, congestion=7.0),
            PortLoad(nic="mlx5_1", port=1),
        ],
    )
    (use,) = uses(load)
    assert (use.nic, use.sent_gbps, use.received_gbps, use.congestion) == ("mlx5_0", 3.0, 0.0, 1.0)


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_a_lying_node_harms_nobody(chassis: str, name: str, nic: str) -> None:
    lies = report(port(chassis))
    lies.nics[0].name = nic
    lies.nics[0].ports[0].neighbours[0].name = name
    live = Live()
    live.put(observe(lies))
    live.settle(THEN)
    for each in live.hypernodes():
        assert each.name.isascii()
        assert all(text.isprintable() for switch in each.switches for text in (switch.id, switch.name))


def test_a_node_on_every_switch_joins_no_racks() -> None:
    live = Live()
    for rack in range(4):
        for number in range(4):
            node = f"r{rack}n{number}"
            ports = tuple(Port(f"mlx5_{rail}", 1, "roce", switch=f"r{rack}s{rail}") for rail in range(2))
            live.put(msgspec.structs.replace(observe(report(port())), name=node, ports=ports))
    everywhere = tuple(
        Port(f"m{rack}{rail}", 1, "roce", switch=f"r{rack}s{rail}") for rack in range(4) for rail in range(2)
    )
    live.put(msgspec.structs.replace(observe(report(port())), name="liar", ports=everywhere))
    live.settle(THEN)
    assert sum(each.tier == 1 for each in live.hypernodes()) == 4
