"""Metrics of the topology, made when they are asked for. There are none before somebody has wanted the topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from stoker.objects.topology import NicPort, PortLoad, TopologyLoad, TopologyReport


def _up(port: NicPort) -> float | None:
    """Return whether a link is up as far as anybody says; one that flaps counts as up, and as degraded."""
    return {"healthy": 1.0, "degraded": 1.0, "down": 0.0}.get(port.health.state)


_PORT = ("nic", "port", "use")
_LOADS: tuple[tuple[str, str, Callable[[PortLoad], float | None]], ...] = (
    ("sent_gbps", "What a port sends, in Gb/s.", lambda load: load.sent_gbps),
    ("received_gbps", "What a port receives, in Gb/s.", lambda load: load.received_gbps),
    ("congestion", "How congested a port is: 0, nothing waits, to 1, nothing moves.", lambda load: load.congestion),
)
_STATES: tuple[tuple[str, str, Callable[[NicPort], float | None]], ...] = (
    ("up", "1 if a port's link is up, 0 if it is down.", _up),
    ("degraded", "1 if a port's health is degraded.", lambda port: float(port.health.state == "degraded")),
    ("gbps", "What a port's link can carry, in Gb/s.", lambda port: port.gbps),
)


class TopologyMetrics:
    """A collector of Prometheus; *known* tells the report and the load as they are, or that there are none."""

    def __init__(
        self, registry: CollectorRegistry, known: Callable[[], tuple[TopologyReport, TopologyLoad] | None]
    ) -> None:
        self._known = known
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing that others could have, too: the names are ours."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of now."""
        known = self._known()
        if known is None:
            return
        report, load = known
        yield from _ports(report)
        yield from _carried(report, load)
        sources = GaugeMetricFamily(
            "stoker_topology_source_up", "1 if a source was read, 0 if it failed.", labels=["source"]
        )
        for source in report.sources:
            if source.state != "absent":
                sources.add_metric([source.name], float(source.state == "ok"))
        yield sources
        findings = GaugeMetricFamily(
            "stoker_topology_findings", "What is not as it should be.", labels=["code", "severity"]
        )
        for (code, severity), count in sorted(Counter((each.code, each.severity) for each in report.findings).items()):
            findings.add_metric([code, severity], count)
        yield findings
        yield GaugeMetricFamily(
            "stoker_topology_changed_timestamp_seconds", "When the report became what it is.", report.since.timestamp()
        )


def _ports(report: TopologyReport) -> Iterator[Metric]:
    for name, help_text, value_of in _STATES:
        family = GaugeMetricFamily(f"stoker_topology_port_{name}", help_text, labels=_PORT)
        for nic in report.nics:
            for port in nic.ports:
                value = value_of(port)
                if value is not None:
                    family.add_metric([nic.name, str(port.number), nic.use], value)
        yield family


def _carried(report: TopologyReport, load: TopologyLoad) -> Iterator[Metric]:
    use_of = {nic.name: nic.use for nic in report.nics}
    for name, help_text, value_of in _LOADS:
        family = GaugeMetricFamily(f"stoker_topology_port_{name}", help_text, labels=_PORT)
        for each in load.ports:
            value = value_of(each)
            if value is not None:
                family.add_metric([each.nic, str(each.port), use_of.get(each.nic, "")], value)
        yield family
    losses = CounterMetricFamily("stoker_topology_port_losses", "Times that a port's link was lost.", labels=_PORT)
    for each in load.ports:
        losses.add_metric([each.nic, str(each.port), use_of.get(each.nic, "")], each.losses)
    yield losses
