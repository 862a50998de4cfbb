"""Cron jobs over a store: made once, replaced, cleaned up, whatever the clock and the coordinator do."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from stoker.objects.cluster_images import (
    AdvancedCronJob,
    AdvancedCronJobSpec,
    CronTemplate,
    ImageListPullJob,
    ImageListPullJobSpec,
    ListPullJobStatus,
    ListPullJobTemplate,
)
from stoker.objects.meta import ObjectMeta
from stoker_coordinator.controllers.crons import KINDS, Crons
from tests.unit.coordinator.controllers.scene import Runs, Scene
from tests.unit.images.virtual import virtual

HOUR = 3600.0


def crons(scene: Scene) -> AbstractAsyncContextManager[Runs]:
    return scene.running(KINDS, lambda informer: Crons(scene.store, informer, clock=scene.now))


async def made(scene: Scene, schedule: str = "0 * * * *", **more: Any) -> AdvancedCronJob:
    template = ListPullJobTemplate(ImageListPullJobSpec(images=("a:1",)), ObjectMeta(labels={"by": "cron"}))
    spec = AdvancedCronJobSpec(schedule, CronTemplate(template), **more)
    return await scene.store.create(AdvancedCronJob(metadata=ObjectMeta(name="nightly", namespace="ns"), spec=spec))


async def jobs(scene: Scene) -> list[ImageListPullJob]:
    return list((await scene.store.list(ImageListPullJob)).items)


async def finish(scene: Scene) -> None:
    for job in await jobs(scene):
        if job.status.completion_time is None:
            over = replace(job, status=ListPullJobStatus(completion_time=scene.now()))
            await scene.store.update(over, status=True)


@virtual
async def test_a_job_is_made_each_time_with_its_owner_and_labels() -> None:
    scene = Scene()
    owner = await made(scene)
    async with crons(scene):
        await asyncio.sleep(HOUR)
        (job,) = await jobs(scene)
        assert job.metadata.labels == {"by": "cron"}
        assert [each.uid for each in job.metadata.owner_references] == [owner.metadata.uid]
        status = (await scene.store.get(AdvancedCronJob, "nightly", "ns")).status
        assert [each.name for each in status.active] == [job.metadata.name]
        assert status.next_schedule_time is not None
        assert status.last_schedule_time is not None
        assert status.next_schedule_time - status.last_schedule_time == timedelta(hours=1)


@virtual
async def test_a_coordinator_that_comes_back_starts_nothing_twice() -> None:
    scene = Scene()
    await made(scene, "* * * * *", concurrency_policy="Allow", successful_jobs_history_limit=100)
    for _ in range(20):
        async with crons(scene):
            await asyncio.sleep(29)
    names = [job.metadata.name for job in await jobs(scene)]
    assert len(names) == len(set(names)) == 10


@virtual
async def test_a_clock_set_back_starts_nothing_twice_and_one_set_forward_starts_once() -> None:
    scene = Scene()
    await made(scene, concurrency_policy="Allow")
    async with crons(scene):
        await asyncio.sleep(HOUR)
        scene.shift = timedelta(hours=-5)
        await asyncio.sleep(2 * HOUR)
        assert len(await jobs(scene)) == 1
        scene.shift = timedelta(hours=48)
        await asyncio.sleep(120)
        assert len(await jobs(scene)) == 2
        assert (await scene.store.get(AdvancedCronJob, "nightly", "ns")).status.missed > 40


@virtual
async def test_replace_ends_the_former_job_and_forbid_leaves_the_new_one_out() -> None:
    for policy, count in (("Replace", 1), ("Forbid", 1), ("Allow", 3)):
        scene = Scene()
        await made(scene, concurrency_policy=policy)
        async with crons(scene):
            await asyncio.sleep(3 * HOUR)
            names = [job.metadata.name for job in await jobs(scene)]
            assert len(names) == count
            missed = (await scene.store.get(AdvancedCronJob, "nightly", "ns")).status.missed
            assert missed == (2 if policy == "Forbid" else 0)


@virtual
async def test_old_jobs_go_and_the_youngest_stay() -> None:
    scene = Scene()
    await made(scene, successful_jobs_history_limit=2)
    async with crons(scene):
        for _ in range(5):
            await asyncio.sleep(HOUR)
            await finish(scene)
        await asyncio.sleep(10)
        kept = sorted(job.metadata.creation_timestamp for job in await jobs(scene) if job.metadata.creation_timestamp)
        assert len(kept) == 2
        assert scene.now() - kept[0] < timedelta(hours=2)


@virtual
async def test_paused_and_resumed() -> None:
    scene = Scene()
    await made(scene, paused=True)
    async with crons(scene):
        await asyncio.sleep(2 * HOUR)
        assert await jobs(scene) == []
        await scene.store.patch(
            AdvancedCronJob, "nightly", "ns", patch={"spec": {"paused": False, "startingDeadlineSeconds": 60}}
        )
        await asyncio.sleep(HOUR)
        assert len(await jobs(scene)) == 1


@virtual
async def test_a_cron_job_takes_its_jobs_with_it_only_by_their_owner() -> None:
    scene = Scene()
    await made(scene)
    async with crons(scene):
        await asyncio.sleep(HOUR)
        await scene.store.delete(AdvancedCronJob, "nightly", "ns")
        await asyncio.sleep(2 * HOUR)
        assert len(await jobs(scene)) <= 1
