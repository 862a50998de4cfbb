"""Hears LLDP frames on a packet socket, where there is no lldpd to ask. It sends none: nobody sees that we are there.

Whoever is on the wire decides what and how much it hears, so a second's share of frames is read and no more; the kernel
drops the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Mapping

from stoker.fabrics.foreign import Unread, Unreadable
from stokerd.topology.lldp_frames import ETHERTYPE, LONGEST_FRAME, parse
from stokerd.topology.lldpcli import LldpNeighbours
from stokerd.topology.neighbours import Hearsay

_GROUPS = tuple(bytes.fromhex(f"0180c20000{last}") for last in ("0e", "03", "00"))
"""To the nearest bridge of each kind: what no bridge passes on."""
_SOL_PACKET, _ADD_MEMBERSHIP, _MULTICAST, _OUTGOING = 263, 1, 0, 4
_MEMBERSHIP = struct.Struct("=iHH8s")
_BUFFER = 1 << 16
_AT_ONCE = 64
_REST = 1.0
_SHOWN = 3


class LldpListener:
    """What was heard on the interfaces that are watched. *changed* is called when it is not what it was."""

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._socket: socket.socket | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._watched: dict[str, int] = {}
        self._hearsay = Hearsay()
        self._unread = Unreadable()

    def open(self) -> None:
        """Listen from now on, if it does not yet; OSError where the system does not let us."""
        if self._socket is not None:
            return
        listening = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(ETHERTYPE))
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            asyncio.get_running_loop().add_reader(listening, self._read)
        except BaseException:
            listening.close()
            raise
        self._socket = listening
        watched, self._watched = self._watched, {}
        self.watch(dict.fromkeys(watched))

    def close(self) -> None:
        """Listen no more, and forget what was heard; may be called without `open`."""
        listening, self._socket = self._socket, None
        rest, self._rest = self._rest, None
        if rest is not None:
            rest.cancel()
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._hearsay, self._unread = Hearsay(), Unreadable()

    def watch(self, interfaces: Mapping[str, bool | None]) -> None:
        """Listen on these interfaces, and say whether each is up: who was behind a link that went down is unknown."""
        before = self._hearsay
        for name, up in interfaces.items():
            index = _index(name)
            if self._watched.get(name) != index:
                self._join(index)
                self._hearsay = self._hearsay.forget(name)
            if up is False:
                self._hearsay = self._hearsay.forget(name)
            self._watched[name] = index
        for name in self._watched.keys() - interfaces.keys():
            del self._watched[name]
            self._hearsay = self._hearsay.forget(name)
        if self._hearsay != before:
            self._changed()

    def neighbours(self) -> LldpNeighbours:
        """Return who is there now."""
        unread = self._unread.total
        if self._hearsay.refused:
            text = f"{self._hearsay.refused} frames of more neighbours than are kept of an interface"
            unread = Unread(unread.count + self._hearsay.refused, (*unread.samples, text)[-_SHOWN:])
        pairs = [(name, each) for name, found in self._hearsay.at(self._clock()).items() for each in found]
        return LldpNeighbours(tuple(pairs), unread)

    def _join(self, index: int) -> None:
        if self._socket is None or not index:
            return
        for group in _GROUPS:
            member = _MEMBERSHIP.pack(index, _MULTICAST, len(group), group)
            # One that is going away just now, or takes no members: it is heard as far as it lets us.
            with contextlib.suppress(OSError):
                self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, member)

    def _read(self) -> None:
        before = self._hearsay.at(self._clock())
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                frame, sender = self._socket.recvfrom(LONGEST_FRAME)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # an interface went down under the socket; the others go on
                break
            name, _, kind = sender[:3]
            if kind != _OUTGOING and name in self._watched:
                self._hear(name, frame)
        else:
            self._have_a_rest()
        if self._hearsay.at(self._clock()) != before:
            self._changed()

    def _hear(self, name: str, frame: bytes) -> None:
        found = parse(frame)
        if found.neighbour is not None:
            self._hearsay = self._hearsay.hear(name, found.neighbour, self._clock())
        if found.problem or found.unread:
            self._unread.add(f"{name}: {found.problem or f'{found.unread} parts of a frame from {found.source}'}")

    def _have_a_rest(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._socket is not None
        loop.remove_reader(self._socket)
        self._rest = loop.call_later(_REST, self._go_on)

    def _go_on(self) -> None:
        self._rest = None
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._read)


def _index(name: str) -> int:
    """Return an interface's number; 0 for none, as of another machine's files or another network namespace."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def problem_of(error: OSError) -> str:
    """Return why frames are not heard, for people."""
    return f"no lldpd runs, and the system does not let us listen for frames: {os.strerror(error.errno or 0)}"
