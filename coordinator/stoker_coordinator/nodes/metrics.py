"""Numbers about the link, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class LinkMetrics:
    """One per coordinator."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge("stoker_nodes_connected", "Nodes with an open stream", registry=registry)
        self.messages = Counter("stoker_link_messages", "Messages of nodes", ["type"], registry=registry)
        self.refused = Counter(
            "stoker_link_refused", "Streams that were refused or ended", ["reason"], registry=registry
        )
        self.bad = Counter(
            "stoker_link_bad_messages", "What nodes should not have sent, or not so", ["reason"], registry=registry
        )
        self.resyncs = Counter("stoker_link_resyncs", "Documents asked for in full", ["document"], registry=registry)
        self.joined = Counter("stoker_nodes_joined", "Certificates given for tokens", ["result"], registry=registry)
        self.writes = Counter("stoker_node_writes", "Node objects written", registry=registry)
        # Made once: looking labels up costs more than counting, and heartbeats come by the thousand.
        self.beats = self.messages.labels("beat")
