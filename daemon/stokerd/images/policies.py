"""From the settings of the room to what its parts work by. Pure."""

from __future__ import annotations

from stokerd.images.queue import Limits
from stokerd.images.retry import Backoff
from stokerd.images.scheduler import Policy
from stokerd.images.space import Margins
from stokerd.images.watch import Timing
from stokerd.settings import ImageSettings


def policy_of(settings: ImageSettings) -> Policy:
    return Policy(
        limits=Limits(settings.max_parallel, settings.max_parallel_per_registry),
        backoff=Backoff(settings.backoff_initial, settings.backoff_max, jitter=settings.backoff_jitter),
        pressure_limit=settings.io_pressure_limit,
        pressure_interval=settings.io_pressure_interval,
    )


def margins_of(settings: ImageSettings) -> Margins:
    return Margins(settings.disk_reserve, settings.inode_reserve, settings.disk_floor, settings.inode_floor)


def timing_of(settings: ImageSettings) -> Timing:
    return Timing(settings.poll_interval, settings.stall_timeout)
