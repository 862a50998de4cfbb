"""Asks the kernel which priorities have flow control of their own: one question for each network device."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from stokerd.topology.dcb_messages import answer, question

_LONGEST, _SECONDS = 1 << 15, 1.0
_MOST = 64


def read_pfc(interfaces: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the priorities by device; devices that do not say are left out. Blocking, within a second."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_SECONDS)
            kernel.bind((0, 0))
            for sequence, interface in enumerate(list(interfaces)[:_MOST], start=1):
                kernel.send(question(interface, sequence))
                priorities = answer(kernel.recv(_LONGEST), sequence)
                if priorities is not None:
                    found[interface] = priorities
    except OSError:
        pass  # what was told until then counts
    return found
