"""Settings of the link to the nodes: ``[link]``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """``[link]``: how nodes reach the coordinator."""

    listen: str = "0.0.0.0:7420"
    """Address for nodes that have a certificate."""

    join_listen: str = "0.0.0.0:7421"
    """Address at which a node gets its certificate, with a join token; empty: nowhere."""

    plain_listen: str = ""
    """A loopback address (``127.0.0.1:7422``) or a socket (``unix:/run/stoker/link.sock``) without TLS and without
    certificates: who can reach it can speak for any node. Empty: none."""

    names: tuple[str, ...] = ()
    """Names and addresses that nodes reach the coordinator by, for its certificate; beside its host name."""

    heartbeat: float = 10.0
    """How often nodes say that they are there."""

    silent_after: float = 35.0
    """A node of which nothing was heard for so long is not ready."""

    dropped_after: float = 120.0
    """The stream of a node of which nothing was heard for so long is ended."""

    certificate_days: float = 30.0
    """How long a node's certificate holds; nodes renew theirs when a third of it is left."""

    most_nodes: int = 20_000
    """Nodes that may be connected at one time."""

    messages_per_second: float = 50.0
    """What one node may send, for longer than a moment; a node that sends more is read more slowly."""

    bytes_per_second: float = 2 << 20
    """As above."""
