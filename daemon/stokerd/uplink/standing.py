"""How a node stands with its coordinator, for people: `stoker doctor`, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric

from stoker.objects.node import CoordinatorLink
from stokerd.errors import StokerError


def utc_now() -> datetime:
    return datetime.now(UTC)


class Standing:
    """Whether the coordinator is there, since when, and why it is not."""

    def __init__(self, address: str, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self.link = CoordinatorLink(address=address, connected=False, since=clock())

    def identified(self, not_after: float | None) -> None:
        """Note until when the node's certificate holds (seconds since the epoch); None: it has none."""
        self.link.certificate_expires = datetime.fromtimestamp(not_after, UTC) if not_after is not None else None

    def connected(self) -> None:
        self._change(connected=True)
        self.link.reason = self.link.message = self.link.hint = ""

    def lost(self, reason: str, error: StokerError) -> None:
        """Note why there is no stream, or none yet; *since* stays when the last try was in vain, too."""
        self.ended()
        self.link.reason, self.link.message, self.link.hint = reason, error.message, error.hint or ""

    def ended(self) -> None:
        """Note that there is no stream any more, whatever has ended it."""
        self._change(connected=False)

    def _change(self, *, connected: bool) -> None:
        if self.link.connected != connected:
            self.link.connected, self.link.since = connected, self._clock()


class UplinkMetrics:
    """A collector of Prometheus; *link* tells how it stands, or that this node has no coordinator."""

    def __init__(self, registry: CollectorRegistry, link: Callable[[], CoordinatorLink | None]) -> None:
        self._link = link
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing that others could have, too: the names are ours."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of now."""
        link = self._link()
        if link is None:
            return
        yield GaugeMetricFamily(
            "stoker_coordinator_connected", "1 while there is a stream to the coordinator.", float(link.connected)
        )
        if link.certificate_expires is not None:
            yield GaugeMetricFamily(
                "stoker_coordinator_certificate_expiry_seconds",
                "When the node's certificate for the coordinator expires, in seconds since the epoch.",
                link.certificate_expires.timestamp(),
            )
