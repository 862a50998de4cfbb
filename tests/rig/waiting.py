"""Polling with a deadline: the only way in which the rig waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.rig.errors import RigError

T = TypeVar("T")


def until(what: str, probe: Callable[[], T | None], timeout: float = 20.0, interval: float = 0.02) -> T:
    """Call `probe` until it returns something true; its exceptions end the waiting."""
    deadline = time.monotonic() + timeout
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise RigError(f"{what}: not within {timeout:g} s")
        time.sleep(interval)
