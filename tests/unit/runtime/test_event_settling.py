"""When events of containerd are passed on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.runtime.event_settling import Expected, View, settle
from stokerd.runtime.pod_types import ContainerEvent, ContainerEventKind

ORDER: tuple[ContainerEventKind, ...] = ("created", "started", "stopped", "deleted")
VIEWS: tuple[View | None, ...] = (None, "created", "running", "unknown", "exited", "ready", "notready")


def expect(*kinds: ContainerEventKind, of: str = "a", deadline: float = 10.0) -> tuple[Expected, ...]:
    return tuple(Expected(kind, of, deadline) for kind in kinds)


@pytest.mark.parametrize(
    ("kind", "views"),
    [
        ("created", {"created", "running", "unknown", "exited", "ready", "notready"}),
        ("started", {"running", "unknown", "exited", "ready", "notready"}),
        ("stopped", {"exited", "notready"}),
        ("deleted", {None}),
    ],
)
def test_an_event_waits_until_it_is_shown(kind: ContainerEventKind, views: set[View | None]) -> None:
    for view in VIEWS:
        shown, waiting = settle(expect(kind), {"a": view} if view is not None else {}, {"a": "pod"}, 0.0)
        if view in views:
            assert (shown, waiting) == ((ContainerEvent(kind, "a", "pod"),), ())
        else:
            assert (shown, waiting) == ((), expect(kind))


def test_a_short_life_is_told_whole_once_it_is_over() -> None:
    expected = expect("created", "started", "stopped", "deleted")
    shown, waiting = settle(expected, {}, {}, 0.0)
    assert [event.kind for event in shown] == ["created", "started", "stopped", "deleted"]
    assert waiting == ()


def test_an_object_that_has_not_come_is_waited_for() -> None:
    assert settle(expect("created"), {}, {}, 9.9) == ((), expect("created"))
    assert settle(expect("created"), {}, {}, 10.0) == ((), ())


def test_objects_do_not_wait_for_each_other() -> None:
    expected = (*expect("stopped", of="a"), *expect("started", of="b"))
    shown, waiting = settle(expected, {"a": "running", "b": "running"}, {}, 0.0)
    assert shown == (ContainerEvent("started", "b"),)
    assert waiting == expect("stopped", of="a")


@given(
    kinds=st.lists(st.sampled_from(ORDER), max_size=6),
    view=st.sampled_from(VIEWS),
    now=st.floats(min_value=0, max_value=20),
)
def test_the_order_is_kept_and_nothing_is_told_twice(
    kinds: list[ContainerEventKind], view: View | None, now: float
) -> None:
    expected = expect(*kinds)
    shown, waiting = settle(expected, {"a": view} if view is not None else {}, {}, now)
    told = [event.kind for event in shown] + [each.kind for each in waiting]
    if now < 10:
        assert told == kinds
    else:
        assert not waiting
