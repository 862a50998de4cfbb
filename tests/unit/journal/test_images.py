from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stokerd.errors import JournalError
from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal
from stokerd.journal.rows import AttemptRow, ItemRow, JobRow, KeepRow, LayerRow, PinRow, RatioRow
from tests.unit.journal.rows import attempt, item, job, keep, layer, pin

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
moments = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
jobs = st.builds(
    JobRow,
    id=words,
    name=words,
    policy=st.sampled_from(("Always", "IfNotPresent")),
    priority=numbers,
    attempts=numbers,
    timeout=st.none() | moments,
    pin_seconds=st.none() | moments,
    state=st.sampled_from(("Active", "Succeeded", "Failed", "Cancelled")),
    created_at=moments,
    finished_at=st.none() | moments,
    had_auths=st.booleans(),
)
items = st.builds(
    ItemRow,
    job=words,
    position=numbers,
    image=words,
    reference=words,
    phase=st.sampled_from(("Waiting", "Pulling", "Succeeded", "Failed", "Cancelled")),
    reason=words,
    message=words,
    hint=words,
    attempt=numbers,
    digest=words,
    previous_digest=words,
    pulled_bytes=numbers,
    started_at=st.none() | moments,
    finished_at=st.none() | moments,
)

# ---------------------------------------------------------------------------------------------- jobs


async def test_jobs_come_back_as_they_were_oldest_first(journal: ImageJournal) -> None:
    old, new = job("b", 1.0), replace(job("a", 2.0), had_auths=True, pin_seconds=0.0, finished_at=9.25)
    failed = replace(item("a", 1), phase="Failed", reason="NotFound", message="…", started_at=1.0, pulled_bytes=2**62)
    await journal.save_jobs([new, old], [failed, item("a", 0), item("b", 0)])
    assert await journal.jobs() == [(old, [item("b", 0)]), (new, [item("a", 0), failed])]


@given(row=jobs, entry=items)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_any_job_comes_back_as_it_was(journal: ImageJournal, row: JobRow, entry: ItemRow) -> None:
    entry = replace(entry, job=row.id)
    await journal.forget_jobs([row.id for row, _ in await journal.jobs()])
    await journal.save_jobs([row], [entry])
    assert await journal.jobs() == [(row, [entry])]
    assert repr(await journal.jobs()) == repr([(row, [entry])])  # a truth is not 1, nor a moment a whole number


async def test_saving_a_job_again_changes_it_and_keeps_its_items(journal: ImageJournal) -> None:
    await journal.save_jobs([job("a")], [item("a", 0), item("a", 1)])
    done = replace(job("a"), state="Succeeded", finished_at=9.0)
    await journal.save_jobs([done], [])
    assert await journal.jobs() == [(done, [item("a", 0), item("a", 1)])]


async def test_saving_an_item_again_changes_it_alone(journal: ImageJournal) -> None:
    await journal.save_jobs([job("a")], [item("a", 0), item("a", 1)])
    pulling = replace(item("a", 1), phase="Pulling", attempt=2)
    await journal.save_jobs([], [pulling])
    assert await journal.jobs() == [(job("a"), [item("a", 0), pulling])]


async def test_a_job_is_forgotten_with_its_items_and_no_other(journal: ImageJournal) -> None:
    await journal.save_jobs([job("a"), job("b")], [item("a", 0), item("b", 0)])
    await journal.forget_jobs(["a", "never was"])
    assert await journal.jobs() == [(job("b"), [item("b", 0)])]
    await journal.save_jobs([job("a")], [])
    assert (job("a"), []) in await journal.jobs()


async def test_all_or_nothing_is_saved(journal: ImageJournal) -> None:
    with pytest.raises(JournalError, match="FOREIGN KEY"):
        await journal.save_jobs([job("a")], [item("a", 0), item("stranger", 0)])
    assert await journal.jobs() == []


async def test_twenty_thousand_items_in_one_save(journal: ImageJournal) -> None:
    many = [item("a", position) for position in range(20_000)]
    started = time.process_time()
    await journal.save_jobs([job("a")], many)
    assert await journal.jobs() == [(job("a"), many)]
    assert time.process_time() - started < 10.0  # about half a second


async def test_what_sqlite_cannot_hold_is_refused_as_such(journal: ImageJournal) -> None:
    with pytest.raises(JournalError, match="cannot hold this"):
        await journal.save_jobs([replace(job("a"), priority=2**63)], [])
    with pytest.raises(JournalError, match="cannot hold this"):
        await journal.save_jobs([replace(job("a"), name="\udcff")], [])
    assert await journal.jobs() == []


# ---------------------------------------------------------------------------------------------- pins and keeps


async def test_pins(journal: ImageJournal) -> None:
    first, second = pin("b", 1.0), replace(pin("a", 2.0), expires_at=99.5, releasing=True)
    await journal.save_pin(second)
    await journal.save_pin(first)
    assert await journal.pins() == [first, second]
    changed = replace(first, releasing=True, expires_at=5.0)
    await journal.save_pin(changed)
    assert await journal.pins() == [changed, second]
    await journal.forget_pin("b")
    await journal.forget_pin("b")
    assert await journal.pins() == [second]


async def test_keeps(journal: ImageJournal) -> None:
    first, second = keep("b", 1.0), replace(keep("a", 2.0), policy="Always", rewarmed=3, last_rewarm_at=7.5)
    await journal.save_keep(second)
    await journal.save_keep(first)
    assert await journal.keeps() == [first, second]
    changed = replace(first, priority=9)
    await journal.save_keep(changed)
    assert await journal.keeps() == [changed, second]
    await journal.forget_keep("b")
    await journal.forget_keep("b")
    assert await journal.keeps() == [second]


async def test_what_was_made_at_one_time_has_an_order_all_the_same(journal: ImageJournal) -> None:
    for name in ("c", "a", "b"):
        await journal.save_pin(pin(name))
        await journal.save_keep(keep(name))
    assert [row.reference for row in await journal.pins()] == ["a", "b", "c"]
    assert [row.reference for row in await journal.keeps()] == ["a", "b", "c"]


# ---------------------------------------------------------------------------------------------- history


async def test_history_is_newest_first_of_one_image_or_of_all(journal: ImageJournal) -> None:
    rows = [attempt("a", 1, "Failed"), attempt("b", 1), attempt("a", 2)]
    for row in rows:
        await journal.record_attempt(row, limit=10)
    assert await journal.attempts(None, limit=10) == rows[::-1]
    assert await journal.attempts("a", limit=10) == [rows[2], rows[0]]
    assert await journal.attempts("a", limit=1) == [rows[2]]
    assert await journal.attempts("c", limit=10) == []


async def test_history_keeps_the_newest_up_to_its_limit(journal: ImageJournal) -> None:
    for number in range(25):
        await journal.record_attempt(attempt("a", number), limit=10)
    assert [row.attempt for row in await journal.attempts(None, limit=100)] == list(range(24, 14, -1))
    await journal.record_attempt(attempt("a", 99), limit=3)  # the limit was lowered
    assert [row.attempt for row in await journal.attempts(None, limit=100)] == [99, 24, 23]
    await journal.record_attempt(attempt("a", 100), limit=10)
    assert [row.attempt for row in await journal.attempts(None, limit=100)] == [100, 99, 24, 23]


async def test_last_warmed_is_the_last_success(journal: ImageJournal) -> None:
    rows: list[AttemptRow] = [attempt("a", 5), attempt("a", 3), attempt("a", 9, "Failed"), attempt("b", 1, "Failed")]
    for row in rows:
        await journal.record_attempt(row, limit=10)
    assert await journal.last_warmed() == {"a": 7.0}


# ---------------------------------------------------------------------------------------------- layers


async def test_layers_are_known_by_their_digest(journal: ImageJournal) -> None:
    await journal.learn([layer(1), layer(2)], [RatioRow("gzip", 100, 200, 5)])
    assert await journal.layers([layer(2).digest, "sha256:unknown"]) == {layer(2).digest: layer(2)}
    assert await journal.layers([]) == {}
    assert await journal.ratios() == [RatioRow("gzip", 100, 200, 5)]


async def test_what_is_learned_later_replaces_what_was_learned_before(journal: ImageJournal) -> None:
    await journal.learn([layer(1)], [RatioRow("gzip", 100, 200, 5)])
    await journal.learn([layer(1, unpacked=77)], [RatioRow("gzip", 101, 201, 6), RatioRow("zstd", 1, 2, 3)])
    assert await journal.layers([layer(1).digest]) == {layer(1).digest: layer(1, unpacked=77)}
    assert await journal.ratios() == [RatioRow("gzip", 101, 201, 6), RatioRow("zstd", 1, 2, 3)]


async def test_layers_not_seen_for_longest_are_forgotten(
    journal: ImageJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stokerd.journal.images._LAYER_LIMIT", 5)
    for number in range(5):
        await journal.learn([layer(number)], [])
    await journal.learn([layer(0)], [])  # seen again
    await journal.learn([layer(5), layer(6)], [])
    digests = [layer(number).digest for number in range(7)]
    known = await journal.layers(digests)
    assert [number for number in range(7) if digests[number] in known] == [0, 3, 4, 5, 6]


async def test_more_layers_at_once_than_are_kept(journal: ImageJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stokerd.journal.images._LAYER_LIMIT", 5)
    await journal.learn([layer(number) for number in range(9)], [])
    assert len(await journal.layers(layer(number).digest for number in range(9))) == 5


# ---------------------------------------------------------------------------------------------- over a restart


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    rows: tuple[JobRow, ItemRow, PinRow, KeepRow, AttemptRow, LayerRow] = (
        job("a"),
        item("a", 0),
        pin("a"),
        keep("a"),
        attempt("a"),
        layer(1),
    )
    first = Database(tmp_path)
    await first.open()
    journal = ImageJournal(first)
    await journal.save_jobs([rows[0]], [rows[1]])
    await journal.save_pin(rows[2])
    await journal.save_keep(rows[3])
    await journal.record_attempt(rows[4], limit=10)
    await journal.learn([rows[5]], [RatioRow("gzip", 1, 2, 3)])
    await first.close()

    second = Database(tmp_path)
    await second.open()
    journal = ImageJournal(second)
    assert await journal.jobs() == [(rows[0], [rows[1]])]
    assert await journal.pins() == [rows[2]]
    assert await journal.keeps() == [rows[3]]
    assert await journal.attempts(None, limit=10) == [rows[4]]
    assert await journal.layers([rows[5].digest]) == {rows[5].digest: rows[5]}
    assert await journal.ratios() == [RatioRow("gzip", 1, 2, 3)]
    await second.close()
