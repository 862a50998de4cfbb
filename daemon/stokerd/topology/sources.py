"""The collectors: each reads one source and hands out its outcome; none raises, and none takes longer than it may."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

from stoker.fabrics import dumps
from stoker.fabrics.foreign import plain
from stokerd.settings import TopologySettings
from stokerd.topology import lldpcli, matrix, metadata, nvidia_xml
from stokerd.topology.accelerators import Accelerator
from stokerd.topology.blocking import Blocking, StillHangs
from stokerd.topology.commands import Command, CommandFailed, find
from stokerd.topology.facts import AmdReport, Ports, Tree
from stokerd.topology.knowledge import Nvidia, Outcome
from stokerd.topology.lldp_listener import LldpListener, problem_of
from stokerd.topology.read_amd import read_amd
from stokerd.topology.read_hardware import read_ports, read_tree
from stokerd.topology.sysfs import Sysfs

T = TypeVar("T")
Networks = Mapping[str, tuple[str, ...]]
Fingerprint = tuple[str | None, ...]

_LLDP_SOCKETS = ("/run/lldpd.socket", "/run/lldpd/lldpd.socket", "/var/run/lldpd.socket")


class _Absent(Exception):
    """There is no such source; without a text it is not even worth a word."""


class Sources:
    """All collectors of one machine."""

    def __init__(
        self, settings: TopologySettings, clock: Callable[[], float], heard: Callable[[], None] = lambda: None
    ) -> None:
        """*heard* is called when the neighbours by LLDP are not who they were."""
        self._settings = settings
        self._listener = LldpListener(clock, heard)
        self._ports = Blocking("ports", _read_ports)
        self._links = Blocking("links", _read_links)
        self._nvidia, self._topo, self._lldp = Command(), Command(), Command()
        self._files: dict[str, _FileSource] = {}
        self._seen_ports = Ports()
        self._seen_links: Fingerprint = ()
        self._collect: dict[str, Callable[[], Awaitable[Any]]] = {
            "tree": self._blocking("tree", _read_tree, settings.root),
            "ports": self._read_ports,
            "amd": self._blocking("amd", _read_amd, settings.root),
            "nvidia": self._nvidia_report,
            "lldp": self._lldp_report,
            "fabric": self._file(settings.fabric_file, dumps.LONGEST_DUMP, dumps.parse),
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
        return settings.gpu_interval if name == "nvidia" and not settings.nvidia_file else settings.source_interval

    def close(self) -> None:
        """Hold nothing open any more; a later reading opens it again."""
        self._listener.close()

    async def collect(self, name: str) -> Outcome:
        """Read one source."""
        try:
            return Outcome("ok", data=await self._collect[name]())
        except _Absent as absent:
            return Outcome("absent", str(absent))
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

    def _blocking(self, name: str, function: Callable[..., T], *arguments: Any) -> Callable[[], Awaitable[T]]:
        blocking = Blocking(name, function)
        return lambda: blocking.call(self._settings.read_timeout, *arguments)

    async def _read_ports(self) -> Ports:
        by_subnet = any("subnet=" in rule for rule in self._settings.rules)
        timeout, root = self._settings.read_timeout, self._settings.root
        self._seen_ports, self._seen_links = await self._ports.call(timeout, root, by_subnet, self._seen_ports)
        self._listener.watch({net.name: net.up for net in self._seen_ports.nets if net.layer == "ethernet"})
        return self._seen_ports

    def _file(self, path: str, most: int, parse: Callable[[bytes], T]) -> Callable[[], Awaitable[T]]:
        if path not in self._files:
            self._files[path] = _FileSource(path, most)
        source = self._files[path]

        async def read() -> T:
            if not path:
                raise _Absent
            found: T = await source.read(self._settings.read_timeout, parse)
            return found

        return read

    async def _nvidia_report(self) -> Nvidia:
        settings = self._settings
        if settings.nvidia_file:
            read = self._file(settings.nvidia_file, nvidia_xml.LONGEST, nvidia_xml.parse)
            table = self._file(settings.nvidia_matrix_file, 1 << 20, matrix.parse)
            return _nvidia(await read(), await table() if settings.nvidia_matrix_file else matrix.Matrix())
        program = find(settings.nvidia_smi) if settings.nvidia_smi else ""
        if not program:
            raise _Absent("nvidia-smi is not installed" if settings.nvidia_smi else "")
        limit = settings.read_timeout
        document = await self._nvidia.output([program, "-q", "-x"], timeout=limit, most=nvidia_xml.LONGEST)
        found = nvidia_xml.parse(document)
        if len(found.gpus) < 2:
            return _nvidia(found, matrix.Matrix())
        return _nvidia(
            found, matrix.parse(await self._topo.output([program, "topo", "-m"], timeout=limit, most=1 << 20))
        )

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
            raise _Absent(f"lldpd does not run: {why_no_lldpd}" if self._settings.lldpcli else "")
        try:
            self._listener.open()
        except OSError as error:
            raise _Absent(problem_of(error)) from None
        return self._listener.neighbours()


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False


def _nvidia(found: nvidia_xml.NvidiaReport, table: matrix.Matrix) -> Nvidia:
    return Nvidia(found.gpus, gpu_links(found.gpus, table), found.unread)


def gpu_links(gpus: tuple[Accelerator, ...], table: matrix.Matrix) -> dict[tuple[str, str], str]:
    """Return how GPUs are linked with each other, of a table in which they have the driver's numbers."""
    names = {f"GPU{number}": gpu.address for number, gpu in enumerate(gpus)}
    return {
        (names[one], names[other]): cell
        for one in names
        for other in names
        if one != other and (cell := table.between(one, other)).startswith("NV")
    }


class _FileSource:
    """A file that something else writes; it is read and parsed again when it has changed."""

    def __init__(self, path: str, most: int) -> None:
        self._path = path
        self._most = most
        self._blocking = Blocking(path, self._load)
        self._known: tuple[int, int, int] | None = None
        self._parsed: Any = None

    async def read(self, timeout: float, parse: Callable[[bytes], Any]) -> Any:
        return await self._blocking.call(timeout, parse)

    def _load(self, parse: Callable[[bytes], Any]) -> Any:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(0, "it is no file", self._path)
            state = (found.st_ino, found.st_size, found.st_mtime_ns)
            if state != self._known:
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    self._parsed = parse(file.read(self._most + 1))
                self._known = state
        finally:
            os.close(descriptor)
        return self._parsed


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
    return read_ports(lambda: Sysfs(root), _networks() if by_subnet else None), links


def _read_amd(root: Path) -> AmdReport:
    found = read_amd(Sysfs(root))
    if not found.gpus and not found.unread.count:
        raise _Absent
    return found


def _networks() -> Networks:
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
