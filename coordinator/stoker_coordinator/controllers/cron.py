"""When an AdvancedCronJob starts its next pull job, and which old ones go. Pure.

Times are UTC outside; the schedule is read in the time zone that the object names. A time of day that a zone leaves out
(the clock is put forward) does not come that day; one that comes twice (it is put back) counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter
from msgspec import Struct

from stoker.objects.cluster_images import AdvancedCronJobSpec, ConcurrencyPolicy, ImageListPullJob
from stoker_coordinator.objects.schedules import zone

_MOST_MISSED = 100


class Turn(Struct, frozen=True):
    """What is to happen now. ``start``: the scheduled time of the job to be made, None: none is due.

    ``scheduled``: the last time that was due, to be remembered, whether a job was made for it or not. ``replace``:
    running jobs to end before. ``missed``: how many starts did not happen (100 at most are counted), and ``why`` so.
    """

    start: datetime | None
    next: datetime
    scheduled: datetime | None = None
    replace: bool = False
    missed: int = 0
    why: str = ""


def following(schedule: str, time_zone: str, moment: datetime) -> datetime:
    """Return the first time after *moment*, in UTC."""
    where = zone(time_zone)
    # An hour that comes twice: its first half is looked through again, whatever half *moment* is in.
    wall = croniter(schedule, moment.astimezone(where).replace(tzinfo=None))
    while True:
        found = _real(wall.get_next(datetime), where)
        if found is not None and found > moment:
            return found


def preceding(schedule: str, time_zone: str, moment: datetime) -> datetime:
    """Return the last time until *moment*, in UTC."""
    where = zone(time_zone)
    # From a day later on, as the wall clock may have been put back meanwhile.
    wall = croniter(schedule, moment.astimezone(where).replace(tzinfo=None) + timedelta(days=1))
    while True:
        found = _real(wall.get_prev(datetime), where)
        if found is not None and found <= moment:
            return found


def _real(wall: datetime, where: ZoneInfo) -> datetime | None:
    """Return when the clock shows this, for the first time; None when it never does."""
    local = wall.replace(tzinfo=where, fold=0)
    found = local.astimezone(UTC)
    return found if found.astimezone(where).replace(tzinfo=None) == wall else None


def turn(spec: AdvancedCronJobSpec, created: datetime, last: datetime | None, running: int, now: datetime) -> Turn:
    """Decide. *last*: the time that was last seen to; it may be to come, when the clock was set back: nothing starts
    twice. *running*: jobs of it that are not over."""
    if spec.paused:
        return Turn(None, following(spec.schedule, spec.time_zone, now), why="paused")
    since = max(last or created, created)
    after = following(spec.schedule, spec.time_zone, max(now, since))
    latest = preceding(spec.schedule, spec.time_zone, now)
    if latest <= since:
        return Turn(None, after)
    missed = _between(spec, since, latest)
    late = spec.starting_deadline_seconds
    if late is not None and now - latest > timedelta(seconds=late):
        return Turn(None, after, latest, missed=missed + 1, why=f"more than {late} s late")
    if running and spec.concurrency_policy == "Forbid":
        return Turn(None, after, latest, missed=missed + 1, why="the former job still runs")
    return Turn(latest, after, latest, replace=_replaces(spec.concurrency_policy, running), missed=missed)


def _replaces(policy: ConcurrencyPolicy, running: int) -> bool:
    return policy == "Replace" and running > 0


def _between(spec: AdvancedCronJobSpec, since: datetime, latest: datetime) -> int:
    """Count the times after *since* and before *latest*; of very many no more than 100."""
    count, moment = 0, following(spec.schedule, spec.time_zone, since)
    while moment < latest and count < _MOST_MISSED:
        count, moment = count + 1, following(spec.schedule, spec.time_zone, moment)
    return count


def job_name(name: str, scheduled: datetime) -> str:
    """Return the name of the job for this time: the same for the same time, so that none is made twice."""
    return f"{name[:240]}-{int(scheduled.timestamp()) // 60}"


def outlived(jobs: Iterable[ImageListPullJob], spec: AdvancedCronJobSpec) -> list[str]:
    """Return the names of jobs that are over and beyond the limits of the history, the oldest first."""
    good: list[ImageListPullJob] = []
    bad: list[ImageListPullJob] = []
    for job in jobs:
        if job.status.completion_time is not None and not job.deleting:
            failed = any(each.type == "Failed" and each.status == "True" for each in job.status.conditions)
            (bad if failed or job.status.failed_image_statuses else good).append(job)
    gone: list[ImageListPullJob] = []
    for kept, limit in ((good, spec.successful_jobs_history_limit), (bad, spec.failed_jobs_history_limit)):
        kept.sort(key=_age)
        gone += kept[: max(0, len(kept) - limit)]
    return [job.metadata.name for job in sorted(gone, key=_age)]


def _age(job: ImageListPullJob) -> tuple[datetime, str]:
    return job.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC), job.metadata.name
