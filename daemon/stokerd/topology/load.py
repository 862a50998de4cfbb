"""What changes all the time on a node's ports, as its own document. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from stoker.objects.topology import PortLoad, TopologyLoad, TopologyReport
from stokerd.topology.health import THRESHOLDS, PortHealth
from stokerd.topology.rates import use

_ERRORS = frozenset(THRESHOLDS) | {"rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "port_xmit_discards"}


def load_of(report: TopologyReport, health: Mapping[tuple[str, int], PortHealth], now: datetime) -> TopologyLoad:
    """Return what the ports of a report carry, and could; of those that nothing was measured of, only the latter."""
    ports = [
        _load(nic.name, port.number, port.gbps, health.get((nic.name, port.number), PortHealth()))
        for nic in report.nics
        for port in nic.ports
    ]
    return TopologyLoad(node=report.node, at=now, ports=ports)


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
