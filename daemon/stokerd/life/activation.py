"""Sockets that the service manager opened for us (sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import structlog

from stokerd.errors import StokerError

_log = structlog.get_logger("life")
_FIRST = 3
_MOST = 64
API_NAME = "api"
"""Name of the API's socket (``FileDescriptorName=``) where more than one is passed."""


class WrongSocket(StokerError):
    """What the service manager passed cannot be the socket of the API."""

    reason = "WrongSocket"


def passed_api_socket(
    environment: MutableMapping[str, str] = os.environ, *, first: int = _FIRST
) -> socket.socket | None:
    """Return the listening unix socket that was passed for the API, None when there is none.

    The variables are taken out of the environment, and no passed descriptor reaches a child. Of several sockets the
    one that is named ``api`` counts, and the others are closed. WrongSocket: it is no listening unix stream socket.
    """
    pid = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return None
    number = min(int(count), _MOST)
    passed = [(names[place] if place < len(names) else "", first + place) for place in range(number)]
    for _, descriptor in passed:
        _check_open(descriptor)
        os.set_inheritable(descriptor, False)
    chosen = passed[0] if len(passed) == 1 else next((entry for entry in passed if entry[0] == API_NAME), None)
    for name, descriptor in passed:
        if (name, descriptor) != chosen:
            _log.warning("a socket that the service manager passed is not used", name=name)
            os.close(descriptor)
    return _adopt(*chosen) if chosen is not None else None


def _check_open(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        raise WrongSocket(f"LISTEN_FDS names file descriptor {descriptor}, which is not open") from None


def _adopt(name: str, descriptor: int) -> socket.socket:
    try:
        adopted = socket.socket(fileno=descriptor)
    except OSError:
        raise WrongSocket(f"the service manager passed something that is no socket ({name})") from None
    listens = adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if adopted.family != socket.AF_UNIX or adopted.type != socket.SOCK_STREAM or not listens:
        adopted.close()
        raise WrongSocket(
            f"the service manager passed a socket ({name}) that is no listening unix stream socket",
            hint="the socket unit needs ListenStream= with a path, and Accept=no",
        )
    adopted.setblocking(False)
    return adopted
