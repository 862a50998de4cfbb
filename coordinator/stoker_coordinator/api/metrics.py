"""What the API and the store count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ApiMetrics:
    """Labels come from closed sets: verbs, kinds and status codes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "stoker_coordinator_requests",
            "HTTP requests; code is gone when the client went away before the answer",
            ("verb", "kind", "code"),
            registry=registry,
        )
        self.seconds = Histogram(
            "stoker_coordinator_request_seconds",
            "Time from the head of a request to its answer; watches are not in it",
            ("verb",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.watches = Gauge("stoker_coordinator_watches", "Watches that are open", registry=registry)
        self.refused = Counter("stoker_coordinator_refused", "Requests without a token that is good", registry=registry)


class StoreCollector(Collector):
    """How many objects there are, and the store's revision, when somebody asks."""

    def __init__(self, counts: Callable[[], Mapping[str, int]], revision: Callable[[], int]) -> None:
        self._counts = counts
        self._revision = revision

    def collect(self) -> Iterable[Metric]:
        objects = GaugeMetricFamily("stoker_coordinator_objects", "Objects in the store", labels=["kind"])
        for kind, count in sorted(self._counts().items()):
            objects.add_metric([kind], count)
        yield objects
        yield GaugeMetricFamily(
            "stoker_coordinator_revision", "Revision of the last change in the store", value=self._revision()
        )
