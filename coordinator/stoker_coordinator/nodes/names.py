"""Names of nodes, and where they stand in certificates. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

NODE_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_URI = re.compile(r"stoker://node/([a-z0-9.-]{1,253})\?epoch=(\d{1,9})")


class Identity(Struct, frozen=True):
    """Whom a certificate is for. ``epoch`` counts how often a node of this name has joined: only certificates of the
    last time hold."""

    node: str
    epoch: int


def uri_of(identity: Identity) -> str:
    """Return an identity as it stands in a certificate."""
    return f"stoker://node/{identity.node}?epoch={identity.epoch}"


def identity_of(uri: str) -> Identity | None:
    """Return the identity in a certificate, None when there is none."""
    match = _URI.fullmatch(uri)
    return Identity(match[1], int(match[2])) if match and NODE_NAME.fullmatch(match[1]) else None
