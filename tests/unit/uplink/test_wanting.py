"""What to do next, from what is wished for and what is known of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.link import FINAL, ResultKey, Wish
from stokerd.journal.rows import WishRow
from stokerd.uplink import wanting
from stokerd.uplink.pauses import pause, told_pause
from stokerd.uplink.wanting import Adopt, Begin, BreakOff, Forget, Undo, key_of, plan

WISHES = st.lists(
    st.builds(
        lambda uid, generation, kind, done: Wish(uid=uid, generation=generation, kind=kind, done=done),
        st.sampled_from("abcd"),
        st.integers(1, 3),
        st.sampled_from(["warm", "clone"]),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda wish: (wish.uid, wish.generation),
)
ROWS = st.lists(
    st.builds(
        lambda uid, generation, kind, local, phase, acknowledged: WishRow(
            uid, generation, kind, local, 0.0, phase, b"", acknowledged and phase in FINAL
        ),
        st.sampled_from("abcd"),
        st.integers(1, 3),
        st.sampled_from(["warm", "clone"]),
        st.sampled_from(["", "warm-1"]),
        st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Cancelled"]),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda row: (row.uid, row.generation),
)


@given(WISHES, st.booleans(), ROWS, st.data())
def test_each_wish_is_begun_once_and_nothing_else_is(
    wishes: list[Wish], paused: bool, rows: list[WishRow], data: st.DataObject
) -> None:
    known = {key_of(row): row for row in rows}
    busy = data.draw(st.sets(st.sampled_from([*known] or [ResultKey("-", 0)])))
    actions = plan(wishes, paused, rows, busy)
    wanted = {ResultKey(wish.uid, wish.generation) for wish in wishes}
    done = {ResultKey(wish.uid, wish.generation) for wish in wishes if wish.done}
    begun = [ResultKey(each.wish.uid, each.wish.generation) for each in actions if isinstance(each, Begin)]
    broken = [each.key for each in actions if isinstance(each, BreakOff)]
    undone = [each.key for each in actions if isinstance(each, Undo)]
    forgotten = [each.key for each in actions if isinstance(each, Forget)] + undone
    assert len(set(begun)) == len(begun)
    for key in begun:
        assert key in wanted - done
        assert key not in busy
        assert key not in known or known[key].phase not in FINAL
        assert not paused or known[key].local
    for key in broken:
        assert key not in wanted
        assert known[key].phase not in FINAL
    for key in forgotten:
        assert key not in wanted
        assert known[key].acknowledged
        assert (known[key].kind == "clone") == (key in undone)
    adopted = {ResultKey(each.wish.uid, each.wish.generation) for each in actions if isinstance(each, Adopt)}
    lasting = {ResultKey(wish.uid, wish.generation) for wish in wishes if wish.done and wish.kind == "clone"}
    assert adopted == lasting - known.keys()
    # Nothing is left out: what is wished for is over, at work, begun, or held back by the pause.
    for key in wanted:
        assert key in begun or key in busy or key in done or paused or known[key].phase in FINAL
    for key, row in known.items():
        assert key in wanted or key in broken or key in forgotten or (row.phase in FINAL and not row.acknowledged)


def test_results_that_nobody_comes_for_go_at_last(monkeypatch: object) -> None:
    rows = [WishRow(f"u{number}", 1, "warm", "x", float(number), "Succeeded") for number in range(5)]
    wanting_limit, wanting.MOST_ROWS = wanting.MOST_ROWS, 3
    try:
        actions = plan([], False, rows, ())
    finally:
        wanting.MOST_ROWS = wanting_limit
    assert actions == (Forget(ResultKey("u0", 1)), Forget(ResultKey("u1", 1)))


@given(st.integers(1, 1000), st.floats(0, 1))
def test_pauses_grow_and_stay_within_their_bounds(failures: int, share: float) -> None:
    seconds = pause(failures, 2.0, 60.0, share)
    assert 1.0 <= seconds <= 60.0
    assert pause(failures + 1, 2.0, 60.0, share) >= seconds


@given(st.floats(allow_nan=False), st.floats(0, 1))
def test_a_coordinator_cannot_send_a_node_away_for_ever(seconds: float, share: float) -> None:
    assert 1.0 <= told_pause(seconds, share) <= 3600.0 * 1.25
