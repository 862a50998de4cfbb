"""Finding containerd's socket, and telling why one is not it.

Sources: the default addresses of containerd, k3s, rke2 and microk8s.
"""

from __future__ import annotations

import errno
import socket
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stokerd.errors import InvalidInput

USUAL_SOCKETS: tuple[str, ...] = (
    "/run/containerd/containerd.sock",
    "/var/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
)
"""k3s and rke2 share one address."""


class Found(msgspec.Struct, frozen=True):
    """One candidate: ``problem`` is empty when something listens there; ``peer_pid`` is who, 0 when not told."""

    path: str
    problem: str = ""
    peer_pid: int = 0


def socket_path(endpoint: str) -> str:
    """Return the path of ``unix:///run/x.sock``, ``unix:/run/x.sock`` or a bare path."""
    path = endpoint
    for prefix in ("unix://", "unix:"):
        if endpoint.startswith(prefix):
            path = endpoint.removeprefix(prefix)
            break
    if not path.startswith("/"):
        raise InvalidInput(
            f"runtime.endpoint: {endpoint!r} is not a unix socket",
            hint="give the path of containerd's socket, for example unix:///run/containerd/containerd.sock",
        )
    return path


def candidates(endpoint: str) -> tuple[str, ...]:
    """Return the paths to try: the one configured alone, or else all usual ones."""
    return (socket_path(endpoint),) if endpoint else USUAL_SOCKETS


def look(path: str) -> Found:
    """Connect once to *path*; say who listens or why nobody can be reached. Blocks for less than a second."""
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return Found(path, "is not a socket")
    except OSError as error:
        return Found(path, _words(error))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError as error:
            return Found(path, _words(error))
    return Found(path, "", struct.unpack("3i", credentials)[0])


def _words(error: OSError) -> str:
    return {
        errno.ENOENT: "does not exist",
        errno.ENOTDIR: "does not exist",
        errno.ECONNREFUSED: "nobody listens (refused)",
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ENAMETOOLONG: "is too long for a unix socket",
    }.get(error.errno or 0, error.strerror or str(error))


def first(found: Iterable[Found]) -> Found | None:
    """Return the first candidate that answers."""
    return next((entry for entry in found if not entry.problem), None)


def tried(found: Iterable[Found]) -> str:
    """Say which paths were tried, and what each answered."""
    return "; ".join(f"{entry.path}: {entry.problem or 'answers'}" for entry in found)
