"""Who is at the other end of a connection, and may they use it.

The credentials are those that the kernel noted when the peer connected; reading ``/proc/<pid>`` instead would race
with the end of that process and the reuse of its number.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from typing import Protocol

_SO_PEERGROUPS = 59
_UCRED = struct.Struct("iII")
# What Python's getsockopt can take, in bytes; four a group.
_GROUPS_BUFFER = 1024


class HasSocketOptions(Protocol):
    """A socket, or asyncio's view of one."""

    def fileno(self) -> int: ...

    def getsockopt(self, level: int, option: int, buflen: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A process as it was when it connected; numbers as seen from our user namespace."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    """Supplementary groups."""


def peer_of(connection: HasSocketOptions) -> Peer:
    """Return the peer of a connected unix socket; OSError when the kernel does not say."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return Peer(pid=pid, uid=uid, gid=gid, groups=_groups_of(connection))


def may_use(peer: Peer, *, own_uid: int, gid: int | None) -> bool:
    """Root, our own user, and members of group *gid*; None: no group."""
    if peer.uid in {0, own_uid}:
        return True
    return gid is not None and (peer.gid == gid or gid in peer.groups)


def _groups_of(connection: HasSocketOptions) -> frozenset[int]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BUFFER)
    except OSError as error:
        if error.errno == errno.ERANGE:
            raw = _many_groups(connection.fileno())
        elif error.errno == errno.ENOPROTOOPT:  # Linux before 4.13: the primary group has to do
            return frozenset()
        else:
            raise
    return frozenset(struct.unpack(f"{len(raw) // 4}I", raw))


def _many_groups(fd: int) -> bytes:
    """More groups than Python's getsockopt can return: ask libc, up to the kernel's own limit of 65536."""
    import ctypes  # late: almost nobody is in more than 256 groups

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(4 * 65536)
    length = ctypes.c_uint32(len(buffer))
    if libc.getsockopt(fd, socket.SOL_SOCKET, _SO_PEERGROUPS, buffer, ctypes.byref(length)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw[: length.value]
