"""Reports of fake machines: complete, stable, small, with their faults named; and the differences between two."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from stoker.fabrics.foreign import Unread
from stoker.objects.topology import Fact, TopologyReport
from stokerd.topology.facts import Observation, SourceReport
from stokerd.topology.metadata import parse as parse_metadata
from stokerd.topology.report import build
from stokerd.topology.settling import changes
from tests.rig.hardware.machines import FAULTS, MACHINES, Machine, h100, leaf, with_fault
from tests.unit.topology.nodes import GOLDEN, MACHINE_OF_FAULT, THEN, fault_shown, machine_of, observe, report_of, shown

LATER = THEN + timedelta(minutes=5)


def both(before: Machine, after: Machine) -> tuple[TopologyReport, TopologyReport]:
    old = build(observe(before), THEN)
    return old, build(observe(after), LATER, old)


# ---------------------------------------------------------------------------------------------- healthy machines


@pytest.mark.parametrize("case", MACHINES)
def test_golden_reports(case: str) -> None:
    assert shown(report_of(case)) == (GOLDEN / f"{case}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("fault", FAULTS)
def test_golden_faults(fault: str) -> None:
    golden = GOLDEN / f"{MACHINE_OF_FAULT[fault]}+{fault}.json"
    assert fault_shown(fault) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", MACHINES)
def test_healthy_machines_have_no_fault(case: str) -> None:
    report = report_of(case)
    assert report.findings == []
    assert {port.health.state for nic in report.nics for port in nic.ports} == {"healthy"}


def test_each_gpu_has_its_rail() -> None:
    report = report_of("h100")
    compute = [nic for nic in report.nics if nic.use == "compute"]
    assert [(nic.rail, nic.gpus, nic.gpu_distance) for nic in compute] == [
        (index, [f"GPU{index}"], "PIX") for index in range(8)
    ]
    assert [gpu.nics for gpu in report.gpus] == [[f"mlx5_{index}"] for index in range(8)]
    assert [nic.name for nic in report.nics if nic.use == "storage"] == ["mlx5_8", "mlx5_9"]
    assert [nic.name for nic in report.nics if nic.use == "management"] == ["eno1", "eno2"]


def test_each_port_shows_its_switch() -> None:
    report = report_of("h100")
    switches = {
        nic.name: [(each.kind, each.name, each.port) for each in nic.ports[0].neighbours] for nic in report.nics
    }
    assert switches["mlx5_6"] == [("switch", "MF0;ibleaf-07:MQM9700/U1", "17")]
    assert switches["mlx5_8"] == [("switch", "leaf-20", "Ethernet12")]
    assert all(switches.values())


def test_an_h100_is_in_no_domain_and_a_gb200_is() -> None:
    h100_report = report_of("h100")
    assert {gpu.domain for gpu in h100_report.gpus} == {""}
    assert [bool(domain.refused) for domain in h100_report.domains] == [True]
    gb200_report = report_of("gb200")
    assert [domain.gpus for domain in gb200_report.domains] == [["GPU0", "GPU1", "GPU2", "GPU3"]]
    assert {gpu.domain for gpu in gb200_report.gpus} == {gb200_report.domains[0].name}


def test_adapters_that_nobody_named_are_found_by_their_guids() -> None:
    from stoker.fabrics import dumps
    from tests.rig.hardware import texts

    machine = h100()
    unnamed = msgspec.structs.replace(observe(machine), fabric=dumps.parse(texts.ibnetdiscover(machine, named=False)))
    report = build(unnamed, THEN)
    assert report.fabric is not None
    assert report.fabric.unnamed == 8
    assert all(nic.ports[0].neighbours for nic in report.nics)


def sources_of(value: object) -> set[str]:
    """Return the sources of all facts in a report."""
    if isinstance(value, list):
        return {source for item in value for source in sources_of(item)}
    if not isinstance(value, msgspec.Struct):
        return set()
    below = {source for name in value.__struct_fields__ for source in sources_of(getattr(value, name))}
    return below | {value.source} if isinstance(value, Fact) else below


@pytest.mark.parametrize("case", MACHINES)
def test_every_fact_is_of_a_source_that_is_told(case: str) -> None:
    report = report_of(case)
    assert sources_of(report) <= {source.name for source in report.sources}
    assert len(sources_of(report)) >= 3


@pytest.mark.parametrize("case", MACHINES)
def test_a_report_is_small(case: str) -> None:
    assert len(msgspec.json.encode(report_of(case))) <= 64 << 10


def test_a_report_with_everything_is_still_small() -> None:
    """Twelve NICs with as many neighbours and names as are kept of each, and all sources failing."""
    machine = h100()
    full = observe(machine)
    long = "x" * 128
    crowded = {
        nic.netdev: tuple(
            msgspec.structs.replace(
                heard, neighbour=msgspec.structs.replace(heard.neighbour, chassis=f"{long}{number}", name=long,
                                                         port=long, port_description=long, management=(long,) * 4)
            )
            for number in range(8)
            for heard in next(iter(full.neighbours.values()))
        )
        for nic in machine.nics
    }  # fmt: skip
    failing = tuple(SourceReport(f"source-{n}", "failed", long, Unread(99, (long,) * 5)) for n in range(8))
    report = build(msgspec.structs.replace(full, neighbours=crowded, sources=failing), THEN)
    assert len(msgspec.json.encode(report)) <= 64 << 10


def test_a_node_without_anything_has_a_report() -> None:
    report = build(Observation("bare"), THEN)
    assert (report.node, report.gpus, report.nics, report.findings) == ("bare", [], [], [])


def test_a_report_survives_the_wire() -> None:
    report = report_of("h100")
    assert msgspec.json.decode(msgspec.json.encode(report), type=TopologyReport) == report


# ---------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("fault", "code", "subjects"),
    [
        ("pcie-half-width", "PcieLinkNarrow", ["GPU3"]),
        ("bridge-half-width", "PcieLinkNarrow", ["GPU2"]),
        ("link-down", "LinkDown", ["mlx5_2"]),
        ("half-lanes", "LinkDegraded", ["mlx5_5"]),
        ("slow-link", "LinkDegraded", ["mlx5_5"]),
        ("nic-misplaced", "NicMisplaced", ["GPU3", "mlx5_3"]),
        ("rails-crossed", "RailsCrossed", ["mlx5_1", "mlx5_6"]),
        ("neighbour-missing", "NeighbourMissing", ["mlx5_4"]),
        ("domain-unhealthy", "NvlinkDomainsDiffer", ["GPU0", "GPU2", "GPU3", "GPU1"]),
        ("gpu-lost", "GpuLost", ["GPU6"]),
        ("gpu-hot", "GpuSlowedDown", ["GPU5"]),
        ("flow-control", "FlowControlDiffers", ["mlx5_3"]),
        ("gpu-fault", "GpuFault", ["GPU0"]),
    ],
)
def test_each_fault_has_its_name(fault: str, code: str, subjects: list[str]) -> None:
    findings = report_of(f"{MACHINE_OF_FAULT[fault]}+{fault}").findings
    assert (code, subjects) in [(finding.code, finding.subjects) for finding in findings]
    assert all(finding.remedy for finding in findings)
    # Only what is wrong is told: a bridge's width is that of all devices behind it.
    assert {finding.code for finding in findings} == {code}


def test_a_second_port_without_a_cable_is_no_error() -> None:
    machine = MACHINES["h200"]()
    nics = list(machine.nics)
    nics[2] = replace(nics[2], up=False)
    unused = replace(machine, nics=tuple(nics))
    assert [(found.code, found.severity) for found in build(observe(unused), THEN).findings] == [("LinkDown", "info")]
    nics[1] = replace(nics[1], up=False)
    both_down = build(observe(replace(machine, nics=tuple(nics))), THEN)
    assert [(found.code, found.severity) for found in both_down.findings] == [("LinkDown", "warning")] * 2


def test_every_fault_is_tested() -> None:
    assert set(MACHINE_OF_FAULT) == set(FAULTS)


def test_a_source_that_fails_is_told_and_takes_nothing_with_it() -> None:
    healthy = observe(h100())
    failed = SourceReport("nvml", "failed", "it did not answer within 5 s")
    report = build(msgspec.structs.replace(healthy, gpus=(), sources=(failed,)), THEN)
    assert [(source.name, source.state) for source in report.sources if source.state != "ok"] == [("nvml", "failed")]
    assert len(report.gpus) == 8
    assert report.gpus[0].model == "10de:2330"
    assert [finding.code for finding in report.findings] == ["SourceFailed"]


def test_what_was_not_understood_is_told() -> None:
    healthy = observe(h100())
    assert healthy.fabric is not None
    damaged = msgspec.structs.replace(healthy.fabric, unread=Unread(3, ("what is this",)))
    report = build(msgspec.structs.replace(healthy, fabric=damaged), THEN)
    (finding,) = report.findings
    assert (finding.code, finding.subjects) == ("NotUnderstood", ["fabric"])
    assert "what is this" in finding.message


# ---------------------------------------------------------------------------------------------- over time


def test_nothing_changed_so_the_bytes_are_the_same() -> None:
    old, new = both(h100(), h100())
    assert new is old
    assert changes(old, new) == []


def test_what_stayed_keeps_its_time() -> None:
    _, new = both(h100(), with_fault(h100(), "link-down"))
    assert new.since == LATER
    touched = [nic.name for nic in new.nics if any(port.since == LATER for port in nic.ports)]
    assert touched == ["mlx5_2"]
    assert {nic.since for nic in new.nics} == {THEN}
    assert {gpu.since for gpu in new.gpus} == {THEN}
    (port,) = new.nics[2].ports
    assert port.health.since == LATER
    assert new.nics[3].ports[0].health.since == THEN


def told(old: TopologyReport, new: TopologyReport) -> list[tuple[str, str, str, str, str]]:
    return [(each.kind, each.subject, each.field, each.before, each.after) for each in changes(old, new)]


def test_a_link_that_goes_down_is_a_few_small_changes() -> None:
    old, new = both(h100(), with_fault(h100(), "link-down"))
    found = told(old, new)
    assert ("changed", "nic mlx5_2 port 1", "state", "active", "down") in found
    assert ("changed", "nic mlx5_2 port 1 health", "state", "healthy", "down") in found
    assert ("removed", "nic mlx5_2 port 1 neighbour 2c5eab0300b80003 17", "", "MF0;ibleaf-03:MQM9700/U1", "") in found
    assert [each[:2] for each in found if "finding" in each[1]] == [("added", "finding LinkDown mlx5_2")]
    assert all(each[1].startswith(("nic mlx5_2", "finding", "fabric")) for each in found)
    assert len(msgspec.json.encode(changes(old, new))) < 4096


def test_a_link_that_is_down_is_still_for_what_it_was() -> None:
    machine = h100()
    management = len(machine.nics) - 1
    nics = (*machine.nics[:management], replace(machine.nics[management], up=False, switch=None))
    old, new = both(machine, replace(machine, nics=nics))
    assert new.nics[-1].use == old.nics[-1].use == "management"
    assert new.nics[-1].use_reason == old.nics[-1].use_reason


def test_a_link_that_comes_back_leaves_the_report_as_it_was_but_for_the_times() -> None:
    old, down = both(h100(), with_fault(h100(), "link-down"))
    again = build(observe(h100()), LATER + timedelta(minutes=1), down)
    assert [nic.ports[0].state for nic in again.nics] == [nic.ports[0].state for nic in old.nics]
    assert again.findings == []
    assert told(old, again) == []


def test_a_renamed_switch_is_one_change() -> None:
    machine = h100()
    nics = list(machine.nics)
    assert nics[8].switch is not None
    nics[8] = replace(nics[8], switch=replace(nics[8].switch, name="leaf-20-new"))
    old, new = both(machine, replace(machine, nics=tuple(nics)))
    subject = "nic mlx5_8 port 1 neighbour 0c:29:ef:00:00:14 Ethernet12"
    assert told(old, new) == [("changed", subject, "name", "leaf-20", "leaf-20-new")]


def test_a_nic_that_is_taken_out_is_removed() -> None:
    machine = h100()
    old, new = both(machine, replace(machine, nics=machine.nics[:-1]))
    assert ("removed", "nic eno2", "", "eno2", "") in told(old, new)


def test_two_neighbours_on_one_port_and_another_host() -> None:
    machine = h100()
    both_heard = observe(machine)
    heard = both_heard.neighbours["ens0f0np0"][0]
    host = msgspec.structs.replace(
        heard,
        neighbour=msgspec.structs.replace(heard.neighbour, chassis="0c:29:ef:00:00:99", capabilities=("Station",)),
    )
    crowded = {**both_heard.neighbours, "ens0f0np0": (host, heard)}
    report = build(msgspec.structs.replace(both_heard, neighbours=crowded), THEN)
    port = next(nic for nic in report.nics if nic.name == "mlx5_8").ports[0]
    assert [each.kind for each in port.neighbours] == ["switch", "host"]
    alone = {**both_heard.neighbours, "ens0f0np0": (host,)}
    findings = build(msgspec.structs.replace(both_heard, neighbours=alone), THEN).findings
    # One of two: it cannot be said which of them is as it should be.
    assert findings == []


def test_two_nics_of_one_rail_on_one_switch() -> None:
    machine = machine_of("mi300")
    first = machine.nics[0]
    twin = replace(first, rdma="bnxt_re9", netdev="enp20s0np1", path=(*first.path[:-1], first.path[-1][:-1] + "1"),
                   number=30, switch=leaf(1, "Ethernet1/6"))  # fmt: skip
    report = build(observe(replace(machine, nics=(*machine.nics, twin))), THEN)
    assert [nic.rail for nic in report.nics if nic.name in {"bnxt_re0", "bnxt_re9"}] == [0, 0]
    assert [(finding.code, finding.subjects) for finding in report.findings] == [
        ("RailWithoutRedundancy", ["bnxt_re0", "bnxt_re9"])
    ]


def test_labels_and_placement_are_in_the_report() -> None:
    placed = msgspec.structs.replace(observe(h100()), labels={"rack": "a07"}, placement=parse_metadata("RACK_ID=a07\n"))
    report = build(placed, THEN)
    assert (report.labels, report.placement) == ({"rack": "a07"}, {"rack": "a07"})
    old = build(observe(h100()), THEN)
    assert ("changed", "node", "labels.rack", "", "a07") in told(old, report)
