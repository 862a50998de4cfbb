"""Every setting of the coordinator, one dataclass per part, one docstring per field.

The configuration is one TOML file; each part is a table, each field a key of the same name. All errors of a file are
reported at once. docs/coordinator.md has the reference, made from this module.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stoker import toml_settings
from stoker.toml_settings import BodySize, Bytes, PositiveCount, PositiveSeconds, SettingsError
from stoker_coordinator.errors import ConfigError


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

    socket: Path = Path("/run/stoker/coordinator.sock")
    """Unix socket, made with mode 0660. Who may open it needs no token and is an admin."""

    group: str = "stoker"
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


@dataclass(frozen=True, slots=True)
class Settings:
    """All parts."""

    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    store: StoreSettings = field(default_factory=StoreSettings)


def load(path: Path | None) -> Settings:
    """Read *path* (None: all defaults); ConfigError lists every problem of the file."""
    if path is None:
        return Settings()
    try:
        return parse(toml_settings.read(path), str(path))
    except SettingsError as error:
        raise ConfigError(error.source, error.problems) from None


def parse(text: str, source: str) -> Settings:
    """Build the settings from TOML *text*; *source* names it in errors. ConfigError."""
    try:
        settings = toml_settings.parse(Settings, text, source)
    except SettingsError as error:
        raise ConfigError(error.source, error.problems) from None
    if problems := list(_between(settings)):
        raise ConfigError(source, problems)
    return settings


def _between(settings: Settings) -> Iterator[str]:
    """Yield what is wrong between fields that are each sound alone."""
    api = settings.api
    for name, path in (("coordinator.state_dir", settings.coordinator.state_dir), ("api.socket", api.socket)):
        if not path.is_absolute():
            yield f"{name}: {str(path)!r} is not an absolute path"
    if len(os.fsencode(api.socket)) > 107:
        yield "api.socket: a unix socket's path can have at most 107 bytes"
    if bool(api.tls_cert) != bool(api.tls_key):
        yield "api.tls_cert and api.tls_key: one of them is missing"
    if not api.listen:
        return
    try:
        host, _ = address(api.listen)
    except ValueError as error:
        yield f"api.listen: {error}"
        return
    if not is_loopback(host) and not api.tls_cert:
        yield f"api.listen: {api.listen!r} can be reached from elsewhere, so it needs api.tls_cert and api.tls_key"


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
