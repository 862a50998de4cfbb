"""containerd's configuration for a node, in the version that the suite's containerd reads."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.rig import paths, toml

V2_CRI = "io.containerd.grpc.v1.cri"
V3_IMAGES = "io.containerd.cri.v1.images"
V3_RUNTIME = "io.containerd.cri.v1.runtime"


@dataclass(frozen=True)
class PullOptions:
    """How CRI pulls. None leaves containerd's default."""

    max_concurrent_downloads: int | None = None
    # A Go duration: how long a pull may make no progress before CRI cancels it.
    progress_timeout: str | None = None
    discard_unpacked_layers: bool | None = None
    # Of 2.1 and later: False pulls through the transfer service.
    local_pull: bool | None = None
    snapshotter: str | None = None


@dataclass(frozen=True)
class ConfigInputs:
    """What differs between nodes."""

    suite: str
    root: Path
    state: Path
    endpoint: Path
    certs_dir: Path
    cni_conf_dir: Path
    sandbox_image: str
    log_level: str = "info"
    pull: PullOptions = field(default_factory=PullOptions)
    # Laid over the finished configuration, table by table; None removes a key.
    overrides: Mapping[str, Any] = field(default_factory=dict)


def config_version(suite: str) -> int:
    recipe = tomllib.loads((paths.NODE_IMAGE / "recipe.toml").read_text(encoding="utf-8"))
    return int(recipe["suites"][suite]["config_version"])


def fill(template: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    return template


def render(inputs: ConfigInputs) -> str:
    version = config_version(inputs.suite)
    template = (paths.NODE_IMAGE / f"containerd-v{version}.toml").read_text(encoding="utf-8")
    filled = fill(
        template,
        {
            "ROOT": str(inputs.root),
            "STATE": str(inputs.state),
            "ENDPOINT": str(inputs.endpoint),
            "CERTS_DIR": str(inputs.certs_dir),
            "CNI_CONF_DIR": str(inputs.cni_conf_dir),
            "SANDBOX_IMAGE": inputs.sandbox_image,
            "LOG_LEVEL": inputs.log_level,
        },
    )
    config = toml.merged(tomllib.loads(filled), {"plugins": _pull(inputs.pull, inputs.suite, version)})
    return toml.dump(toml.merged(config, inputs.overrides))


def _pull(options: PullOptions, suite: str, version: int) -> dict[str, dict[str, Any]]:
    """The plugin tables of the options that are set and that the suite's containerd knows."""
    direct: dict[str, Any] = {
        "max_concurrent_downloads": options.max_concurrent_downloads,
        "image_pull_progress_timeout": None if suite == "bookworm" else options.progress_timeout,
    }
    moved: dict[str, Any] = {
        "discard_unpacked_layers": options.discard_unpacked_layers,
        "snapshotter": options.snapshotter,
    }
    if version == 3:
        images = {**direct, **moved, "use_local_image_pull": options.local_pull}
        return {V3_IMAGES: _set(images)}
    return {V2_CRI: {**_set(direct), "containerd": _set(moved)}}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class HostsEntry:
    """One place from which containerd may get an image; `server` is an address with or without scheme."""

    server: str
    capabilities: tuple[str, ...] = ("pull", "resolve")
    ca: Path | None = None
    skip_verify: bool = False
    # The path below the server is the whole API path, for registries that live under a prefix.
    override_path: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def hosts_toml(server: str | None, entries: tuple[HostsEntry, ...]) -> str:
    """The text of certs.d/<registry>/hosts.toml: `server` is what is asked after the entries, in their order."""
    top = [] if server is None else [f'server = "{_url(server)}"']
    hosts = {_url(each.server): _host_table(each) for each in entries}
    return "\n".join([*top, toml.dump({"host": hosts})])


def _with_own_ca(entry: HostsEntry, target: Path) -> HostsEntry:
    if entry.ca is None:
        return entry
    shutil.copyfile(entry.ca, target)
    return replace(entry, ca=target)


def _host_table(entry: HostsEntry) -> dict[str, Any]:
    table: dict[str, Any] = {"capabilities": list(entry.capabilities)}
    if entry.ca is not None:
        table["ca"] = str(entry.ca)
    if entry.skip_verify:
        table["skip_verify"] = True
    if entry.override_path:
        table["override_path"] = True
    if entry.headers:
        table["header"] = {name: [value] for name, value in entry.headers.items()}
    return table


def _url(server: str) -> str:
    return server if "://" in server else f"http://{server}"


def write_hosts(certs_dir: Path, registry: str, *entries: HostsEntry, server: str | None = None) -> Path:
    """Say where images named `registry/...` come from. containerd reads it at every pull; no restart is needed.

    Without entries the registry itself is used over plain HTTP. Certificates are copied beside the file, because a node
    sees nothing of the machine's but its own directories.
    """
    directory = certs_dir / registry
    directory.mkdir(parents=True, exist_ok=True)
    inside = tuple(_with_own_ca(each, directory / f"ca-{number}.crt") for number, each in enumerate(entries))
    file = directory / "hosts.toml"
    aside = directory / "hosts.toml.new"
    aside.write_text(hosts_toml(server or registry, inside or (HostsEntry(registry),)), encoding="utf-8")
    aside.rename(file)
    return file
