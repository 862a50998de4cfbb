"""What sources bring, one after another: what holds when one fails, and when there is no need for a new report."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from stoker.objects.topology import TopologyReport
from stokerd.settings_rules import parse_label, parse_rule, problems
from stokerd.topology import lldpcli
from stokerd.topology.classes import UseRule
from stokerd.topology.facts import AmdReport, Ports, Tree
from stokerd.topology.health import FLAPPING
from stokerd.topology.knowledge import Knowledge, Nvidia, essence, learn, note_health, note_report
from stokerd.topology.outcomes import Outcome
from stokerd.topology.read_amd import read_amd
from stokerd.topology.read_hardware import read_ports, read_tree
from stokerd.topology.settling import changes
from tests.rig.hardware import texts
from tests.rig.hardware.files import FakeFiles, MemorySysfs
from tests.rig.hardware.machines import Machine, h100, h100_roce, mi300, with_fault
from tests.rig.hardware.tree import files_of
from tests.unit.topology.nodes import THEN, observe

LLDP = "lldp"


def ports_of(files: FakeFiles) -> Ports:
    return read_ports(lambda: MemorySysfs(files))


def known_of(machine: Machine) -> Knowledge:
    files = files_of(machine)
    known = Knowledge(machine.name)
    known = learn(known, "tree", Outcome("ok", data=read_tree(lambda: MemorySysfs(files))))
    known = learn(known, "ports", Outcome("ok", data=ports_of(files)))
    known = learn(known, "lldp", Outcome("ok", data=lldpcli.parse(texts.lldpcli(machine))))
    seen = observe(machine)
    if machine.driver:
        known = learn(known, "nvidia", Outcome("ok", data=Nvidia(seen.gpus, seen.gpu_links)))
    else:
        known = learn(known, "amd", Outcome("ok", data=read_amd(MemorySysfs(files))))
    return note_report(note_health(known, 0.0), THEN)


def test_a_failure_alone_changes_nothing_and_a_second_one_takes_what_the_source_told() -> None:
    known = known_of(h100())
    report = known.report
    assert report is not None
    failed = Outcome("failed", "no answer within 10 s")
    once = note_report(learn(known, LLDP, failed), THEN + timedelta(seconds=30))
    assert once.report is report
    twice = note_report(learn(once, LLDP, failed), THEN + timedelta(seconds=60))
    assert twice.report is not None
    (source,) = [each for each in twice.report.sources if each.name == LLDP]
    assert (source.state, source.reason) == ("failed", "no answer within 10 s")
    assert any(finding.code == "SourceFailed" for finding in twice.report.findings)
    (storage,) = [nic for nic in twice.report.nics if nic.name == "mlx5_8"]
    assert storage.ports[0].neighbours == []
    back = note_report(learn(twice, LLDP, Outcome("ok", data=known.lldp)), THEN + timedelta(seconds=90))
    assert back.report is not None
    assert not back.report.findings
    assert learn(back, LLDP, failed).sources[LLDP].state == "ok"  # the count began anew


def test_a_source_that_fails_from_the_start_is_told_at_once() -> None:
    known = note_report(learn(Knowledge("node"), "tree", Outcome("failed", "sys: no such directory")), THEN)
    assert known.report is not None
    assert [(each.name, each.state) for each in known.report.sources] == [
        ("sysfs.machine", "failed"),
        ("sysfs.numa", "failed"),
        ("sysfs.pci", "failed"),
    ]


def test_what_is_absent_is_told_with_its_reason_or_not_at_all() -> None:
    known = learn(Knowledge("node"), LLDP, Outcome("absent", "lldpd is not installed"))
    known = note_report(learn(known, "fabric", Outcome("absent")), THEN)
    assert known.report is not None
    assert [(each.name, each.state, each.reason) for each in known.report.sources] == [
        (LLDP, "absent", "lldpd is not installed")
    ]
    gone = learn(known_of(h100()), LLDP, Outcome("absent", "lldpd does not run"))
    assert gone.lldp.pairs == ()


def test_gpus_are_those_of_the_driver_that_there_is() -> None:
    report = known_of(mi300()).report
    assert report is not None
    assert {gpu.source for gpu in report.gpus} == {"sysfs.kfd"}
    assert known_of(h100()).amd == AmdReport()


def test_counters_alone_need_no_new_report() -> None:
    known = known_of(h100())
    ports = known.ports
    counted = msgspec.structs.replace(
        ports,
        rdma=tuple(
            msgspec.structs.replace(
                device,
                ports=tuple(msgspec.structs.replace(port, counters={"port_xmit_data": 7}) for port in device.ports),
            )
            for device in ports.rdma
        ),
    )
    assert counted != ports
    later = note_health(learn(known, "ports", Outcome("ok", data=counted)), 10.0)
    assert essence(later) == essence(known)
    assert essence(learn(known, "ports", Outcome("ok", data=Ports()))) != essence(known)
    assert essence(msgspec.structs.replace(known, labels={"rack": "r1"})) != essence(known)
    assert essence(learn(known, "tree", Outcome("ok", data=Tree()))) != essence(known)


def test_a_link_that_flaps_ten_times_makes_few_reports_and_keeps_its_speed() -> None:
    known = known_of(h100())
    files = files_of(h100())
    port = files.find("sys/class/infiniband/mlx5_2/ports/1")
    assert isinstance(port, dict)
    reports: list[TopologyReport | None] = []
    for step in range(20):
        up = step % 2 == 1
        state = {"state": "4: ACTIVE" if up else "1: DOWN", "phys_state": "5: LinkUp" if up else "2: Polling"}
        port.update({**state, "rate": "400 Gb/sec (4X NDR)" if up else "2.5 Gb/sec (1X SDR)"})
        known = note_health(learn(known, "ports", Outcome("ok", data=ports_of(files))), 1.0 + step)
        known = note_report(known, THEN + timedelta(seconds=step))
        if not reports or known.report is not reports[-1]:
            reports.append(known.report)
    assert len(reports) <= 6
    last = reports[-1]
    assert last is not None
    (flapping,) = [nic for nic in last.nics if nic.name == "mlx5_2"]
    assert flapping.ports[0].state == FLAPPING
    assert flapping.ports[0].gbps == 400
    assert flapping.ports[0].health.reasons == [FLAPPING]
    quiet = note_report(note_health(known, 500.0), THEN + timedelta(seconds=500))
    assert quiet.report is not None
    assert {change.after for change in changes(last, quiet.report) if change.field == "state"} == {"active", "healthy"}


# ---------------------------------------------------------------------------------------------- rules and labels


def test_a_neighbour_is_missed_only_when_the_link_is_up_for_a_while() -> None:
    known = msgspec.structs.replace(known_of(with_fault(h100_roce(), "neighbour-missing")), patience=60.0)
    counts = []
    for now in (0.0, 30.0, 59.0, 60.0, 75.0):
        known = note_report(note_health(known, now), THEN + timedelta(seconds=now))
        assert known.report is not None
        counts.append([found.code for found in known.report.findings])
    assert counts == [[], [], [], ["NeighbourMissing"], ["NeighbourMissing"]]
    assert essence(note_health(known, 59.0)) != essence(note_health(known, 75.0))


def test_rules_of_the_configuration() -> None:
    text = "storage name=ens*f0np0 vlan=100 layer=ethernet least-gbps=100 most-gbps=400 subnet=10.1.2.3/16 near-gpu=no"
    assert UseRule(**parse_rule(text)) == UseRule(
        "storage", "ens*f0np0", 100, "ethernet", 100.0, 400.0, "10.1.0.0/16", near_gpu=False
    )
    assert UseRule(**parse_rule("compute near-gpu=yes")) == UseRule("compute", near_gpu=True)
    assert parse_label("rack=r 12") == ("rack", "r 12")


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("", "does not begin with one of compute"),
        ("gpu name=x", "does not begin with one of compute"),
        ("compute nam=x", "'nam=x' is none of name="),
        ("compute name", "'name' is none of name="),
        ("compute vlan=4095", "not a VLAN"),
        ("compute vlan=-1", "not a VLAN"),
        ("compute layer=wifi", "not infiniband or ethernet"),
        ("compute least-gbps=inf", "not a number of Gb/s"),
        ("compute subnet=10.0.0.0/33", "not a subnet"),
        ("compute near-gpu=1", "not yes or no"),
    ],
)
def test_rules_that_are_wrong(rule: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("'", ".")):
        parse_rule(rule)


def test_all_that_is_wrong_is_told_with_its_place() -> None:
    assert problems(["compute", "x"], ["a=b", "=c"]) == [
        "topology.rules: number 2: 'x' does not begin with one of compute, storage, management, unknown",
        "topology.labels: number 2: '=c' is not name=value, as in rack=r12",
    ]
