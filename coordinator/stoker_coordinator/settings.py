"""Settings of the process, its API and its store: one dataclass per part, one docstring per field.

Rooms with settings of their own have them beside their code; `configuration` puts all of them together.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.toml_settings import BodySize, Bytes, PositiveCount, PositiveSeconds


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """``[coordinator]``: the process itself."""

    state_dir: Path = Path("/var/lib/stoker-coordinator")
    """Directory of the store, the tokens, the audit log and the key that secrets are sealed with. It belongs to one
    coordinator alone, and to its backups."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    log_format: Literal["auto", "json", "console"] = "auto"
    """``auto`` writes lines for people on a terminal and JSON everywhere else."""

    stop_timeout: PositiveSeconds = 10.0
    """How long requests under way may take when the coordinator is told to stop."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """``[api]``: HTTP for people and programs."""

    listen: str = "127.0.0.1:7400"
    """Address and port. Any but a loopback address needs ``tls_cert`` and ``tls_key``. Empty: the socket alone."""

    socket: Path = Path("/run/stoker-coordinator/api.sock")
    """Unix socket, made with mode 0660. Who may open it needs no token and is an admin."""

    group: str = "stoker-coordinator"
    """Group whose members may use the socket beside root; where the group does not exist, root alone may."""

    tls_cert: str = ""
    """File with the certificate and what signed it, PEM. It is read again when it changes."""

    tls_key: str = ""
    """File with the certificate's key, PEM."""

    max_body: BodySize = 4 << 20
    """Largest request body that is read."""

    max_watches: PositiveCount = 1000
    """Watches and event streams that may be open at one time."""

    page: PositiveCount = 1000
    """Most objects on one page of a list for which no limit was asked. Larger limits are cut to ten times this."""

    bookmarks: PositiveSeconds = 15.0
    """A watch in which nothing happens says so this often."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """``[store]``: where objects are kept."""

    max_object: Bytes = 1 << 20
    """Largest object, as JSON."""

    history_changes: PositiveCount = 10_000
    """So many of the last changes are kept, so that watches that were interrupted go on without listing anew."""

    history_age: PositiveSeconds = 3600.0
    """Changes that are older are not kept."""


def address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[address]:port``; ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"{text!r} is not like 127.0.0.1:7400 or [::1]:7400")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address; a name is none that one could be sure of but localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
