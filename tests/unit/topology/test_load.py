"""From two readings of a machine to what its ports carry, and to a report that has their health."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest

from stoker.objects.topology import GpuLoad, MachineLoad, TopologyLoad, TopologyReport
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.health import PortHealth, PortReading
from stokerd.topology.health import observe as watch
from stokerd.topology.inventory import readings, take
from stokerd.topology.load import load_of
from stokerd.topology.metrics import TopologyMetrics
from stokerd.topology.report import build
from tests.rig.hardware.machines import Machine, h100, with_fault
from tests.unit.topology.nodes import THEN, observe


def with_counters(machine: Machine, place: int, **counters: int) -> Machine:
    nics = list(machine.nics)
    nics[place] = replace(nics[place], counters=counters)
    return replace(machine, nics=tuple(nics))


def measured(*machines: Machine, every: float = 10.0) -> dict[tuple[str, int], PortHealth]:
    """Return the health of all ports after a machine was read so often, as it was then."""
    health: dict[tuple[str, int], PortHealth] = {}
    for turn, machine in enumerate(machines):
        found: dict[tuple[str, int], PortReading] = readings(take(observe(machine)))
        health = {port: watch(health.get(port, PortHealth()), reading, turn * every) for port, reading in found.items()}
    return health


def test_what_ports_carry() -> None:
    words = int(200e9 / 8 / 4 * 10)  # 200 Gb/s for ten seconds
    busy = with_counters(h100(), 0, port_xmit_data=words, port_xmit_wait=words, symbol_error=5)
    health = measured(h100(), busy)
    load = load_of(build(observe(busy, health), THEN), health, THEN, {}, MachineLoad())
    assert len(load.ports) == 12
    first, second = load.ports[:2]
    assert (first.nic, first.capacity_gbps, first.sent_gbps, first.received_gbps) == ("mlx5_0", 400, 200, 0)
    assert (first.congestion, first.congestion_inputs["xmitWait"]) == (0.5, 0.5)
    assert first.error_rates == {"symbol_error": 0.5}
    assert (second.sent_gbps, second.congestion, second.error_rates) == (0, 0, {})


def test_nothing_was_measured_yet() -> None:
    load = load_of(build(observe(h100()), THEN), {}, THEN, {}, MachineLoad())
    assert {port.sent_gbps for port in load.ports} == {None}
    assert load.ports[0].capacity_gbps == 400


def test_how_busy_gpus_are() -> None:
    machine = h100()
    told = Accelerator(machine.gpus[1].address, memory_used=4 << 30, busy_percent=37, clock_mhz=1755)
    load = load_of(build(observe(machine), THEN), {}, THEN, {told.address: told}, MachineLoad(load1=2.5))
    assert load.gpus == [GpuLoad(gpu="GPU1", busy_percent=37, memory_used_bytes=4 << 30, clock_mhz=1755)]
    assert load.machine.load1 == 2.5


def test_load_changes_no_report_and_errors_that_stay_do() -> None:
    machines = [with_counters(h100(), 3, symbol_error=turn * 100, port_xmit_data=turn * 10**9) for turn in range(6)]
    report = build(observe(machines[0], measured(machines[0])), THEN)
    versions = [report]
    for turn in range(1, 6):
        health = measured(*machines[: turn + 1])
        report = build(observe(machines[turn], health), THEN + timedelta(seconds=turn), report)
        if report is not versions[-1]:
            versions.append(report)
    assert len(versions) == 2
    assert versions[-1].nics[3].ports[0].health.reasons == ["symbol errors"]
    assert [finding.code for finding in versions[-1].findings] == ["LinkDegraded"]


def test_metrics_are_of_the_report_as_it_is() -> None:
    machine = with_counters(with_fault(h100(), "link-down"), 0, port_xmit_data=int(100e9 / 8 / 4 * 10))
    health = measured(h100(), machine)
    report = build(observe(machine, health), THEN)
    registry = CollectorRegistry()
    known: list[tuple[TopologyReport, TopologyLoad]] = []
    TopologyMetrics(registry, lambda: known[0] if known else None)
    assert generate_latest(registry) == b""  # nobody has asked for the topology
    known.append((report, load_of(report, health, THEN, {}, MachineLoad())))
    lines = generate_latest(registry).decode().splitlines()
    labels = '{nic="mlx5_2",port="1",use="compute"}'
    assert f"stoker_topology_port_up{labels} 0.0" in lines
    assert f"stoker_topology_port_losses_total{labels} 1.0" in lines
    assert 'stoker_topology_port_up{nic="mlx5_0",port="1",use="compute"} 1.0' in lines
    assert 'stoker_topology_port_sent_gbps{nic="mlx5_0",port="1",use="compute"} 100.0' in lines
    assert 'stoker_topology_port_gbps{nic="eno1",port="1",use="management"} 25.0' in lines
    assert 'stoker_topology_findings{code="LinkDown",severity="error"} 1.0' in lines
    assert 'stoker_topology_source_up{source="sysfs.pci"} 1.0' in lines
    assert f"stoker_topology_changed_timestamp_seconds {THEN.timestamp():.10g}".split()[0] in "\n".join(lines)
