"""The Container Network Interface: what plugins are told, and what they answer. Pure.

Source: the CNI specification 1.1 (containernetworking/cni SPEC.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from stokerd.checkpoints.errors import CheckpointError

Command = Literal["ADD", "CHECK", "DEL"]

LOOPBACK: Mapping[str, Any] = {"type": "loopback"}
_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_RESULT_SINCE = "0.4.0"
"""From this version on, CHECK exists, and it and DEL are told what ADD had answered."""


class NetworkError(CheckpointError):
    """A network could not be made or taken down."""

    reason = "NetworkFailed"


class NetworkList(msgspec.Struct, frozen=True):
    """A network of the node's configuration: its plugins, in the order of ADD."""

    name: str
    version: str
    plugins: tuple[dict[str, Any], ...]
    disable_check: bool = False

    @property
    def knows_results(self) -> bool:
        return _VERSIONS.index(self.version) >= _VERSIONS.index(_RESULT_SINCE)


class Call(msgspec.Struct, frozen=True):
    """One run of a plugin: which, and what it reads."""

    plugin: str
    config: dict[str, Any]


def choose(names: Sequence[str]) -> str | None:
    """Return the file that holds the node's network: the first by name, as CRI chooses it."""
    return min((name for name in names if name.endswith((".conflist", ".conf", ".json"))), default=None)


def parse(text: str, source: str) -> NetworkList:
    """Read a configuration file, of one plugin or a list; NetworkError when it is neither."""
    try:
        found = json.loads(text)
        single = "plugins" not in found
        version = found.get("cniVersion") or "0.1.0"
        plugins = (found,) if single else tuple(found["plugins"])
        name, types = found["name"], [plugin["type"] for plugin in plugins]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NetworkError(f"{source}: no CNI configuration: {error!r}") from None
    if version not in _VERSIONS:
        raise NetworkError(f"{source}: CNI version {version} is not known")
    bad = [each for each in types if not isinstance(each, str) or "/" in each or not each]
    if bad or not plugins:
        raise NetworkError(f"{source}: no names of plugins: {bad}")
    return NetworkList(str(name), version, plugins, bool(not single and found.get("disableCheck")))


def first_call(network: NetworkList) -> Call:
    return _call(network, 0, None)


def next_call(network: NetworkList, done: int, result: Mapping[str, Any]) -> Call | None:
    """Return the call of ADD after so many, which is told what the one before answered; None after the last."""
    return _call(network, done, result) if done < len(network.plugins) else None


def calls(network: NetworkList, command: Command, result: Mapping[str, Any] | None) -> tuple[Call, ...]:
    """Return all calls of CHECK or DEL; DEL goes backwards. *result* is what ADD had answered at last."""
    if command == "CHECK" and (network.disable_check or not network.knows_results):
        return ()
    known = result if network.knows_results else None
    found = [_call(network, number, known) for number in range(len(network.plugins))]
    return tuple(reversed(found) if command == "DEL" else found)


def _call(network: NetworkList, number: int, result: Mapping[str, Any] | None) -> Call:
    plugin = network.plugins[number]
    config = {**plugin, "cniVersion": network.version, "name": network.name}
    config.pop("capabilities", None)
    if result:
        config["prevResult"] = dict(result)
    return Call(str(plugin["type"]), config)


def environment(command: Command, container: str, netns: str, directories: Sequence[str]) -> dict[str, str]:
    """Return the variables that a plugin is run with."""
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": netns,
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "IgnoreUnknown=1",
        "CNI_PATH": ":".join(directories),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def answer(plugin: str, command: Command, status: int, output: bytes, errors: bytes) -> dict[str, Any]:
    """Return what a plugin answered; NetworkError in its own words when it failed."""
    try:
        found = json.loads(output) if output.strip() else {}
    except ValueError:
        found = {}
    if not isinstance(found, dict):
        found = {}
    if status:
        text = " ".join(str(found[key]) for key in ("msg", "details") if found.get(key))
        text = text or errors.decode("utf-8", "replace").strip()[-300:] or f"exit status {status}"
        raise NetworkError(f"CNI plugin {plugin} failed ({command}): {text}")
    return found


def addresses(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses that ADD gave, without their prefix lengths."""
    return tuple(str(each["address"]).partition("/")[0] for each in result.get("ips") or [] if each.get("address"))
