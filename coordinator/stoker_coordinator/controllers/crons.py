"""AdvancedCronJobs make pull jobs when their time comes, and remove old ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from functools import partial

import structlog
from msgspec.structs import replace

from stoker.objects.cluster_images import AdvancedCronJob, ImageListPullJob
from stoker.objects.meta import Condition, Object, ObjectMeta, ObjectReference, OwnerReference
from stoker_coordinator.controllers import cron
from stoker_coordinator.controllers.cron import Turn
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.controllers.pulljobs import merged
from stoker_coordinator.controllers.writing import Writer
from stoker_coordinator.errors import AlreadyExists, NotFound
from stoker_coordinator.objects.schedules import BadSchedule
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("controllers")
_LONGEST_SLEEP = 60.0

KINDS = (AdvancedCronJob, ImageListPullJob)
"""What the informer must follow."""


class Crons:
    """`run` belongs to the coordinator's task group."""

    def __init__(self, store: Store, informer: Informer, *, clock: Callable[[], datetime]) -> None:
        self._store, self._informer, self._clock = store, informer, clock
        self._writer = Writer(width=8)
        self._crons: dict[str, AdvancedCronJob] = {}
        self._jobs: dict[str, dict[str, ImageListPullJob]] = {}
        """Of each cron job, by uid."""
        self._wake = asyncio.Event()
        informer.hear(self._hear)

    async def run(self) -> None:
        """Start jobs when they are due, until cancelled."""
        await self._informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writer.run(), name="cron jobs: writes")
            group.create_task(self._steer(), name="cron jobs: steer")

    def _hear(self, old: Object | None, new: Object | None) -> None:
        match new if new is not None else old:
            case AdvancedCronJob() as made:
                self._crons.pop(made.metadata.uid, None)
                if new is not None and not made.deleting:
                    self._crons[made.metadata.uid] = made
            case ImageListPullJob() as job:
                for owner in job.metadata.owner_references:
                    if owner.kind == "AdvancedCronJob":
                        jobs = self._jobs.setdefault(owner.uid, {})
                        jobs.pop(job.metadata.uid, None)
                        if new is not None:
                            jobs[job.metadata.uid] = job
                        if not jobs:
                            del self._jobs[owner.uid]
            case _:
                return
        self._wake.set()

    async def _steer(self) -> None:
        while True:
            self._wake.clear()
            now = self._clock()
            ahead = [_LONGEST_SLEEP]
            for made in list(self._crons.values()):
                if not self._writer.pending(made.metadata.uid):
                    ahead.append(self._look(made, now))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, min(ahead))):
                    await self._wake.wait()

    def _look(self, made: AdvancedCronJob, now: datetime) -> float:
        """Do what is due; return for how many seconds nothing is."""
        jobs = list(self._jobs.get(made.metadata.uid, {}).values())
        running = [job for job in jobs if job.status.completion_time is None and not job.deleting]
        created = made.metadata.creation_timestamp or now
        try:
            turn = cron.turn(made.spec, created, made.status.last_schedule_time, len(running), now)
        except BadSchedule as error:  # a time zone that this machine does not know any more
            self._write(made, partial(self._refused, str(error), now))
            return _LONGEST_SLEEP
        for name in cron.outlived(jobs, made.spec):
            self._delete(name, made.metadata.namespace)
        active = tuple(sorted((_reference(job) for job in running), key=lambda each: each.name))
        status = made.status
        if turn.scheduled is not None or status.active != active or status.next_schedule_time != turn.next:
            old = [job.metadata.name for job in running] if turn.replace else []
            self._writer.put(made.metadata.uid, lambda: self._act(made, turn, active, old, now), self._woken)
        return (turn.next - now).total_seconds()

    def _woken(self, _: str) -> None:
        self._wake.set()

    async def _act(
        self, made: AdvancedCronJob, turn: Turn, active: tuple[ObjectReference, ...], old: list[str], now: datetime
    ) -> None:
        """Make the job, which has the same name however often this is tried, and only then remember its time."""
        for name in old:
            await self._remove(name, made.metadata.namespace)
        if turn.start is not None:
            with contextlib.suppress(AlreadyExists):
                await self._store.create(_job(made, turn.start))
                _log.info("a cron job starts", cron=str(made.key), scheduled=turn.start.isoformat())
        elif turn.missed:
            _log.warning("a cron job missed its time", cron=str(made.key), why=turn.why)

        def change(kept: AdvancedCronJob) -> AdvancedCronJob:
            status = replace(
                kept.status,
                type="ImageListPullJob",
                active=active,
                last_schedule_time=turn.scheduled or kept.status.last_schedule_time,
                next_schedule_time=turn.next,
                missed=kept.status.missed + turn.missed,
                conditions=_conditions(kept, "", now),
                observed_generation=kept.metadata.generation,
            )
            return replace(kept, status=status)

        await self._change(made, change)

    def _write(self, made: AdvancedCronJob, change: Callable[[AdvancedCronJob], AdvancedCronJob]) -> None:
        self._writer.put(made.metadata.uid, lambda: self._change(made, change))

    @staticmethod
    def _refused(why: str, now: datetime, kept: AdvancedCronJob) -> AdvancedCronJob:
        return replace(
            kept, status=replace(kept.status, conditions=_conditions(kept, why, now), next_schedule_time=None)
        )

    async def _change(self, made: AdvancedCronJob, change: Callable[[AdvancedCronJob], AdvancedCronJob]) -> None:
        meta = made.metadata

        def same(kept: AdvancedCronJob) -> AdvancedCronJob:
            return change(kept) if kept.metadata.uid == meta.uid else kept

        with contextlib.suppress(NotFound):
            await self._store.change(AdvancedCronJob, meta.name, meta.namespace, change=same, status=True)

    def _delete(self, name: str, namespace: str) -> None:
        self._writer.put(("delete", namespace, name), lambda: self._remove(name, namespace))

    async def _remove(self, name: str, namespace: str) -> None:
        with contextlib.suppress(NotFound):
            await self._store.delete(ImageListPullJob, name, namespace)


def _reference(job: ImageListPullJob) -> ObjectReference:
    meta = job.metadata
    return ObjectReference(kind=job.kind, name=meta.name, namespace=meta.namespace, uid=meta.uid)


def _job(made: AdvancedCronJob, scheduled: datetime) -> ImageListPullJob:
    template, meta = made.spec.template.image_list_pull_job_template, made.metadata
    owner = OwnerReference(made.api_version, made.kind, meta.name, meta.uid, controller=True)
    return ImageListPullJob(
        metadata=ObjectMeta(
            name=cron.job_name(meta.name, scheduled),
            namespace=meta.namespace,
            labels=template.metadata.labels,
            annotations={**template.metadata.annotations, "stoker.dev/scheduled-at": scheduled.isoformat()},
            owner_references=(owner,),
        ),
        spec=template.spec,
    )


def _conditions(kept: AdvancedCronJob, problem: str, now: datetime) -> tuple[Condition, ...]:
    fresh = Condition(
        type="Scheduled",
        status="False" if problem or kept.spec.paused else "True",
        reason="BadSchedule" if problem else "Paused" if kept.spec.paused else "",
        message=problem,
    )
    return merged(kept.status.conditions, [fresh], kept.metadata.generation, now)
