"""What the containers room counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stokerd.journal.rows import RecreateRow, TargetRow

_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ContainerMetrics:
    """Prometheus metrics of containers recreated in place."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "stoker_recreates", "Requests to recreate containers that came to their end.", ["result"], registry=registry
        )
        self._containers = Counter(
            "stoker_recreate_containers", "Containers of such requests, by result and reason.", ["result", "reason"],
            registry=registry,
        )  # fmt: skip
        self._downtime = Histogram(
            "stoker_recreate_downtime_seconds", "From the end of the old container to the start of the new one.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.running = Gauge("stoker_recreates_running", "Requests being carried out now.", registry=registry)
        self.waiting = Gauge("stoker_recreates_waiting", "Requests waiting for their turn.", registry=registry)

    def completed(self, row: RecreateRow) -> None:
        self._requests.labels(row.result.lower()).inc()

    def settled(self, row: TargetRow) -> None:
        self._containers.labels(row.phase.lower(), row.reason).inc()
        if row.stopped_at is not None and row.running_at is not None:
            self._downtime.observe(max(0.0, row.running_at - row.stopped_at))
