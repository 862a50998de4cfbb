"""Settings of the link to the nodes: ``[link]``."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.toml_settings import PositiveCount, PositiveSeconds


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """``[link]``: how nodes reach the coordinator."""

    listen: str = "0.0.0.0:7420"
    """Address for nodes that have a certificate."""

    join_listen: str = "0.0.0.0:7421"
    """Address at which a node gets its certificate, with a join token; empty: nowhere."""

    plain_listen: str = ""
    """A loopback address (``127.0.0.1:7422``) or a socket (``unix:/run/stoker-coordinator/link.sock``) without TLS and
    without certificates: who can reach it can speak for any node. Empty: none."""

    names: tuple[str, ...] = ()
    """Names and addresses that nodes reach the coordinator by, for its certificate; beside its host name."""

    heartbeat: PositiveSeconds = 10.0
    """How often nodes say that they are there."""

    silent_after: PositiveSeconds = 35.0
    """A node of which nothing was heard for so long is not ready."""

    dropped_after: PositiveSeconds = 120.0
    """The stream of a node of which nothing was heard for so long is ended."""

    certificate_lifetime: PositiveSeconds = 30 * 86_400.0
    """How long a node's certificate holds; nodes renew theirs when a third of it is left."""

    most_nodes: PositiveCount = 20_000
    """Nodes that may be connected at one time."""

    messages_per_second: PositiveCount = 50
    """What one node may send, for longer than a moment; a node that sends more is read more slowly."""

    bytes_per_second: PositiveCount = 2 << 20
    """As above."""
