"""Whether a schedule and its time zone can be read. Pure."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import CroniterError, croniter

MACROS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")


class BadSchedule(ValueError):
    """The schedule or the time zone cannot be read."""


def zone(name: str) -> ZoneInfo:
    """Return a time zone; BadSchedule."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule(f"no time zone {name!r} is known") from None


def check(schedule: str, time_zone: str = "") -> None:
    """BadSchedule says what is wrong with it."""
    zone(time_zone)
    words = schedule.split()
    if schedule.startswith("@") and schedule not in MACROS:
        raise BadSchedule(f"{schedule!r} is none of {', '.join(MACROS)}")
    if not schedule.startswith("@") and len(words) != 5:
        raise BadSchedule(f"{schedule!r} has {len(words)} fields instead of five: minute hour day month weekday")
    try:
        croniter(schedule, datetime(2024, 1, 1)).get_next(datetime)  # noqa: DTZ001 - only whether it ever comes
    except (CroniterError, ValueError, KeyError) as error:
        raise BadSchedule(f"{schedule!r}: {error}") from None
