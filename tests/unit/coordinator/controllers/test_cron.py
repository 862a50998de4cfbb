"""When schedules come due: time zones, clocks that are put forward and back, sleep, and what is done about each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.cluster_images import (
    AdvancedCronJobSpec,
    CronTemplate,
    FailedImage,
    ImageListPullJob,
    ImageListPullJobSpec,
    ListPullJobStatus,
    ListPullJobTemplate,
)
from stoker.objects.meta import ObjectMeta
from stoker_coordinator.controllers.cron import (
    following,
    job_name,
    outlived,
    preceding,
    turn,
)
from stoker_coordinator.objects.schedules import BadSchedule, check

CREATED = datetime(2026, 3, 1, tzinfo=UTC)
TEMPLATE = CronTemplate(ListPullJobTemplate(ImageListPullJobSpec(images=("a:1",))))


def spec(schedule: str = "0 * * * *", **more: object) -> AdvancedCronJobSpec:
    return AdvancedCronJobSpec(schedule, TEMPLATE, **more)  # type: ignore[arg-type]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "zone", "moment", "expected"),
    [
        ("30 2 * * *", "", "2026-03-01T00:00", "2026-03-01T02:30"),
        ("30 2 * * *", "", "2026-03-01T02:30", "2026-03-02T02:30"),
        ("@daily", "America/New_York", "2026-01-10T12:00", "2026-01-11T05:00"),
        ("0 9 * * 1-5", "Europe/Berlin", "2026-03-27T08:00", "2026-03-30T07:00"),
        # 02:30 is left out on 2026-03-29 in Berlin, where the clock goes from 02:00 to 03:00.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-30T00:30"),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T01:00"),
        # 02:30 comes twice on 2026-10-25; the first counts.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T00:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", "2026-10-26T01:30"),
    ],
)
def test_the_next_time(schedule: str, zone: str, moment: str, expected: str) -> None:
    assert following(schedule, zone, utc(moment)) == utc(expected)


@given(
    moment=st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    schedule=st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 1 * *", "15 1,2,3 * * 0"]),
    zone=st.sampled_from(["", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
def test_before_and_after_agree(moment: datetime, schedule: str, zone: str) -> None:
    after, before = following(schedule, zone, moment), preceding(schedule, zone, moment)
    assert before <= moment < after
    assert following(schedule, zone, before) == after
    assert preceding(schedule, zone, after - timedelta(seconds=1)) == before


@pytest.mark.parametrize(
    ("schedule", "zone", "what"),
    [
        ("* * * *", "", "4 fields instead of five"),
        ("* * * * * *", "", "6 fields instead of five"),
        ("61 * * * *", "", "61"),
        ("@sometimes", "", "@sometimes"),
        ("0 0 31 2 *", "", "0 0 31 2"),
        ("0 * * * *", "Europe/Atlantis", "Europe/Atlantis"),
        ("0 * * * *", "../../etc/passwd", "time zone"),
        ("", "", "0 fields"),
    ],
)
def test_what_cannot_be_read_is_named(schedule: str, zone: str, what: str) -> None:
    with pytest.raises(BadSchedule, match=what):
        check(schedule, zone)


def test_nothing_is_due_before_its_time() -> None:
    decided = turn(spec(), CREATED, None, 0, CREATED + timedelta(minutes=59))
    assert (decided.start, decided.next) == (None, CREATED + timedelta(hours=1))


def test_a_time_that_came_starts_once() -> None:
    now = CREATED + timedelta(hours=1, seconds=3)
    decided = turn(spec(), CREATED, None, 0, now)
    assert decided.start == CREATED + timedelta(hours=1)
    assert turn(spec(), CREATED, decided.scheduled, 0, now).start is None


def test_a_long_sleep_starts_one_job_and_tells_how_many_it_missed() -> None:
    decided = turn(spec("* * * * *"), CREATED, None, 0, CREATED + timedelta(days=400))
    assert decided.start == CREATED + timedelta(days=400)
    assert decided.missed == 100


def test_a_start_that_is_too_late_is_missed() -> None:
    now = CREATED + timedelta(hours=1, minutes=10)
    decided = turn(spec(starting_deadline_seconds=60), CREATED, None, 0, now)
    assert (decided.start, decided.missed) == (None, 1)
    assert "60 s late" in decided.why
    assert decided.scheduled == CREATED + timedelta(hours=1)


@pytest.mark.parametrize(
    ("policy", "starts", "replaces"), [("Allow", True, False), ("Forbid", False, False), ("Replace", True, True)]
)
def test_what_happens_while_the_former_job_runs(policy: str, starts: bool, replaces: bool) -> None:
    decided = turn(spec(concurrency_policy=policy), CREATED, None, 1, CREATED + timedelta(hours=1))
    assert (decided.start is not None, decided.replace) == (starts, replaces)


def test_paused_starts_nothing() -> None:
    decided = turn(spec(paused=True), CREATED, None, 0, CREATED + timedelta(hours=5))
    assert (decided.start, decided.scheduled, decided.why) == (None, None, "paused")


def test_a_clock_that_is_set_back_starts_nothing_twice() -> None:
    last = CREATED + timedelta(hours=8)
    decided = turn(spec(), CREATED, last, 0, CREATED + timedelta(hours=3))
    assert decided.start is None
    assert decided.next == last + timedelta(hours=1)


def test_one_time_has_one_name() -> None:
    assert job_name("nightly", CREATED) == job_name("nightly", CREATED)
    assert job_name("nightly", CREATED) != job_name("nightly", CREATED + timedelta(minutes=1))
    assert len(job_name("n" * 253, CREATED)) <= 253


def test_the_history_has_limits() -> None:
    jobs = [finished(f"good{number}", number) for number in range(5)]
    jobs += [finished(f"bad{number}", number, failed=True) for number in range(3)]
    jobs.append(finished("running", 0, over=False))
    assert outlived(jobs, spec()) == ["bad0", "good0", "bad1", "good1"]
    assert outlived(jobs, spec(successful_jobs_history_limit=9, failed_jobs_history_limit=9)) == []


def finished(name: str, hour: int, *, failed: bool = False, over: bool = True) -> ImageListPullJob:
    moment = CREATED + timedelta(hours=hour)
    status = ListPullJobStatus(
        completion_time=moment if over else None,
        failed_image_statuses=(FailedImage("a:1"),) if failed else (),
    )
    meta = ObjectMeta(name=name, creation_timestamp=moment)
    return ImageListPullJob(metadata=meta, spec=ImageListPullJobSpec(images=("a:1",)), status=status)
