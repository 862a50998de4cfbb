"""Finding out what the runtime and its node can do: one table, with a reason wherever something is missing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec
import structlog
from msgspec.structs import replace

from cri_stubs.containerd.services.introspection.v1 import introspection_pb2
from cri_stubs.containerd.services.introspection.v1.introspection_pb2_grpc import IntrospectionStub
from stoker.service.children import communicate, start
from stokerd.errors import RuntimeFailure, RuntimeUnavailable, RuntimeUnsupported
from stokerd.runtime import endpoint, facts
from stokerd.runtime.channel import Wire
from stokerd.runtime.cri import CriImageService
from stokerd.runtime.endpoint import Found
from stokerd.runtime.types import Capability, RuntimeInfo

_log = structlog.get_logger("runtime")
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?(?:[-~+.\w]*)?")
_DECOMPRESSORS = ("igzip", "unpigz")
PINNING_SINCE = (1, 7)
_PROGRAM_TIMEOUT = 30.0
"""More than a node takes that is short of everything: what has not answered by then counts as absent until containerd
is connected to again."""


class _Programs(msgspec.Struct, frozen=True):
    criu: str
    runc: str
    decompressors: tuple[str, ...]


async def probe(wire: Wire, found: Found, registry_config: str) -> RuntimeInfo:
    """Ask containerd and its node everything once. Raises RuntimeUnsupported when the socket has no CRI service,
    RuntimeUnavailable when containerd ends meanwhile."""
    cri = CriImageService(wire)
    try:
        name, version, api_version = await cri.version()
    except RuntimeUnsupported:
        raise RuntimeUnsupported(
            f"{found.path} is a containerd without a CRI service: {await cri_plugin_problem(wire)}",
            hint="remove cri from disabled_plugins in containerd's configuration and restart containerd",
        ) from None
    config = facts.cri_config(await cri.verbose_status())
    image_fs = await cri.fs_info()
    pid = found.peer_pid
    try:
        host_root = facts.host_root_of(pid)
    except ProcessLookupError as error:
        raise RuntimeUnavailable(f"{name} ends: {error}") from None
    programs = await _programs(pid, host_root)
    root = str(config.get("containerdRootDir") or "/var/lib/containerd")
    info = RuntimeInfo(
        endpoint=found.path,
        name=name,
        version=version,
        api_version=api_version,
        pid=pid,
        root=root,
        state=str(config.get("stateDir") or ""),
        host_root=host_root,
        snapshotter=_snapshotter(image_fs.mountpoint),
        storage_fs=facts.file_system_type(await _read(f"/proc/{pid}/mountinfo"), root),
        criu_version=programs.criu,
        runc_version=programs.runc,
        cgroup_mode=facts.cgroup_mode(await _read("/proc/mounts")),
        registry_config_path=registry_config or await _registry_config(config, pid, host_root),
        decompressors=programs.decompressors,
        sandbox_image=str(config.get("sandboxImage") or ""),
        cni_conf_dir=str(facts.dig(config, "cni", "confDir") or "/etc/cni/net.d"),
        cni_bin_dirs=facts.cni_bin_dirs(config),
    )
    # All this was asked of one process, as far as the socket is, and read of another one, should it have ended.
    if not await is_same(info):
        raise RuntimeUnavailable(f"{name} was started anew while it was asked")
    return with_capabilities(info)


async def is_same(info: RuntimeInfo) -> bool:
    """Say whether it is still this process that listens at containerd's socket."""
    now = await asyncio.to_thread(endpoint.look, info.endpoint)
    return not now.problem and now.peer_pid == info.pid


async def cri_plugin_problem(wire: Wire) -> str:
    """Say why containerd has no CRI service, in its own words where it has some."""
    stub = IntrospectionStub(wire.channel)
    request = introspection_pb2.PluginsRequest(filters=["id==cri"])
    try:
        answer = await wire.unary("introspection.Plugins", stub.Plugins, request)
    except RuntimeFailure as error:
        return error.message
    errors = [plugin.init_err.message for plugin in answer.plugins if plugin.HasField("init_err")]
    return "; ".join(errors) or "the plugin is disabled"


def _snapshotter(mountpoint: str) -> str:
    """``/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs`` → ``overlayfs``; proxies name themselves."""
    last = mountpoint.rstrip("/").rpartition("/")[2]
    return last.removeprefix("io.containerd.snapshotter.v1.") or "overlayfs"


async def _read(path: str) -> str:
    return await asyncio.to_thread(facts.read_text, path)


async def _registry_config(config: dict[str, object], pid: int, host_root: str) -> str:
    told = facts.dig(config, "registry", "configPath")
    if isinstance(told, str) and told:
        return told
    arguments = (await _read(f"/proc/{pid}/cmdline")).split("\0")
    text = await _read(host_root + facts.config_file_of(arguments))
    return facts.registry_config_path(text) or facts.DEFAULT_REGISTRY_CONFIG


async def _programs(pid: int, host_root: str) -> _Programs:
    directories = await asyncio.to_thread(facts.process_path, pid)
    criu, runc = await asyncio.gather(
        *(_program_version(program, directories, pid, host_root) for program in ("criu", "runc"))
    )
    decompressors = tuple(program for program in _DECOMPRESSORS if facts.find_program(program, directories, host_root))
    return _Programs(criu, runc, decompressors)


async def _program_version(name: str, directories: Sequence[str], pid: int, host_root: str) -> str:
    """Return the version that a program of the node prints, "" when it is not there or does not answer."""
    path = facts.find_program(name, (*directories, "/usr/sbin", "/usr/bin"), host_root)
    if not path:
        return ""
    argv = [path, "--version"]
    if host_root:
        argv = ["nsenter", "--target", str(pid), "--mount", "--root", "--", *argv]
    try:
        process = await start(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(_PROGRAM_TIMEOUT):
            output, _ = await communicate(process)
    except TimeoutError:
        _log.warning("a program of the node does not answer, and counts as absent", program=path)
        output = b""
    match = _VERSION.search(output.decode("utf-8", "replace"))
    return match.group(0) if match else ""


def with_capabilities(info: RuntimeInfo) -> RuntimeInfo:
    version = info.version_tuple()
    pinning = version >= PINNING_SINCE
    overlay = info.snapshotter == "overlayfs"
    capabilities = (
        Capability("pull", available=True, detail="CRI v1"),
        Capability(
            "pull-progress",
            overlay,
            "" if overlay else f"unpacking is not shown layer by layer by snapshotter {info.snapshotter}",
        ),
        Capability(
            "pin",
            pinning,
            ""
            if pinning
            else f"containerd {info.version} does not tell the kubelet of pins (1.7 and later do); "
            "pinned images are only protected from Stoker, and warmed again when kept",
        ),
        Capability(
            "checkpoint",
            bool(info.criu_version),
            f"CRIU {info.criu_version}" if info.criu_version else "no criu on containerd's PATH",
        ),
        Capability(
            "fast-gunzip",
            bool(info.decompressors),
            ", ".join(info.decompressors)
            or "neither igzip (package isal) nor unpigz (package pigz) on containerd's PATH",
        ),
    )
    return replace(info, capabilities=capabilities)
