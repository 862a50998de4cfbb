"""The collectors: each reads one source and hands out its outcome; none raises, and none takes longer than it may."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stoker.fabrics import dumps
from stoker.fabrics.foreign import plain
from stoker.objects.topology import MachineLoad
from stokerd.errors import StokerError
from stokerd.settings import TopologySettings
from stokerd.topology import amd_smi, lldpcli, metadata
from stokerd.topology.ask_fabric import AskFabric
from stokerd.topology.ask_nvidia import AskNvidia
from stokerd.topology.blocking import Blocking, StillHangs
from stokerd.topology.commands import Command, CommandFailed, find
from stokerd.topology.contents import NodeContents, read_contents
from stokerd.topology.facts import AmdReport, AskedPeers, Contents, Ports, Tree
from stokerd.topology.files import FileSources
from stokerd.topology.flow_control import read_pfc
from stokerd.topology.knowledge import Nvidia
from stokerd.topology.lldp_listener import LldpListener, problem_of
from stokerd.topology.outcomes import Absent, Outcome
from stokerd.topology.read_amd import read_amd
from stokerd.topology.read_hardware import read_ports, read_tree
from stokerd.topology.read_machine import LoadReader
from stokerd.topology.sysfs import Sysfs

T = TypeVar("T")
Networks = Mapping[str, tuple[str, ...]]
Fingerprint = tuple[str | None, ...]

_SELDOM = 12
"""How much less often than others a tool is run that is slow and tells what does not change."""
_LLDP_SOCKETS = ("/run/lldpd.socket", "/run/lldpd/lldpd.socket", "/var/run/lldpd.socket")


class Sources:
    """All collectors of one machine."""

    def __init__(
        self,
        settings: TopologySettings,
        clock: Callable[[], float],
        heard: Callable[[], None] = lambda: None,
        contents: NodeContents | None = None,
    ) -> None:
        """*heard* is called when the neighbours by LLDP are not who they were."""
        self._settings = settings
        self._listener = LldpListener(clock, heard)
        self._ports = Blocking("ports", _read_ports)
        self._links = Blocking("links", _read_links)
        self._load = Blocking("load", LoadReader().read)
        self._lldp, self._amd = Command(), Command()
        self._files = FileSources()
        self._nvidia, self._fabric, self._contents = AskNvidia(self._files), AskFabric(), contents
        self._seen_ports = Ports()
        self._ports_were_read = asyncio.Event()
        self._seen_links: Fingerprint = ()
        self._collect: dict[str, Callable[[], Awaitable[Any]]] = {
            "tree": self._blocking("tree", _read_tree, settings.root),
            "ports": self._read_ports,
            "amd": self._blocking("amd", _read_amd, settings.root),
            "amd_smi": self._ask_amd_smi,
            "nvml": self._ask_library,
            "nvidia": self._ask_nvidia_smi,
            "lldp": self._lldp_report,
            "fabric": self._file(settings.fabric_file, dumps.LONGEST_DUMP, dumps.parse),
            "smp": self._ask_peers,
            "contents": self._read_contents,
            "placement": self._file(settings.placement_file, metadata.LONGEST, metadata.parse),
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The collectors."""
        return tuple(self._collect)

    def apply(self, settings: TopologySettings) -> None:
        """Go by new settings from the next reading on."""
        self._settings = settings

    def interval(self, name: str) -> float:
        """Return how long after a reading the next one is due."""
        settings = self._settings
        if name == "ports":
            return settings.interval
        if name in {"tree", "amd"}:
            return settings.hardware_interval
        if name == "amd_smi":
            return _SELDOM * settings.gpu_interval
        slow = name in {"nvml", "smp"} or (name == "nvidia" and not settings.nvidia_file)
        return settings.gpu_interval if slow else settings.source_interval

    def close(self) -> None:
        """Hold nothing open any more; a later reading opens it again."""
        self._listener.close()

    async def collect(self, name: str) -> Outcome:
        """Read one source."""
        try:
            return Outcome("ok", data=await self._collect[name]())
        except Absent as absent:
            return Outcome("absent", str(absent))
        except StokerError as error:  # of another room, which tells of it itself
            return Outcome("absent", error.message)
        except StillHangs:
            return Outcome("failed", "its last reading still hangs")
        except TimeoutError:
            return Outcome("failed", f"no answer within {self._settings.read_timeout:g} s")
        except CommandFailed as error:
            return Outcome("failed", str(error))
        except OSError as error:
            return Outcome("failed", f"{error.filename or name}: {error.strerror or error}")

    async def links_changed(self) -> bool:
        """Say whether a link is not as it was when the ports were read; no, if that cannot be seen just now."""
        try:
            seen = await self._links.call(self._settings.read_timeout, self._settings.root, self._seen_ports)
        except (TimeoutError, StillHangs):
            return False
        return seen != self._seen_links

    async def load(self) -> MachineLoad:
        """Return how busy the machine is; what cannot be read in time is not in it."""
        try:
            return await self._load.call(self._settings.read_timeout, self._settings.root)
        except (TimeoutError, StillHangs):
            return MachineLoad()

    def _blocking(self, name: str, function: Callable[..., T], *arguments: Any) -> Callable[[], Awaitable[T]]:
        blocking = Blocking(name, function)
        return lambda: blocking.call(self._settings.read_timeout, *arguments)

    async def _read_ports(self) -> Ports:
        by_subnet = any("subnet=" in rule for rule in self._settings.rules)
        timeout, root = self._settings.read_timeout, self._settings.root
        try:
            self._seen_ports, self._seen_links = await self._ports.call(timeout, root, by_subnet, self._seen_ports)
        finally:
            self._ports_were_read.set()
        self._listener.watch({net.name: net.up for net in self._seen_ports.nets if net.layer == "ethernet"})
        return self._seen_ports

    def _file(self, path: str, most: int, parse: Callable[[bytes], T]) -> Callable[[], Awaitable[T]]:
        read = self._files.of(path, most, parse)
        return lambda: read(self._settings.read_timeout)

    async def _ask_amd_smi(self) -> amd_smi.AmdSmi:
        settings = self._settings
        program = find(settings.amd_smi) if settings.amd_smi else ""
        if not program:
            raise Absent  # sysfs says nearly all of it
        limit = settings.read_timeout
        static = [program, "static", "--asic", "--bus", "--vram", "--json"]
        printed = await self._amd.output(static, timeout=limit, most=amd_smi.LONGEST)
        listed = await self._amd.output([program, "list", "--json"], timeout=limit, most=amd_smi.LONGEST)
        return amd_smi.parse(printed, listed)

    async def _ask_library(self) -> Nvidia:
        return await self._nvidia.library(self._settings)

    async def _ask_nvidia_smi(self) -> Nvidia:
        return await self._nvidia.tool(self._settings)

    async def _ask_peers(self) -> AskedPeers:
        async with asyncio.timeout(self._settings.read_timeout):
            await self._ports_were_read.wait()
        return await self._fabric.peers(self._settings, self._seen_ports)

    async def _read_contents(self) -> Contents:
        if self._contents is None:
            raise Absent
        return await read_contents(self._contents, self._settings.read_timeout)

    async def _lldp_report(self) -> lldpcli.LldpNeighbours:
        settings = self._settings
        if settings.lldp_file:
            return await self._file(settings.lldp_file, lldpcli.LONGEST, lldpcli.parse)()
        program = find(settings.lldpcli) if settings.lldpcli else ""
        path = settings.lldp_socket or next((each for each in _LLDP_SOCKETS if _is_socket(each)), "")
        if not program or not _is_socket(path):
            return self._heard(f"there is no socket {path or _LLDP_SOCKETS[0]}" if program else "it is not installed")
        self._listener.close()
        argv = [program, "-u", path, "-f", "json", "show", "neighbors"]
        return lldpcli.parse(await self._lldp.output(argv, timeout=settings.read_timeout, most=lldpcli.LONGEST))

    def _heard(self, why_no_lldpd: str) -> lldpcli.LldpNeighbours:
        if self._settings.lldp_listen == "never":
            raise Absent(f"lldpd does not run: {why_no_lldpd}" if self._settings.lldpcli else "")
        try:
            self._listener.open()
        except OSError as error:
            raise Absent(problem_of(error)) from None
        return self._listener.neighbours()


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False


def _read_tree(root: Path) -> Tree:
    if not (root / "sys").is_dir():
        raise FileNotFoundError(2, "there is no such directory", str(root / "sys"))
    return read_tree(lambda: Sysfs(root))


def _read_ports(root: Path, by_subnet: bool, before: Ports) -> tuple[Ports, Fingerprint]:
    """Return the ports, and how the links of those that were known *before* were just before they were read.

    So a link that changes while they are read is seen as one that has changed, and they are read again.
    """
    if not (root / "sys").is_dir():
        raise FileNotFoundError(2, "there is no such directory", str(root / "sys"))
    links = _read_links(root, before)
    ports = read_ports(lambda: Sysfs(root), _networks() if by_subnet else None)
    return _with_flow_control(ports), links


def _with_flow_control(ports: Ports) -> Ports:
    """Return the ports with what the kernel says of flow control, for those that carry RDMA over Ethernet."""
    roce = {port.netdev for device in ports.rdma for port in device.ports if port.layer == "ethernet"}
    names = [net.name for net in ports.nets if net.name in roce or net.bond in roce - {""}]
    found = read_pfc(names) if names else {}
    if not found:
        return ports
    nets = tuple(msgspec.structs.replace(net, pfc=found.get(net.name)) for net in ports.nets)
    return msgspec.structs.replace(ports, nets=nets)


def _read_amd(root: Path) -> AmdReport:
    found = read_amd(Sysfs(root))
    if not found.gpus and not found.unread.count:
        raise Absent
    return found


def _networks() -> Networks:
    import psutil  # late: 4 MiB, for rules about subnets alone

    families = {socket.AF_INET, socket.AF_INET6}
    return {
        name: tuple(plain(each.address.partition("%")[0], 64) for each in addresses if each.family in families)
        for name, addresses in psutil.net_if_addrs().items()
    }


def _read_links(root: Path, ports: Ports) -> Fingerprint:
    files = Sysfs(root)
    found = [
        files.text(f"sys/class/infiniband/{device.name}/ports/{port.number}/state")
        for device in ports.rdma
        for port in device.ports
    ]
    return (*found, *(files.text(f"sys/class/net/{net.name}/carrier") for net in ports.nets))
