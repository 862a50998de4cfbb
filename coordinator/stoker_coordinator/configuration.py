"""The configuration file: all settings of all rooms, read from TOML with every error at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stoker import toml_settings
from stoker.toml_settings import SettingsError
from stoker_coordinator.controllers import fabric_settings
from stoker_coordinator.controllers.fabric_settings import FabricSettings
from stoker_coordinator.errors import ConfigError
from stoker_coordinator.nodes.settings import LinkSettings
from stoker_coordinator.settings import ApiSettings, CoordinatorSettings, StoreSettings, address, is_loopback


@dataclass(frozen=True, slots=True)
class Settings:
    """All parts; each is a table of the file, each of its fields a key."""

    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    link: LinkSettings = field(default_factory=LinkSettings)
    fabric: FabricSettings = field(default_factory=FabricSettings)


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
    yield from fabric_settings.problems(settings.fabric)
    if not api.listen:
        return
    try:
        host, _ = address(api.listen)
    except ValueError as error:
        yield f"api.listen: {error}"
        return
    if not is_loopback(host) and not api.tls_cert:
        yield f"api.listen: {api.listen!r} can be reached from elsewhere, so it needs api.tls_cert and api.tls_key"
