"""What changes all the time on a node's ports, as its own document. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from stoker.objects.topology import GpuLoad, MachineLoad, PortLoad, TopologyLoad, TopologyReport
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.health import THRESHOLDS, PortHealth
from stokerd.topology.rates import use

_ERRORS = frozenset(THRESHOLDS) | {"rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "port_xmit_discards"}


def load_of(
    report: TopologyReport,
    health: Mapping[tuple[str, int], PortHealth],
    now: datetime,
    drivers: Mapping[str, Accelerator],
    machine: MachineLoad,
) -> TopologyLoad:
    """Return what the ports of a report carry, and could; of those that nothing was measured of, only the latter.

    *drivers*: what was told of GPUs, by their addresses.
    """
    ports = [
        _load(nic.name, port.number, port.gbps, health.get((nic.name, port.number), PortHealth()))
        for nic in report.nics
        for port in nic.ports
    ]
    gpus = [_gpu(gpu.name, drivers[gpu.pcie.address]) for gpu in report.gpus if gpu.pcie.address in drivers]
    return TopologyLoad(node=report.node, at=now, ports=ports, gpus=gpus, machine=machine)


def _gpu(name: str, told: Accelerator) -> GpuLoad:
    return GpuLoad(
        gpu=name,
        busy_percent=told.busy_percent,
        memory_used_bytes=told.memory_used,
        clock_mhz=told.clock_mhz,
        memory_clock_mhz=told.memory_clock_mhz,
    )


def _load(nic: str, port: int, capacity: float, known: PortHealth) -> PortLoad:
    carried = use(known.per_second, capacity)
    errors = {name: round(rate, 4) for name, rate in sorted(known.per_second.items()) if name in _ERRORS and rate > 0}
    return PortLoad(
        nic=nic,
        port=port,
        capacity_gbps=capacity,
        sent_gbps=carried.sent,
        received_gbps=carried.received,
        congestion=known.congestion.value,
        congestion_inputs=dict(known.congestion.inputs),
        error_rates=errors,
        losses=known.losses,
    )
