"""`api.ports.CheckpointsPort`: what is asked of the room becomes operations, names become ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime

import structlog

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
from stokerd.checkpoints import asking, views
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.ending import to_the_end
from stokerd.checkpoints.finding import Finder, subject_of
from stokerd.checkpoints.gate import Carriers, Gate, secrets_of
from stokerd.checkpoints.ledger import Ledger
from stokerd.checkpoints.memory import resident
from stokerd.checkpoints.metrics import CheckpointMetrics
from stokerd.checkpoints.retaining import Retainer
from stokerd.checkpoints.running import Runner
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.targets import Names, shown
from stokerd.checkpoints.works import Works, commit_wish
from stokerd.errors import StokerError
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.runtime.protocol import NativeRuntime
from stokerd.settings import CheckpointSettings

_log = structlog.get_logger("checkpoints")


class Desk:
    """`load` first, then `run` in the task group; the rest may be called any time after `load`."""

    def __init__(
        self,
        runtime: NativeRuntime,
        room: Checkpoints,
        journal: CheckpointJournal,
        names: Names,
        settings: CheckpointSettings,
        salt: bytes,
        clock: Callable[[], datetime],
        metrics: CheckpointMetrics,
        carriers: Carriers,
    ) -> None:
        self._runtime, self._room = runtime, room
        self._settings = settings
        self._ledger = Ledger(journal, clock)
        self._works = Works(room, self._ledger, settings, clock)
        self._retainer = Retainer(room, settings, clock)
        self._runner = Runner(room, self._ledger, salt, clock, metrics, self._heed)
        self._finder = Finder(room, names)
        self._clock = clock
        self._networks = asyncio.Event()
        find, targets = self._finder.checkpoint, self._finder.targets
        self.gate = Gate(runtime, carriers, room, self._ledger, self._runner.accept, find, targets, clock)
        """What leaves the node and enters it."""

    # ------------------------------------------------------------------------------------------ life

    async def load(self) -> None:
        """Take up what the journal says. What had not ended is looked at by `run`."""
        await self._runner.load()

    def apply(self, settings: CheckpointSettings) -> None:
        """Let new settings hold, without losing any work."""
        ahead = settings.networks_ahead != self._settings.networks_ahead
        self._settings = settings
        self._works.apply(settings)
        if ahead:
            self._networks.set()
        self._retainer.apply(settings)

    async def run(self) -> None:
        """Do the work until cancelled; what is under way then is undone. May run again after it has failed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._room.run(), name="checkpoints: room")
            group.create_task(self._runner.run(lambda: self._settings.operation_ttl), name="checkpoints: operations")
            group.create_task(self._retain(), name="checkpoints: retention")
            group.create_task(self._connect(), name="checkpoints: so many networks ahead")

    @property
    def reconciled(self) -> bool:
        return self._runner.settled

    @property
    def problem(self) -> str:
        """What is wrong, empty when nothing is."""
        return self._ledger.problem

    def _heed(self, ended: Operation) -> None:
        """With every new checkpoint there may be one too many."""
        if ended.phase == "Succeeded" and ended.checkpoints and ended.kind != "Verify":
            self._retainer.look()

    async def _retain(self) -> None:
        await self._room.cleared.wait()
        await self._retainer.run()

    async def _connect(self) -> None:
        while True:
            await self._networks.wait()
            self._networks.clear()
            try:
                await self._room.connect(self._settings.networks_ahead)
            except (StokerError, OSError) as error:
                _log.warning("networks cannot be made ahead now", why=str(error))

    # ------------------------------------------------------------------------------------------ operations

    async def operations(self) -> list[Operation]:
        return self._ledger.operations

    async def operation(self, name: str) -> Operation:
        return self._ledger.find(name)

    async def cancel_operation(self, name: str) -> Operation:
        """End an operation and have undone what it has begun; one that has ended stays as it is."""
        return await self._runner.cancel(name)

    def follow_operation(self, identity: str) -> AsyncGenerator[OperationEvent, None]:
        return self._ledger.follow(identity)

    # ------------------------------------------------------------------------------------------ checkpoints

    async def create_checkpoint(self, request: CheckpointRequest) -> Operation:
        asking.check_checkpoint(request)
        known = self._runner.same("Checkpoint", request, request.request)
        if known is not None:
            return known
        targets = await self._finder.targets(request.pod, request.containers)

        async def work(identity: str) -> Operation:
            return await self._works.checkpoint(identity, targets, self._works.wish(request, identity))

        return await self._runner.accept(
            "Checkpoint", request, request.request, shown(targets), work, desired=len(targets)
        )

    async def checkpoints(self) -> list[CheckpointInfo]:
        """Return all that are complete, the newest first."""
        users = await self._room.users()
        return [views.checkpoint(each, users[each.id]) for each in reversed(await self._room.list())]

    async def checkpoint(self, name: str) -> CheckpointDetail:
        manifest = await self._finder.checkpoint(name)
        clones = [each.id for each in await self._room.clones() if each.checkpoint == manifest.id]
        return views.checkpoint_detail(manifest, clones, str(self._settings.directory))

    async def verify_checkpoint(self, name: str) -> Operation:
        found = await self._finder.together(name)

        async def work(identity: str) -> Operation:
            return await self._works.verify(identity, found)

        subject = subject_of(found)
        return await self._runner.accept(
            "Verify", CheckpointRequest(pod=subject), "", subject, work, desired=len(found)
        )

    async def remove_checkpoint(self, name: str) -> list[CheckpointInfo]:
        """Remove one, or all that were taken together; return them."""
        found = await self._finder.together(name)
        await self._room.remove(found[0].group if len(found) > 1 else found[0].id)
        _log.info("checkpoint is removed", ids=[each.id for each in found])
        return [views.checkpoint(each) for each in found]

    # ------------------------------------------------------------------------------------------ clones

    async def clone(self, request: CloneRequest) -> Operation:
        asking.check_clone(request, self._settings.max_clones_per_request)
        known = self._runner.same("Clone", request, request.request)
        if known is not None:
            return known
        manifest = await self._finder.checkpoint(request.checkpoint)

        async def work(identity: str) -> Operation:
            return await self._works.clone(identity, manifest, request)

        return await self._runner.accept(
            "Clone",
            request,
            request.request,
            subject_of((manifest,)),
            work,
            desired=request.count,
            secrets_=asking.secrets_of(request),
        )

    async def clones(self) -> list[CloneInfo]:
        """Return all clones, the newest first."""
        found = await self._room.clones()
        memory = {each.id: views.memory_of(each) for each in await self._room.list()}
        seen = await asyncio.gather(*(self._seen(each, memory.get(each.checkpoint, 0)) for each in found))
        return sorted(seen, key=lambda each: (each.created_at or self._clock(), each.id), reverse=True)

    async def clone_status(self, name: str) -> CloneInfo:
        found = await self._finder.clone(name)
        memory = {each.id: views.memory_of(each) for each in await self._room.list()}
        return await self._seen(found, memory.get(found.checkpoint, 0))

    async def remove_clone(self, name: str) -> CloneInfo:
        found = await self._finder.clone(name)
        await self._room.remove_clone(found.id)
        _log.info("clone is removed", id=found.id)
        return views.clone(found, None)

    async def restore(self, name: str, request: RestoreRequest) -> Operation:
        found = await self._finder.together(name)

        async def work(identity: str) -> Operation:
            return await self._works.restore(identity, found, request)

        subject = subject_of(found)
        whole = CloneRequest(checkpoint=subject, mode=request.mode)
        return await self._runner.accept("Restore", whole, request.request, subject, work, desired=len(found))

    async def _seen(self, clone: Clone, memory: int) -> CloneInfo:
        task = await self._runtime.tasks.get(clone.id)
        state = task.state if task is not None else None
        here = 0
        if clone.memory == "loading" and state not in {None, "stopped"}:
            here = await resident(self._runtime, clone.id)
        return views.clone(clone, state, memory=memory, resident=here)

    # ------------------------------------------------------------------------------------------ commits, pauses

    async def commit(self, request: CommitRequest) -> Operation:
        asking.check_commit(request)
        wish = commit_wish(request)
        known = self._runner.same("Commit", request, request.request)
        if known is not None:
            return known
        target = await self._finder.target(request.container)

        async def work(identity: str) -> Operation:
            made = await self._works.commit(identity, target, wish)
            return await self.gate.after_commit(identity, made, wish.name, request.auths) if request.push else made

        subject, hidden = f"{target.shown} as {wish.name}", secrets_of(request.auths)
        return await self._runner.accept("Commit", request, request.request, subject, work, secrets_=hidden)

    async def pause(self, request: PauseRequest) -> PauseResult:
        """Freeze containers; when one cannot be, those that this call has frozen go on."""
        targets = await self._finder.targets(request.pod, request.containers)
        frozen: list[str] = []
        try:
            for target in targets:
                task = await self._runtime.tasks.get(target.id)
                if task is not None and task.state == "running":
                    frozen.append(target.id)
                await self._room.pause(target.id)
        except BaseException:
            await to_the_end(self._thaw(frozen), f"thaw {shown(targets)}")
            raise
        return PauseResult(containers=[views.paused(each, frozen=True) for each in targets])

    async def _thaw(self, containers: Sequence[str]) -> None:
        for container in containers:
            try:
                await self._room.resume(container)
            except StokerError as error:
                _log.warning("cannot thaw a container", container=container, why=error.message)

    async def resume(self, request: PauseRequest) -> PauseResult:
        targets = await self._finder.targets(request.pod, request.containers)
        for target in targets:
            await self._room.resume(target.id)
        return PauseResult(containers=[views.paused(each, frozen=False) for each in targets])
