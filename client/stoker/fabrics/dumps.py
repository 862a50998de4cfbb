"""A fabric's dump, whichever tool wrote it. Pure."""

from __future__ import annotations

import re

from stoker.fabrics import iblinkinfo, ibnetdiscover
from stoker.fabrics.fabric import Fabric
from stoker.fabrics.foreign import decode

LONGEST_DUMP = 64 << 20
"""Bytes of a dump that are read; 10 000 switches write half of it."""

_LOOKED_AT = 200_000
_LINK_INFO = re.compile(r"\]\s*==\(")
_PORTS = re.compile(r"^\s*(?:CA|SW|RT)\s*\d+\s+\d+\s+0x", re.MULTILINE)


def parse(data: bytes | str) -> Fabric:
    """Return the fabric that a dump of ``ibnetdiscover`` (``-p``, too) or ``iblinkinfo`` shows. Never raises."""
    text = decode(data[:LONGEST_DUMP])
    head = text[:_LOOKED_AT]
    if _LINK_INFO.search(head):
        return iblinkinfo.parse_link_info(text)
    if _PORTS.search(head):
        return iblinkinfo.parse_ports(text)
    return ibnetdiscover.parse(text)
