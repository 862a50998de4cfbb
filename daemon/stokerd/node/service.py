"""`api.ports.NodePort`: what stokerd knows of itself and of its node."""

from __future__ import annotations

import asyncio
import grp
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from stoker.objects.images import SpaceNeed
from stoker.objects.node import CapabilityStatus, Health, NodeInfo
from stokerd import VERSION
from stokerd.errors import RuntimeFailure
from stokerd.images.budget import DiskBudget
from stokerd.images.pressure import io_pressure
from stokerd.images.service import ImageService
from stokerd.images.space import FileSystem
from stokerd.images.views import space
from stokerd.node.advice import Findings, advise
from stokerd.registry.keyring import Keyring
from stokerd.runtime.containerd import Containerd
from stokerd.runtime.types import RuntimeInfo

_PING_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class NodeParts:
    runtime: Containerd
    images: ImageService
    budget: DiskBudget
    keyring: Keyring
    group: str
    now: Callable[[], float] = time.monotonic


class NodeService:
    """Answers for the whole daemon. A part that fails is named, and takes no other down."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._started = parts.now()

    async def health(self) -> Health:
        """Alive, and the runtime answers now."""
        message = await self._runtime_problem()
        parts = {"runtime": message or "ok", "images": self._parts.images.problem or "ok"}
        return Health(ok=not message, message=message, parts=parts)

    async def readiness(self) -> Health:
        """The runtime answers and what was left by earlier runs has been gone through."""
        health = await self.health()
        if health.ok and not self._parts.images.reconciled:
            message = "what earlier runs left is still being gone through"
            return Health(ok=False, message=message, parts={**health.parts, "images": message})
        return health

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
        disk = await self._disk() if info else None
        pressure = await asyncio.to_thread(io_pressure)
        margins = self._parts.budget.margins
        answer = NodeInfo(
            version=VERSION,
            pid=os.getpid(),
            uptime_seconds=round(self._parts.now() - self._started, 3),
            resident_bytes=psutil.Process().memory_info().rss,
            endpoint_tried=[f"{found.path}: {found.problem or 'answers'}" for found in runtime.tried],
            runtime_ready=not problem,
            runtime_message=problem,
            space=space(self._parts.budget.promised, disk, margins) if disk else SpaceNeed(),
            advice=advise(
                Findings(
                    info=info,
                    disk=disk,
                    margins=margins,
                    pressure=pressure,
                    credential_problems=self._parts.keyring.problems,
                    journal_problem=self._parts.images.problem,
                    group=self._parts.group,
                    group_exists=await asyncio.to_thread(_group_exists, self._parts.group),
                )
            ),
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


def _group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True
