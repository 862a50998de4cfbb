from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.cli.progress import Board, Speed, Totals
from stoker.objects.images import ImageChange, ItemEvent, ItemStatus, JobCounts, JobEvent, JobStatus
from tests.unit.api.fakes import GIB, MIB, failed, normal, pulling, succeeded, waiting


def job(*items: ItemStatus, state: str = "Active") -> JobEvent:
    return JobEvent(job=JobStatus(id="j1", state=state, items=list(items)))  # type: ignore[arg-type]


def item(status: ItemStatus) -> ItemEvent:
    return ItemEvent(job="j1", item=status, counts=JobCounts())


def test_speed_follows_the_bytes() -> None:
    speed = Speed()
    speed.note(0, 0.0)
    assert speed.at(0.0) == 0
    for second in range(1, 11):
        speed.note(second * MIB, float(second))
    assert speed.at(10.0) == pytest.approx(MIB)
    for second in range(11, 31):
        speed.note((10 + (second - 10) * 5) * MIB, float(second))
    assert speed.at(30.0) == pytest.approx(5 * MIB, rel=0.01)


def test_speed_ignores_steps_that_are_too_short_but_loses_no_bytes() -> None:
    speed = Speed()
    speed.note(0, 0.0)
    speed.note(50, 0.01)
    assert speed.value == 0
    speed.note(100, 1.0)
    assert speed.value == pytest.approx(100)


def test_speed_fades_in_silence() -> None:
    speed = Speed()
    speed.note(0, 0.0)
    speed.note(MIB, 1.0)
    assert speed.at(1.5) == pytest.approx(MIB)
    assert speed.at(8.0) < MIB / 5
    assert speed.silence(8.0) == 7.0
    assert Speed().silence(5.0) == 0


def test_speed_is_never_negative() -> None:
    speed = Speed()
    speed.note(MIB, 0.0)
    speed.note(0, 1.0)
    assert speed.value == 0


def test_what_was_here_before_counts_as_done_but_not_as_speed() -> None:
    board = Board(0.0)
    board.apply(job(pulling("nginx", 0, 0)), 0.0)
    status = pulling("nginx", GIB // 2, GIB)
    status.progress.bytes_present = GIB // 2
    board.apply(item(status), 1.0)
    totals = board.totals(1.0)
    assert totals.bytes_done == GIB // 2
    assert totals.speed == 0


def test_totals() -> None:
    board = Board(0.0)
    idle = waiting("w")
    cancelled = ItemStatus(image="c", reference=normal("c"), phase="Cancelled")
    board.apply(job(idle, pulling("p", 1, 4), succeeded("s", 4), failed("f"), cancelled), 0.0)
    totals = board.totals(0.0)
    assert totals == Totals(
        desired=5, succeeded=1, failed=1, cancelled=1, pulling=1, waiting=1, bytes_done=5, bytes_total=8
    )
    assert totals.over == 3
    assert not board.finished()


def test_images_that_are_over_stay_over() -> None:
    board = Board(0.0)
    board.trouble = "gone"
    (first, second) = board.apply(job(succeeded("a"), pulling("b", 1, 2)), 0.0)
    assert (first.over, second.over) == (True, False)
    assert board.trouble == ""
    # After a break the whole state comes again.
    (again,) = board.apply(job(succeeded("a"), succeeded("b"), state="Succeeded"), 1.0)
    assert again.item.reference == normal("b")
    assert board.apply(item(pulling("a", 1, 2)), 2.0) == []
    assert board.finished()


def test_phases() -> None:
    board = Board(0.0)
    retry = replace(waiting("r"), attempt=1)
    fresh = waiting("f")
    tracked = board.apply(job(retry, fresh, pulling("p", 1, 2), pulling("u", 2, 2), pulling("m", 0, 0)), 0.0)
    assert [one.active for one in tracked] == [True, False, True, True, True]
    assert [one.unpacking for one in tracked] == [False, False, False, True, False]


def test_other_events_change_nothing() -> None:
    board = Board(0.0)
    assert board.apply(ImageChange(kind="create", reference="a"), 0.0) == []
    assert board.items == {}
