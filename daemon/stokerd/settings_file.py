"""Reading the configuration file: every error at once, each with its place. Pure but for `load`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stoker import toml_settings
from stoker.toml_settings import MAX_FILE as MAX_FILE  # noqa: PLC0414 - part of what this module says
from stoker.toml_settings import SettingsError
from stokerd.errors import ConfigError
from stokerd.settings import Settings, TopologySettings
from stokerd.settings_rules import problems as rule_problems
from stokerd.settings_rules import uplink_problems


def load(path: Path | None) -> Settings:
    """Read *path* (None: all defaults); raise ConfigError that lists every problem of the file."""
    if path is None:
        return Settings()
    try:
        return parse(toml_settings.read(path), str(path))
    except SettingsError as error:
        raise ConfigError(error.source, list(error.problems)) from None


def parse(text: str, source: str) -> Settings:
    """Build the settings from TOML *text*; *source* names it in errors."""
    try:
        settings = toml_settings.parse(Settings, text, source)
    except SettingsError as error:
        raise ConfigError(error.source, list(error.problems)) from None
    problems = consistency_problems(settings)
    if problems:
        raise ConfigError(source, problems)
    return settings


def consistency_problems(settings: Settings) -> list[str]:
    """Return what is wrong between fields that are each sound alone."""
    images = settings.images
    problems = []
    if images.disk_floor > images.disk_reserve:
        problems.append(
            f"images.disk_floor ({images.disk_floor}) is above images.disk_reserve ({images.disk_reserve}): pulls that"
            " were let in would be stopped at once"
        )
    if images.inode_floor > images.inode_reserve:
        problems.append("images.inode_floor is above images.inode_reserve")
    if images.backoff_initial > images.backoff_max:
        problems.append("images.backoff_initial is above images.backoff_max")
    for name, path in (
        ("daemon.state_dir", settings.daemon.state_dir),
        ("api.socket", settings.api.socket),
        *(("credentials.docker_configs", path) for path in settings.credentials.docker_configs),
        ("checkpoints.directory", settings.checkpoints.directory),
        ("runtime.registry_config_path", Path(settings.runtime.registry_config_path or "/")),
        *_topology_paths(settings.topology),
        ("uplink.ca", Path(settings.uplink.ca or "/")),
        ("uplink.token_file", Path(settings.uplink.token_file or "/")),
    ):
        if not path.is_absolute():
            problems.append(f"{name}: {str(path)!r} is not an absolute path")
    problems += uplink_problems(settings.uplink.coordinator, settings.uplink.ca, settings.uplink.node)
    endpoint = settings.runtime.endpoint
    if endpoint and not endpoint.removeprefix("unix:").removeprefix("//").startswith("/"):
        problems.append(f"runtime.endpoint: {endpoint!r} is not the path of a unix socket")
    if len(os.fsencode(settings.api.socket)) > 100:
        problems.append("api.socket: a unix socket's path can have at most 107 bytes, and its lock needs a few")
    return problems + rule_problems(settings.topology.rules, settings.topology.labels)


def _topology_paths(topology: TopologySettings) -> Iterator[tuple[str, Path]]:
    yield "topology.root", topology.root
    for name in ("nvidia_file", "nvidia_matrix_file", "lldp_socket", "lldp_file", "fabric_file", "placement_file"):
        yield f"topology.{name}", Path(getattr(topology, name) or "/")
