"""What the room counts; there from the moment that it is loaded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stoker.objects.checkpoints import Operation

_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class CheckpointMetrics:
    """Prometheus metrics of checkpoints, clones and commits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._operations = Counter(
            "stoker_operations", "Checkpoints, clones and commits that came to their end.",
            ["kind", "result", "reason"], registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "stoker_operation_seconds", "From the start of an operation that succeeded to its end.", ["kind"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._frozen = Histogram(
            "stoker_frozen_seconds", "How long containers stood still for a checkpoint or a commit.", ["kind"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._clones = Counter("stoker_clones_made", "Clones that were brought to run.", registry=registry)
        self.running = Gauge("stoker_operations_running", "Operations that have not ended.", registry=registry)

    def ended(self, operation: Operation) -> None:
        """Count one that has come to its end."""
        kind = operation.kind.lower()
        self._operations.labels(kind, operation.phase.lower(), operation.reason).inc()
        self._clones.inc(len(operation.clones))
        if operation.kind == "Checkpoint":
            for each in operation.checkpoints:
                self._frozen.labels(kind).observe(each.frozen_seconds)
        if operation.image is not None and operation.image.frozen_seconds:
            self._frozen.labels(kind).observe(operation.image.frozen_seconds)
        if operation.phase == "Succeeded" and operation.started_at and operation.finished_at:
            self._seconds.labels(kind).observe((operation.finished_at - operation.started_at).total_seconds())
