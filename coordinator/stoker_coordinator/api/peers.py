"""Who is at the other end of the unix socket."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct

from stoker_coordinator.auth import Principal
from stoker_coordinator.errors import Forbidden

_CREDENTIALS = struct.Struct("3i")


def group_id(name: str) -> int | None:
    """Return the id of a group, None when there is no such group."""
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError:
        return None


def principal_of(connection: socket.socket, gid: int | None) -> Principal:
    """Return who has connected: root, our own user, and members of the group *gid* are admins; Forbidden for others."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, peer_gid = _CREDENTIALS.unpack(raw)
    if uid in {0, os.geteuid()} or (gid is not None and (peer_gid == gid or _is_member(uid, gid))):
        return Principal(f"uid:{uid}", "admin")
    raise Forbidden(f"uid {uid} may not use this socket", hint="only root and members of the socket's group may")


def _is_member(uid: int, gid: int) -> bool:
    try:
        user = pwd.getpwuid(uid)
        return user.pw_gid == gid or gid in os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError):
        return False
