"""Checkpoints as a room of the daemon: there from the start, loaded when somebody asks or when there is something to
look after."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from stokerd.errors import RuntimeUnavailable
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.registry.client import RegistryClient
from stokerd.registry.keyring import Keyring
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.types import Capability, RuntimeInfo
from stokerd.settings import CheckpointSettings

if TYPE_CHECKING:
    from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
    from stoker.objects.checkpoints import (
        CheckpointDetail,
        CheckpointInfo,
        CheckpointRequest,
        CloneInfo,
        CloneRequest,
        CommitRequest,
        Operation,
        OperationEvent,
        PauseRequest,
        PauseResult,
        RestoreRequest,
    )
    from stokerd.checkpoints.checking import Asker
    from stokerd.checkpoints.desk import Desk
    from stokerd.checkpoints.shipping import Warmer
    from stokerd.checkpoints.targets import Names

_log = structlog.get_logger("checkpoints")
_LOOK_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the room is made of. ``owner`` marks what this daemon makes in containerd; ``salt`` is random and kept."""

    runtime: NativeRuntime
    journal: CheckpointJournal
    names: Names
    owner: str
    salt: bytes
    registry: CollectorRegistry
    client: RegistryClient
    keyring: Keyring
    warmer: Warmer


class CheckpointRoom:
    """`api.ports.CheckpointsPort`: passes on to `desk`, which is not imported before it is needed: it takes 80 ms and
    4 MiB, and most nodes have no checkpoints."""

    def __init__(self, parts: Parts, settings: CheckpointSettings) -> None:
        self._parts, self._settings = parts, settings
        self._wanted = asyncio.Event()
        self._loaded = asyncio.Event()
        self._nothing = False
        self._desk: Desk | None = None
        self._asker: Asker | None = None
        self._asked = asyncio.Event()

    async def load(self) -> None:
        """See whether an operation was interrupted."""
        if await self._parts.journal.unfinished():
            self._wanted.set()

    async def run(self) -> None:
        """Wait until it is wanted, by somebody or by what an earlier stokerd left; then work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask_criu(), name="checkpoints: does CRIU work?")
            looking = group.create_task(self._look(), name="checkpoints: is anything here?")
            await self._wanted.wait()
            looking.cancel()
            await self._work()

    async def _work(self) -> None:
        if self._desk is None:
            self._desk = await asyncio.to_thread(self._make)
        if not self._loaded.is_set():
            await self._desk.load()
            self._loaded.set()
        await self._desk.run()

    async def _look(self) -> None:
        """Where something is in the directory it is looked after: a container may be frozen."""
        runtime = self._parts.runtime
        while True:
            await runtime.wait_ready()
            try:
                root = runtime.info.host_root
                if await asyncio.to_thread(_holds_anything, root, str(self._settings.directory)):
                    self._wanted.set()
                    return
                if runtime.ready and runtime.info.host_root == root:
                    self._nothing = True
                    return
            except (RuntimeUnavailable, OSError) as error:
                _log.warning("whether there are checkpoints cannot be seen yet", why=str(error))
            await asyncio.sleep(_LOOK_PAUSE)

    async def _ask_criu(self) -> None:
        await self._asked.wait()
        assert self._asker is not None
        await self._asker.run()

    def _make(self) -> Desk:
        names = ("desk", "service", "metrics", "gate")
        desks, services, metrics, gates = (importlib.import_module(f"stokerd.checkpoints.{name}") for name in names)
        parts, settings = self._parts, self._settings
        room = services.Checkpoints(
            parts.runtime,
            str(settings.directory),
            parts.owner,
            manage_criu_config=settings.criu_config == "manage",
            networks_ahead=settings.networks_ahead,
        )
        desk: Desk = desks.Desk(
            parts.runtime,
            room,
            parts.journal,
            parts.names,
            settings,
            parts.salt,
            services.utc_now,
            metrics.CheckpointMetrics(parts.registry),
            gates.Carriers(parts.client, parts.keyring, parts.warmer),
        )
        return desk

    def apply(self, settings: CheckpointSettings) -> None:
        """Go by new settings."""
        self._settings = settings
        if self._desk is not None:
            self._desk.apply(settings)

    @property
    def reconciled(self) -> bool:
        return self._desk.reconciled if self._desk is not None else self._nothing and not self._wanted.is_set()

    @property
    def in_use(self) -> bool:
        """Whether anybody has asked for it, or there was something to look after. Asking this loads nothing."""
        return self._wanted.is_set()

    @property
    def problem(self) -> str:
        return self._desk.problem if self._desk is not None else ""

    async def capabilities(self, info: RuntimeInfo) -> tuple[tuple[Capability, ...], str]:
        """Say what of checkpoints this node can do, and what to do where it cannot.

        CRIU is asked beside whoever wants to know it, once for each start of containerd: until it has answered, what it
        can do is not known, and so not offered.
        """
        checking, table = (
            importlib.import_module(f"stokerd.checkpoints.{name}") for name in ("checking", "capabilities")
        )
        if self._asker is None:
            self._asker = checking.Asker()
            self._asked.set()
        checked = await self._asker.answer(info)
        return table.capabilities(info, os.uname().release, checked), table.remedy(info, checked)

    async def _ready(self) -> Desk:
        self._wanted.set()
        await self._loaded.wait()
        assert self._desk is not None
        return self._desk

    # ------------------------------------------------------------------------------------------ the port

    async def operations(self) -> list[Operation]:
        return await (await self._ready()).operations()

    async def operation(self, name: str) -> Operation:
        return await (await self._ready()).operation(name)

    async def cancel_operation(self, name: str) -> Operation:
        return await (await self._ready()).cancel_operation(name)

    async def follow_operation(self, identity: str) -> AsyncGenerator[OperationEvent, None]:
        desk = await self._ready()
        async with aclosing(desk.follow_operation(identity)) as events:
            async for event in events:
                yield event

    async def create_checkpoint(self, request: CheckpointRequest) -> Operation:
        return await (await self._ready()).create_checkpoint(request)

    async def checkpoints(self) -> list[CheckpointInfo]:
        return await (await self._ready()).checkpoints()

    async def checkpoint(self, name: str) -> CheckpointDetail:
        return await (await self._ready()).checkpoint(name)

    async def verify_checkpoint(self, name: str) -> Operation:
        return await (await self._ready()).verify_checkpoint(name)

    async def remove_checkpoint(self, name: str) -> list[CheckpointInfo]:
        return await (await self._ready()).remove_checkpoint(name)

    async def clone(self, request: CloneRequest) -> Operation:
        return await (await self._ready()).clone(request)

    async def clones(self) -> list[CloneInfo]:
        return await (await self._ready()).clones()

    async def clone_status(self, name: str) -> CloneInfo:
        return await (await self._ready()).clone_status(name)

    async def remove_clone(self, name: str) -> CloneInfo:
        return await (await self._ready()).remove_clone(name)

    async def restore(self, name: str, request: RestoreRequest) -> Operation:
        return await (await self._ready()).restore(name, request)

    async def commit(self, request: CommitRequest) -> Operation:
        return await (await self._ready()).commit(request)

    async def pause(self, request: PauseRequest) -> PauseResult:
        return await (await self._ready()).pause(request)

    async def resume(self, request: PauseRequest) -> PauseResult:
        return await (await self._ready()).resume(request)

    # ------------------------------------------------------------------------------------------ what leaves and enters

    async def push_image(self, request: ImagePushRequest) -> Operation:
        return await (await self._ready()).gate.push_image(request)

    async def push_checkpoint(self, name: str, request: CheckpointPushRequest) -> Operation:
        return await (await self._ready()).gate.push_checkpoint(name, request)

    async def pull_checkpoint(self, request: CheckpointPullRequest) -> Operation:
        return await (await self._ready()).gate.pull_checkpoint(request)

    async def export_checkpoint(self, name: str) -> AsyncGenerator[bytes, None]:
        desk = await self._ready()
        async with aclosing(desk.gate.export_checkpoint(name)) as pieces:
            async for piece in pieces:
                yield piece

    async def import_checkpoint(
        self, pieces: AsyncIterator[bytes], like: str, name: str, *, trust: bool
    ) -> CheckpointInfo:
        return await (await self._ready()).gate.import_checkpoint(pieces, like, name, trust=trust)


def _holds_anything(root: str, directory: str) -> bool:
    """Say whether a directory of the node has files or directories beneath the empty ones that the room makes for
    itself. OSError while that cannot be told: all beneath *root* seems not to be there when containerd ends."""
    found = _has_anything(f"{root}{directory}")
    if not found:
        Path(root or "/").stat()
    return found


def _has_anything(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(not entry.name.startswith(".") or _has_anything(entry.path) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
