from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stokerd.images.keeps import Rewarm, decide_keeps, pause_after
from stokerd.journal.rows import KeepRow

LIMIT = 3600.0


def keep(reference: str = "x", rewarmed: int = 0, last: float | None = None) -> KeepRow:
    return KeepRow(reference, "IfNotPresent", 0, 0.0, rewarmed, last)


def test_what_is_gone_is_warmed_again_at_once() -> None:
    rows = [keep("here"), keep("busy"), keep("gone")]
    assert decide_keeps(rows, {"here"}, {"busy"}, 100.0, LIMIT) == ((Rewarm("gone"),), None)


def test_what_was_just_warmed_again_waits_and_the_first_pause_to_end_is_told() -> None:
    rows = [keep("often", rewarmed=4, last=100.0), keep("once", rewarmed=1, last=100.0), keep("long", 30, 100.0)]
    assert decide_keeps(rows, (), (), 101.0, LIMIT) == ((), 105.0)
    assert decide_keeps(rows, (), (), 140.0, LIMIT) == ((Rewarm("often"), Rewarm("once")), 3700.0)


def test_the_pause_doubles_up_to_its_limit() -> None:
    pauses = [pause_after(keep(rewarmed=n, last=0.0), 1.0, LIMIT) for n in range(13)]
    assert pauses == [5, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]


def test_what_cannot_be_warmed_is_tried_at_growing_pauses() -> None:
    """``rewarmed`` counts what came back only; an image that is gone from its registry never does."""
    now, row, tries, times = 0.0, keep(), 0, []
    for _ in range(1000):
        actions, wake = decide_keeps([row], (), (), now, LIMIT, {"x": tries})
        if actions:
            times.append(now)
            row, tries = replace(row, last_rewarm_at=now), tries + 1
        now = wake if wake is not None else now + 1.0
        if len(times) == 14:
            break
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(times)]
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]


def test_a_keep_that_held_long_counts_as_new() -> None:
    row = keep(rewarmed=20, last=0.0)
    assert pause_after(row, 4 * LIMIT, LIMIT) == LIMIT
    assert pause_after(row, 4 * LIMIT + 1, LIMIT) == 0


def test_numbers_of_any_size_are_no_problem() -> None:
    assert pause_after(keep(rewarmed=10**9, last=0.0), 1.0, LIMIT, 10**9) == LIMIT


@given(
    st.lists(
        st.builds(keep, st.sampled_from("abcdef"), st.integers(0, 40), st.none() | st.floats(0, 2000)),
        unique_by=lambda row: row.reference,
    ),
    st.sets(st.sampled_from("abcdef")),
    st.sets(st.sampled_from("abcdef")),
    st.floats(0, 1e5),
    st.floats(1, 5000),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50)),
)
def test_every_absent_one_is_warmed_or_waited_for(
    rows: list[KeepRow], present: set[str], busy: set[str], now: float, limit: float, tries: dict[str, int]
) -> None:
    actions, wake = decide_keeps(rows, present, busy, now, limit, tries)
    absent = {row.reference for row in rows} - present - busy
    chosen = {action.reference for action in actions}
    assert chosen <= absent
    assert (wake is not None) == bool(absent - chosen)
    if wake is not None:
        assert now < wake <= now + limit + 2000
        again, _ = decide_keeps(rows, present, busy, wake, limit, tries)
        assert {action.reference for action in again} > chosen or len(again) > 0
