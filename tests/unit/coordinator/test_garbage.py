"""What a full collection has left is not looked at again, but for now and then."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from stoker_coordinator.garbage import Putting


class Circle:
    """One that only the collector can end, once nobody has it."""

    def __init__(self) -> None:
        self.own = self


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Full collections put aside what they leave; every 100 s everything is looked at."""
    made = Clock()
    putting = Putting(made, 100)
    gc.collect()
    gc.callbacks.append(putting)
    try:
        yield made
    finally:
        gc.callbacks.remove(putting)
        gc.unfreeze()
        gc.collect()


def test_only_what_is_new_is_looked_at(clock: Clock) -> None:
    old = Circle()
    there = weakref.ref(old)
    gc.collect()
    assert gc.get_freeze_count() > 1000
    new = weakref.ref(Circle())
    del old
    gc.collect()
    assert new() is None
    assert there() is not None, "it was looked at"


def test_now_and_then_everything_is_looked_at(clock: Clock) -> None:
    old = Circle()
    there = weakref.ref(old)
    gc.collect()
    del old
    clock.now = 101
    gc.collect()  # from now on nothing is put aside
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert there() is None
    assert gc.get_freeze_count() > 1000


def test_small_collections_change_nothing(clock: Clock) -> None:
    gc.collect(0)
    gc.collect(1)
    assert gc.get_freeze_count() == 0
