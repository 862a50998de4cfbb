"""Who may open a stream, and what happens to the one that is open already. Pure.

A second stream under a name is usually the same node after a break. Two machines with one name, as after copying a disk
with its certificate, must not take the name from each other again and again: the first one keeps it, both are told.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stoker.objects.link import Hello, agree
from stoker_coordinator.nodes.names import NODE_NAME, Identity

CONFLICT_RETRY = 300.0
_SETUP_RETRY = 300.0
MOST_INSTANCES = 8
"""Runs of stokerd under one name that are remembered."""


class Refusal(Struct, frozen=True):
    """Why a node may not come in."""

    reason: str
    message: str
    hint: str = ""
    retry_seconds: float = 60.0


class Peer(Struct, frozen=True):
    """Who is at the other end, as far as the connection proves it."""

    identity: Identity | None
    """None: a local connection without certificates, which is believed."""
    address: str = ""


def check(peer: Peer, hello: Hello, epoch: int | None, connected: int, most: int) -> Refusal | int:
    """Return the protocol's version to speak, or why none. *epoch*: the one that holds for the certificate's name,
    None when that name was taken away."""
    if NODE_NAME.fullmatch(hello.node) is None:
        return Refusal("WrongName", "this is no name for a node", "set uplink.node", _SETUP_RETRY)
    if peer.identity is not None:
        if peer.identity.node != hello.node:
            return Refusal(
                "WrongName",
                f"the certificate is that of node {peer.identity.node}",
                "a node speaks for itself alone: set uplink.node to the certificate's name, or join anew",
                _SETUP_RETRY,
            )
        if epoch is None or peer.identity.epoch != epoch:
            return Refusal(
                "CertificateReplaced",
                "a node of this name has joined anew, or the certificate was revoked",
                "join anew with a token",
                _SETUP_RETRY,
            )
    protocol = agree(hello.protocol, hello.least_protocol)
    if not protocol:
        return Refusal(
            "ProtocolVersion",
            f"the node speaks versions {hello.least_protocol} to {hello.protocol} of the protocol, which are not "
            "spoken here",
            "bring stokerd or stoker-coordinator to the version of the other",
            _SETUP_RETRY,
        )
    if connected >= most:
        return Refusal("TooManyNodes", f"{most} nodes are connected", "raise link.most_nodes")
    return protocol


class Seen(Struct, frozen=True):
    """The stream that is open under a name."""

    boot_id: str
    machine_id: str
    instance: str
    heard_seconds_ago: float


Step = Literal["accept", "replace", "probe", "conflict"]


def meet(old: Seen | None, hello: Hello, former: tuple[str, ...], silent_after: float) -> Step:
    """Say what a new stream means. *former*: runs of stokerd under this name that were replaced by another one.

    ``probe``: ask the old one whether it is still there. If it answers, there are two of them.
    """
    if old is None:
        return "accept"
    if old.heard_seconds_ago > silent_after or old.instance == hello.instance:
        return "replace"
    if hello.instance in former:
        return "conflict"  # the one that was replaced is back: it never went away
    if old.machine_id == hello.machine_id and old.boot_id == hello.boot_id:
        return "replace"  # stokerd was started anew on a machine that kept running
    return "probe"


def remember(former: tuple[str, ...], instance: str) -> tuple[str, ...]:
    """Return the runs that were replaced, with one more."""
    return (*(each for each in former if each != instance), instance)[-MOST_INSTANCES:]
