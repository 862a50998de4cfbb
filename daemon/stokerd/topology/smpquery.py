"""What ``smpquery nodeinfo`` and ``smpquery nodedesc`` print of the node at the other end of a port. Pure.

Two questions to the neighbour alone, where a dump of the fabric would ask every node that there is.
"""

from __future__ import annotations

import re

from stoker.fabrics.foreign import decode, guid, integer, plain
from stokerd.topology.facts import FabricPeer

LONGEST = 1 << 16
_FIELD = re.compile(r"^([A-Za-z ]{3,32}):\.*(.*)$", re.MULTILINE)
_KINDS = {"switch": "switch", "channel adapter": "adapter", "router": "router"}


def parse(information: bytes, description: bytes = b"") -> FabricPeer | None:
    """Return who answered; None where it cannot be told. Never raises."""
    found = dict(_FIELD.findall(decode(information[:LONGEST])))
    identity = guid(found.get("Guid"))
    if not identity:
        return None
    named = dict(_FIELD.findall(decode(description[:LONGEST])))
    return FabricPeer(
        kind=_KINDS.get(found.get("NodeType", "").strip().lower(), "unknown"),
        guid=identity,
        port=integer(found.get("LocalPort")) or 0,
        name=plain(named.get("Node Description", "")),
    )
