"""Which parts of the coordinator run."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector


class PartMetrics:
    """`stoker.service.supervise.Gauges`, for Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge("stoker_coordinator_part_up", "Whether a part runs", ("part",), registry=registry)
        self._failures = Counter(
            "stoker_coordinator_part_failures",
            "How often a part failed and was started again",
            ("part",),
            registry=registry,
        )
        ProcessCollector(registry=registry)

    def up(self, name: str, *, up: bool) -> None:
        self._up.labels(name).set(up)

    def failed(self, name: str) -> None:
        self._failures.labels(name).inc()
