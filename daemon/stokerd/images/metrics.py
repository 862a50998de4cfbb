"""What the images room counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:  # the scheduler reports through the book, which counts here
    from stokerd.images.scheduler import Outcome

_SECONDS = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)


class ImageMetrics:
    """Prometheus metrics of warm images."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._attempts = Counter(
            "stoker_image_attempts", "Attempts to warm an image, by result and reason.", ["result", "reason"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "stoker_image_attempt_seconds", "How long attempts took.", ["result"], buckets=_SECONDS, registry=registry
        )
        self._fetched = Counter("stoker_image_fetched_bytes", "Bytes fetched from registries.", registry=registry)
        self.running = Gauge("stoker_image_pulls_running", "Images being pulled now.", registry=registry)
        self.waiting = Gauge("stoker_image_pulls_waiting", "Images waiting to be pulled.", registry=registry)

    def attempted(self, outcome: Outcome | None, seconds: float) -> None:
        """Count one attempt; None: it was cancelled."""
        result, reason = "cancelled", "Cancelled"
        pulled = getattr(outcome, "pulled", None)
        if outcome is not None:
            failed = getattr(outcome, "reason", None)
            result = "failed" if failed else "succeeded"
            reason = failed or ("Pulled" if pulled else "AlreadyPresent")
        self._attempts.labels(result, reason).inc()
        self._seconds.labels(result).observe(seconds)
        if pulled is not None:
            self._fetched.inc(pulled.fetched)
