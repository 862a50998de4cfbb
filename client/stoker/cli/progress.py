"""What is known about the images of some jobs, kept up to date from events. Pure: the time is handed in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stoker.objects.images import Event, ItemEvent, ItemStatus, JobEvent, JobStatus

_SMOOTHING_SECONDS = 3.0
_SHORTEST_STEP = 0.05

Key = tuple[str, str]


@dataclass(slots=True)
class Speed:
    """Bytes a second, smoothed over the last few seconds."""

    value: float = 0.0
    changed_at: float | None = None
    """When bytes came last."""
    _bytes: int = 0
    _at: float | None = None

    def note(self, count: int, now: float) -> None:
        """Take in that *count* bytes have come over the network in all."""
        if self._at is None:
            self._bytes, self._at, self.changed_at = count, now, now
            return
        if count > self._bytes:
            self.changed_at = now
        step = now - self._at
        if step < _SHORTEST_STEP:
            return
        rate = max(0, count - self._bytes) / step
        weight = 1.0 if self.value == 0 else 1 - math.exp(-step / _SMOOTHING_SECONDS)
        self.value += weight * (rate - self.value)
        self._bytes, self._at = count, now

    def at(self, now: float) -> float:
        """Return the speed, which fades while nothing comes."""
        silent = self.silence(now)
        return self.value if silent < 1 else self.value * math.exp(-(silent - 1) / _SMOOTHING_SECONDS)

    def silence(self, now: float) -> float:
        """Return for how many seconds nothing has come."""
        return 0.0 if self.changed_at is None else max(0.0, now - self.changed_at)


@dataclass(slots=True)
class Tracked:
    """One image of one job."""

    item: ItemStatus
    seen_at: float
    speed: Speed = field(default_factory=Speed)

    @property
    def active(self) -> bool:
        """It is being pulled, or waits for its next attempt."""
        return self.item.phase == "Pulling" or (self.item.phase == "Waiting" and self.item.attempt > 0)

    @property
    def over(self) -> bool:
        """Nothing more will happen to it."""
        return self.item.phase in {"Succeeded", "Failed", "Cancelled"}

    @property
    def unpacking(self) -> bool:
        """All bytes are here."""
        progress = self.item.progress
        return self.item.phase == "Pulling" and 0 < progress.bytes_total <= progress.bytes_done


@dataclass(slots=True)
class Totals:
    """All images together."""

    desired: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    pulling: int = 0
    waiting: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    speed: float = 0.0

    @property
    def over(self) -> int:
        return self.succeeded + self.failed + self.cancelled


class Board:
    """The images of the jobs that are followed."""

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.jobs: dict[str, JobStatus] = {}
        self.items: dict[Key, Tracked] = {}
        self.trouble = ""
        """Why stokerd cannot be heard at the moment."""

    def apply(self, event: Event, now: float) -> list[Tracked]:
        """Take an event in; return the images that it changed, those that were over before left out."""
        self.trouble = ""
        if isinstance(event, JobEvent):
            self.jobs[event.job.id] = event.job
            return [changed for item in event.job.items for changed in self._update(event.job.id, item, now)]
        if isinstance(event, ItemEvent):
            return self._update(event.job, event.item, now)
        return []

    def _update(self, job: str, item: ItemStatus, now: float) -> list[Tracked]:
        key = (job, item.reference)
        tracked = self.items.get(key)
        if tracked is None:
            tracked = self.items[key] = Tracked(item, now)
        elif tracked.over:
            return []
        tracked.item = item
        tracked.speed.note(item.progress.bytes_done - item.progress.bytes_present, now)
        return [tracked]

    def totals(self, now: float) -> Totals:
        """Return the sums over all images."""
        totals = Totals(desired=len(self.items))
        for tracked in self.items.values():
            progress = tracked.item.progress
            totals.bytes_done += progress.bytes_done
            totals.bytes_total += progress.bytes_total
            match tracked.item.phase:
                case "Succeeded":
                    totals.succeeded += 1
                case "Failed":
                    totals.failed += 1
                case "Cancelled":
                    totals.cancelled += 1
                case "Pulling":
                    totals.pulling += 1
                    totals.speed += tracked.speed.at(now)
                case "Waiting":
                    totals.waiting += 1
        return totals

    def finished(self) -> bool:
        """Whether every job that is known has ended."""
        return all(job.state != "Active" for job in self.jobs.values())
