"""From two readings of a machine to what its ports carry, and to a report that has their health."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from stokerd.topology.health import PortHealth, PortReading
from stokerd.topology.health import observe as watch
from stokerd.topology.inventory import readings, take
from stokerd.topology.load import load_of
from stokerd.topology.report import build
from tests.rig.hardware.machines import Machine, h100
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
    load = load_of(build(observe(busy, health), THEN), health, THEN)
    assert len(load.ports) == 12
    first, second = load.ports[:2]
    assert (first.nic, first.capacity_gbps, first.sent_gbps, first.received_gbps) == ("mlx5_0", 400, 200, 0)
    assert (first.congestion, first.congestion_inputs["xmitWait"]) == (0.5, 0.5)
    assert first.error_rates == {"symbol_error": 0.5}
    assert (second.sent_gbps, second.congestion, second.error_rates) == (0, 0, {})


def test_nothing_was_measured_yet() -> None:
    load = load_of(build(observe(h100()), THEN), {}, THEN)
    assert {port.sent_gbps for port in load.ports} == {None}
    assert load.ports[0].capacity_gbps == 400


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
