"""Hears from the kernel when a network device changes: rtnetlink's group of links, and nothing else of it.

A reader of our own, of one message in one direction: pyroute2 would cost 9 MiB in the daemon.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from stokerd.topology.link_messages import LinkMessage, parse

_GROUP_LINK = 1
_LONGEST = 1 << 17
_BUFFER = 1 << 20
_AT_ONCE = 64
"""Datagrams that are read before others get their turn."""


class LinkEvents:
    """Calls *told* for each change, and *lost* when the kernel had more to tell than was read in time."""

    def __init__(self, told: Callable[[LinkMessage], None], lost: Callable[[], None]) -> None:
        self._told = told
        self._lost = lost
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Listen from now on; OSError where the system does not let us."""
        listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            listening.bind((0, _GROUP_LINK))
            asyncio.get_running_loop().add_reader(listening, self._read)
        except BaseException:
            listening.close()
            raise
        self._socket = listening

    def stop(self) -> None:
        """Listen no more; may be called without `start`."""
        listening, self._socket = self._socket, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                data, sender = self._socket.recvfrom(_LONGEST)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    self.stop()
                self._lost()
                return
            if sender[0] == 0:  # the kernel; any process may send to us
                for message in parse(data):
                    self._told(message)


def problem_of(error: OSError) -> str:
    """Return why the kernel is not heard, for people."""
    return f"the kernel does not let us listen: {os.strerror(error.errno or 0)}; links are looked at instead"
