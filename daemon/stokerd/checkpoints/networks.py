"""Network namespaces of our own, attached by the node's CNI configuration as CRI would do it.

Each is pinned under `NETNS`; the state that taking it down needs is beside the clone's other files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from stokerd.checkpoints import cni
from stokerd.checkpoints.cni import Call, Command, NetworkError, NetworkList
from stokerd.checkpoints.ending import in_thread, settled
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.nodes import must, run_on_node
from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.types import RuntimeInfo

NETNS = "/run/stoker/netns"


class Attached(msgspec.Struct, frozen=True):
    """A network that was attached: its configuration then, and what ADD answered."""

    network: NetworkList
    result: dict[str, Any]

    @property
    def addresses(self) -> tuple[str, ...]:
        return cni.addresses(self.result)


def netns_path(name: str) -> str:
    return f"{NETNS}/{name}"


async def make_netns(info: RuntimeInfo, name: str) -> None:
    """Make a network namespace and pin it."""
    path = netns_path(name)
    await in_thread(threading.Event(), partial(_touch, f"{info.host_root}{path}"))
    await must(info, "unshare", f"--net={path}", "true")


async def drop_netns(info: RuntimeInfo, name: str) -> None:
    """Let the namespace go; one that is not there is no error. RuntimeUnavailable when that cannot be seen."""
    path = Path(f"{info.host_root}{netns_path(name)}")
    if await asyncio.to_thread(path.exists):
        await run_on_node(info, ["umount", "--lazy", netns_path(name)])
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(path.unlink)
    await asyncio.to_thread(_must_reach, info)


def is_there(info: RuntimeInfo, name: str) -> bool:
    """Say whether the namespace is pinned still: after a restart of the node it is not. RuntimeUnavailable when the
    node's files, which are seen through containerd, are out of reach. Blocking."""
    path = Path(f"{info.host_root}{netns_path(name)}")
    try:
        return path.stat().st_dev != path.parent.stat().st_dev
    except OSError:
        _must_reach(info)
        return False


def _must_reach(info: RuntimeInfo) -> None:
    try:
        Path(f"{info.host_root}/").stat()
    except OSError as error:
        raise RuntimeUnavailable(f"the node's files cannot be reached: {error.strerror}") from None


async def configuration(info: RuntimeInfo) -> NetworkList:
    """Read the node's network; NetworkError when it has none."""
    directory = Path(f"{info.host_root}{info.cni_conf_dir}")

    def read() -> NetworkList:
        try:
            name = cni.choose([each.name for each in directory.iterdir()])
            if name is not None:
                return cni.parse((directory / name).read_text(encoding="utf-8"), name)
        except OSError as error:
            raise NetworkError(f"{info.cni_conf_dir}: {error.strerror}") from None
        raise NetworkError(f"the node has no network: {info.cni_conf_dir} is empty", hint="install a CNI network")

    return await asyncio.to_thread(read)


async def attach(info: RuntimeInfo, name: str, network: NetworkList) -> Attached:
    """Run ADD of all plugins, and bring the loopback up. What fails is taken back by the caller with `detach`."""
    adding = asyncio.gather(_loopback(info, name), _add(info, name, network), return_exceptions=True)
    cancelled = await settled(adding)
    if cancelled is not None:
        raise cancelled
    up, result = adding.result()
    if isinstance(result, BaseException):
        raise result
    if up is not None:
        raise up
    return Attached(network, result)


async def _add(info: RuntimeInfo, name: str, network: NetworkList) -> dict[str, Any]:
    call: Call | None = cni.first_call(network)
    result: dict[str, Any] = {}
    done = 0
    while call is not None:
        result = await _run(info, "ADD", name, call) or result
        done += 1
        call = cni.next_call(network, done, result)
    return result


async def check(info: RuntimeInfo, name: str, attached: Attached) -> None:
    """Ask all plugins whether the network is as it was made; NetworkError when it is not."""
    for call in cni.calls(attached.network, "CHECK", attached.result):
        await _run(info, "CHECK", name, call)


async def detach(info: RuntimeInfo, name: str, network: NetworkList, result: dict[str, Any] | None) -> None:
    """Run DEL of all plugins, so that addresses are given back; the first failure is raised after the last of them."""
    failure: CheckpointError | None = None
    there = await asyncio.to_thread(is_there, info, name)
    for call in cni.calls(network, "DEL", result):
        try:
            await _run(info, "DEL", name, call, netns_path(name) if there else "")
        except CheckpointError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def _loopback(info: RuntimeInfo, name: str) -> None:
    await _run(info, "ADD", name, Call("loopback", {**cni.LOOPBACK, "cniVersion": "0.3.1", "name": "cni-loopback"}))


async def _run(info: RuntimeInfo, command: Command, name: str, call: Call, netns: str | None = None) -> dict[str, Any]:
    """Run one plugin. *netns* is "" where the namespace is gone: there are addresses to be given back all the same."""
    program = await asyncio.to_thread(_find, info, call.plugin)
    path = netns_path(name) if netns is None else netns
    environment = cni.environment(command, name, path, info.cni_bin_dirs)
    if call.plugin == "loopback":
        environment["CNI_IFNAME"] = "lo"
    ended = await run_on_node(info, [program], stdin=json.dumps(call.config).encode(), environment=environment)
    return cni.answer(call.plugin, command, ended.status, ended.output, ended.errors)


def _find(info: RuntimeInfo, plugin: str) -> str:
    for directory in info.cni_bin_dirs:
        if Path(f"{info.host_root}{directory}/{plugin}").exists():
            return f"{directory}/{plugin}"
    raise NetworkError(f"CNI plugin {plugin} is not in {', '.join(info.cni_bin_dirs)}")


def _touch(path: str) -> None:
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    Path(path).touch(mode=0o600)
