"""`api.ports.NodePort`: what stokerd knows of itself and of its node."""

from __future__ import annotations

import asyncio
import grp
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from stoker.objects.containers import ReloadResult
from stoker.objects.images import SpaceNeed
from stoker.objects.node import CapabilityStatus, CoordinatorLink, Health, NodeInfo
from stokerd import VERSION
from stokerd.errors import RuntimeFailure
from stokerd.images.budget import DiskBudget
from stokerd.images.pressure import io_pressure
from stokerd.images.space import FileSystem
from stokerd.images.views import space
from stokerd.metrics import resident_bytes
from stokerd.node.advice import Findings, advise
from stokerd.node.health import Part, health_of, readiness_of
from stokerd.registry.keyring import Keyring
from stokerd.runtime.containerd import Containerd
from stokerd.runtime.types import Capability, RuntimeInfo

if TYPE_CHECKING:  # loaded when the topology is
    from stoker.objects.topology import TopologyFinding

_PING_TIMEOUT = 5.0


class Room(Protocol):
    """What a capability of the daemon says of itself."""

    @property
    def reconciled(self) -> bool: ...
    @property
    def problem(self) -> str: ...


class Control(msgspec.Struct, frozen=True):
    """What the life cycle lets be asked and done."""

    reload: Callable[[], Awaitable[ReloadResult]]
    settings: Callable[[], dict[str, dict[str, object]]]
    recent_logs: Callable[[], list[str]]
    config_problem: Callable[[], str]
    """Why the configuration file could not be used at the last reload; empty when it could."""
    failures: Callable[[], Mapping[str, str]]
    """Subsystems that have failed, and why."""


class NodeParts(msgspec.Struct, frozen=True):
    runtime: Containerd
    rooms: Mapping[str, Room]
    budget: DiskBudget
    keyring: Keyring
    group: str
    control: Control
    checkpoints: Callable[[RuntimeInfo], Awaitable[tuple[Sequence[Capability], str]]]
    """What of checkpoints the node can do, and what to do where it cannot."""
    topology: Callable[[], Sequence[TopologyFinding]] = tuple
    """The faults that the node's topology shows, as far as it is known."""
    coordinator: Callable[[], CoordinatorLink | None] = lambda: None
    """How the node stands with its coordinator, if it has one."""
    now: Callable[[], float] = time.monotonic


class NodeService:
    """Answers for the whole daemon. A part that fails is named, and takes no other down."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._started = parts.now()

    async def health(self) -> Health:
        """Alive, and the runtime answers now."""
        return health_of(await self._runtime_problem(), self._rooms())

    async def readiness(self) -> Health:
        """The runtime answers, every subsystem runs, and what was left by earlier runs has been gone through."""
        return readiness_of(await self._runtime_problem(), self._rooms())

    def _rooms(self) -> dict[str, Part]:
        failures = self._parts.control.failures()
        return {
            name: Part(failures.get(name, ""), room.problem, room.reconciled)
            for name, room in self._parts.rooms.items()
        }

    async def reload(self) -> ReloadResult:
        """Read the configuration file again; ConfigError leaves everything as it was."""
        return await self._parts.control.reload()

    def settings(self) -> dict[str, dict[str, object]]:
        """Return the settings that hold, as plain values by table and key; they hold no secret."""
        return self._parts.control.settings()

    def recent_logs(self) -> list[str]:
        """Return the last log lines as JSON, oldest first."""
        return self._parts.control.recent_logs()

    def _problems(self) -> str:
        return "; ".join(sorted({room.problem for room in self._parts.rooms.values() if room.problem}))

    async def _runtime_problem(self) -> str:
        try:
            async with asyncio.timeout(_PING_TIMEOUT):
                await self._parts.runtime.ping()
        except RuntimeFailure as error:
            return error.message
        except TimeoutError:
            return f"containerd did not answer for {_PING_TIMEOUT:g} s"
        return ""

    async def info(self) -> NodeInfo:
        runtime = self._parts.runtime
        problem = await self._runtime_problem()
        info = runtime.info if runtime.ready else None
        remedy = ""
        if info is not None:
            more, remedy = await self._parts.checkpoints(info)
            info = with_capabilities(info, more)
        disk = await self._disk() if info else None
        pressure = await asyncio.to_thread(io_pressure)
        margins = self._parts.budget.margins
        coordinator = self._parts.coordinator()
        answer = NodeInfo(
            version=VERSION,
            pid=os.getpid(),
            uptime_seconds=round(self._parts.now() - self._started, 3),
            resident_bytes=resident_bytes(),
            endpoint_tried=[f"{found.path}: {found.problem or 'answers'}" for found in runtime.tried],
            runtime_ready=not problem,
            runtime_message=problem,
            space=space(self._parts.budget.promised, disk, margins) if disk else SpaceNeed(),
            advice=advise(
                Findings(
                    info=info,
                    criu_remedy=remedy,
                    disk=disk,
                    margins=margins,
                    pressure=pressure,
                    credential_problems=self._parts.keyring.problems,
                    journal_problem=self._problems(),
                    group=self._parts.group,
                    group_exists=await asyncio.to_thread(_group_exists, self._parts.group),
                    config_problem=self._parts.control.config_problem(),
                    topology=self._parts.topology(),
                    coordinator=(coordinator, datetime.now(UTC)) if coordinator is not None else None,
                )
            ),
            coordinator=coordinator,
        )
        if info is not None:
            _describe(answer, info)
        return answer

    async def _disk(self) -> FileSystem | None:
        try:
            return await self._parts.budget.read()
        except (OSError, RuntimeFailure):
            return None


def _describe(answer: NodeInfo, info: RuntimeInfo) -> None:
    answer.endpoint = info.endpoint
    answer.runtime_name = info.name
    answer.runtime_version = info.version
    answer.runtime_root = info.root
    answer.snapshotter = info.snapshotter
    answer.storage_fs = info.storage_fs
    answer.runc_version = info.runc_version
    answer.criu_version = info.criu_version
    answer.cgroup_mode = info.cgroup_mode.value
    answer.capabilities = [
        CapabilityStatus(name=entry.name, available=entry.available, detail=entry.detail) for entry in info.capabilities
    ]


def with_capabilities(info: RuntimeInfo, more: Sequence[Capability]) -> RuntimeInfo:
    """Return *info* with *more* in its table, in the place of rows of the same name."""
    new = {entry.name: entry for entry in more}
    kept = [new.pop(entry.name, entry) for entry in info.capabilities]
    return replace(info, capabilities=(*kept, *new.values()))


def _group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True
