"""What has to be known of containers before they are frozen; what cannot work is refused here."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
import structlog

from stokerd.checkpoints.errors import CheckpointRefused
from stokerd.checkpoints.model import Intent, Tell, Wish, untold
from stokerd.checkpoints.overlay import Root, root_of
from stokerd.checkpoints.preflight import Facts, Obstacle, fits_into_dump, obstacles, together
from stokerd.checkpoints.scratch import Tried
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.surveying import Survey, sees_all
from stokerd.errors import NotFound, RuntimeFailure, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.task_types import ContainerRecord, Task
from stokerd.runtime.types import Usage

_log = structlog.get_logger("checkpoints")
_USAGE_TRIES = 5


class Job(msgspec.Struct, frozen=True):
    """The checkpoint of one container, under way; ``together`` is how many are made in the same freeze. ``quick``: it
    stands only while CRIU holds it, and its files are copied meanwhile."""

    id: str
    wish: Wish
    record: ContainerRecord
    task: Task
    upper: str
    parent: str
    began: datetime
    group: str = ""
    together: int = 1
    tell: Tell = untold
    quick: bool = False
    tried: Tried | None = None
    """A quick dump of it that was not quick enough."""

    @property
    def intent(self) -> Intent:
        stop = not self.wish.leave_running and not self.wish.ended_by_criu(self.together)
        was_paused = self.task.state == "paused"
        return Intent(self.id, self.record.id, self.began, was_paused=was_paused, stop=stop, group=self.group)


class Found(msgspec.Struct, frozen=True):
    """What was found out of one container."""

    record: ContainerRecord
    task: Task
    root: Root | None
    facts: Facts


def new_id(now: datetime, kind: str = "cp") -> str:
    return f"{kind}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


class Preparer:
    """Finds out. *survey* reads the machine."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf, survey: Survey, clock: Callable[[], datetime]) -> None:
        self._runtime, self._shelf, self._survey, self._clock = runtime, shelf, survey, clock

    async def prepare(
        self, container_ids: Sequence[str], wish: Wish, tell: Tell, *, grouped: bool = False, quick: bool = False
    ) -> tuple[Job, ...]:
        """Look at all containers. CheckpointRefused names everything that stands in the way of any of them.

        *quick* allows jobs to be so.
        """
        found = [await self._find(each) for each in container_ids]
        facts = together(tuple(each.facts for each in found))
        ways = [obstacles(each, wish.tcp) for each in facts]
        if any(ways):
            raise _refusal(dict(zip(container_ids, ways, strict=True)))
        now = self._clock()
        group = new_id(now, "group") if grouped else ""
        jobs = [await self._job(each, wish, now, group, len(found), tell) for each in found]
        quick = quick and len(jobs) == 1 and wish.leave_running and fits_into_dump(facts[0])
        return tuple(msgspec.structs.replace(job, quick=quick) for job in jobs)

    async def _find(self, container_id: str) -> Found:
        record = await self._runtime.records.get(container_id)
        task = await self._runtime.tasks.get(container_id)
        if record is None or task is None:
            raise NotFound(f"no container {container_id} runs here")
        root = await self._root(record)
        facts = Facts(self._runtime.info.criu_version, task.state, overlay=root is not None)
        if task.state in {"running", "paused"} and root is not None:
            facts = await self._look(facts, record, task, root)
        return Found(record, task, root, facts)

    async def _root(self, record: ContainerRecord) -> Root | None:
        if record.snapshotter != self._runtime.info.snapshotter or not record.snapshot_key:
            return None
        root = root_of(await self._runtime.snapshots.mounts(record.snapshot_key))
        return root if root is not None and root.upper else None

    async def _look(self, facts: Facts, record: ContainerRecord, task: Task, root: Root) -> Facts:
        pids = await self._runtime.tasks.pids(record.id)
        usage = await self._usage(record.snapshot_key)
        if usage is not None:
            facts = msgspec.structs.replace(facts, upper_bytes=usage.bytes, upper_inodes=usage.inodes)
        facts = msgspec.structs.replace(facts, sees_all=await asyncio.to_thread(sees_all, self._runtime.info.pid))
        ordered = (task.pid, *(pid for pid in pids if pid != task.pid))
        prefix, spec = self._runtime.info.host_root, record.document()
        return await asyncio.to_thread(self._survey, facts, ordered, spec, self._shelf.directory, root.upper, prefix)

    async def _usage(self, snapshot: str) -> Usage | None:
        """Ask for the space of an active snapshot. containerd walks it, and fails when a file vanishes meanwhile."""
        for _ in range(_USAGE_TRIES):
            try:
                return await self._runtime.snapshots.usage(snapshot)
            except RuntimeUnavailable:
                raise
            except RuntimeFailure as error:
                _log.debug("the space of a root filesystem is not known yet", snapshot=snapshot, why=error.message)
        return None

    async def _job(self, found: Found, wish: Wish, now: datetime, group: str, number: int, tell: Tell) -> Job:
        assert found.root is not None
        info = await self._runtime.snapshots.stat(found.record.snapshot_key)
        parent = info.parent if info is not None else ""
        return Job(new_id(now), wish, found.record, found.task, found.root.upper, parent, now, group, number, tell)


def _refusal(ways: dict[str, tuple[Obstacle, ...]]) -> CheckpointRefused:
    """Say it of one container as of one; of several, each cause begins with whose it is."""
    who = [container for container, found in ways.items() if found]
    mark = len(ways) > 1
    lines = [(f"{container}: " if mark else "", each) for container in who for each in ways[container]]
    causes = tuple(f"{head}{each.message} ({each.hint})" if each.hint else head + each.message for head, each in lines)
    return CheckpointRefused(
        f"container {', '.join(who)} cannot be checkpointed: {'; '.join(each.message for _, each in lines)}",
        causes=causes,
        hint=next((each.hint for _, each in lines if each.hint), None),
    )
