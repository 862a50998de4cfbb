from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stokerd.images.pins import (
    MARK,
    ClearPin,
    FollowPin,
    ForgetPin,
    PinAction,
    ReleasePin,
    SetPin,
    clear_labels,
    decide_pins,
    next_expiry,
    set_labels,
    total_size,
)
from stokerd.journal.rows import PinRow
from stokerd.runtime.types import PIN_LABEL, PIN_VALUE, Descriptor, ImageRecord

NOW = 1000.0
NAMES = [f"n{number}" for number in range(4)]
DIGESTS = [f"sha256:{number}" for number in range(3)]


def record(name: str, digest: str, labels: str = "") -> ImageRecord:
    """``labels``: o ours, t somebody else's pin, m our mark alone."""
    found: dict[str, str] = {"other": "stays"}
    if "o" in labels or "t" in labels:
        found[PIN_LABEL] = PIN_VALUE
    if "o" in labels or "m" in labels:
        found[MARK] = "yes"
    return ImageRecord(name, Descriptor("manifest", digest, 1), found)


def pin(reference: str, digest: str, expires_at: float | None = None, *, releasing: bool = False) -> PinRow:
    return PinRow(reference, digest, 10, 1.0, expires_at, releasing)


def decide(pins: list[PinRow], records: list[ImageRecord], now: float = NOW) -> tuple[PinAction, ...]:
    return decide_pins(pins, {row.reference: row.reference for row in pins}, records, now)


def apply(
    actions: tuple[PinAction, ...], pins: list[PinRow], records: list[ImageRecord]
) -> tuple[list[PinRow], list[ImageRecord]]:
    """Do what the tender does."""
    rows = {row.reference: row for row in pins}
    known = {entry.name: entry for entry in records}
    for action in actions:
        match action:
            case SetPin(name):
                known[name] = relabel(known[name], set_labels())
            case ClearPin(name):
                known[name] = relabel(known[name], clear_labels())
            case ReleasePin(reference):
                rows[reference] = replace(rows[reference], releasing=True)
            case ForgetPin(reference):
                del rows[reference]
            case FollowPin(reference, digest):
                rows[reference] = replace(rows[reference], digest=digest)
    return list(rows.values()), list(known.values())


def relabel(entry: ImageRecord, labels: dict[str, str | None]) -> ImageRecord:
    merged = {**entry.labels, **{key: value for key, value in labels.items() if value is not None}}
    for key, value in labels.items():
        if value is None:
            merged.pop(key, None)
    return replace(entry, labels=merged)


def test_every_record_of_a_pinned_image_is_labelled() -> None:
    records = [record("tag", "d"), record("repo@d", "d"), record("sha256:id", "d"), record("other", "e")]
    assert decide([pin("tag", "d")], records) == (SetPin("tag"), SetPin("repo@d"), SetPin("sha256:id"))


def test_a_label_that_a_pull_took_away_comes_back() -> None:
    records = [record("tag", "d"), record("repo@d", "d", "o")]
    assert decide([pin("tag", "d")], records) == (SetPin("tag"),)
    assert decide([pin("tag", "d")], [record("tag", "d", "m")]) == (SetPin("tag"),)


def test_a_pin_goes_with_the_name_and_the_former_image_is_let_go() -> None:
    records = [record("tag", "new"), record("repo@old", "old", "o")]
    assert decide([pin("tag", "old")], records) == (FollowPin("tag", "new"), SetPin("tag"), ClearPin("repo@old"))


def test_a_pin_that_ends_is_marked_first_then_cleared_then_forgotten() -> None:
    pins, records = [pin("tag", "d", NOW)], [record("tag", "d", "o"), record("repo@d", "d", "o")]
    seen = []
    while actions := decide(pins, records):
        seen.append(actions)
        pins, records = apply(actions, pins, records)
    assert seen == [
        (ReleasePin("tag"), ClearPin("tag"), ClearPin("repo@d")),
        (ForgetPin("tag"),),
    ]


def test_a_pin_that_a_crash_cut_off_between_row_and_labels_is_put_right() -> None:
    assert decide([pin("tag", "d", releasing=True)], [record("tag", "d", "o")]) == (ClearPin("tag"),)
    assert decide([pin("tag", "d", releasing=True)], [record("tag", "d")]) == (ForgetPin("tag"),)
    assert decide([], [record("tag", "d", "o")]) == (ClearPin("tag"),)  # the journal was lost
    assert decide([pin("tag", "d")], [record("tag", "d")]) == (SetPin("tag"),)


def test_pins_of_others_are_never_touched() -> None:
    records = [record("pause", "p", "t"), record("tag", "d", "t")]
    assert decide([], records) == ()
    assert decide([pin("tag", "d")], records) == ()
    assert decide([pin("tag", "d", releasing=True)], records) == (ForgetPin("tag"),)


def test_an_image_that_two_names_pin_stays_pinned_by_the_other() -> None:
    pins = [pin("one", "d", releasing=True), pin("two", "d")]
    assert decide(pins, [record("one", "d", "o"), record("two", "d", "o")]) == (ForgetPin("one"),)


def test_a_pin_on_an_image_that_is_away_waits_for_it() -> None:
    assert decide([pin("tag", "d")], []) == ()
    assert decide([pin("tag", "d", NOW + 1)], []) == ()
    assert decide([pin("tag", "d", NOW)], []) == (ReleasePin("tag"),)


def test_expiries_and_sizes() -> None:
    pins = [pin("a", "d", 50.0), pin("b", "d", 40.0), pin("c", "e"), pin("gone", "f", 1.0, releasing=True)]
    assert next_expiry(pins) == 40.0
    assert next_expiry([pin("c", "e")]) is None
    assert total_size(pins) == 20


pins_ = st.lists(
    st.builds(
        pin,
        st.sampled_from(NAMES),
        st.sampled_from([*DIGESTS, "sha256:gone"]),
        st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
        releasing=st.booleans(),
    ),
    unique_by=lambda row: row.reference,
    max_size=4,
)
records_ = st.lists(
    st.builds(
        record, st.sampled_from([*NAMES, "x", "y"]), st.sampled_from(DIGESTS), st.sampled_from(["", "o", "t", "m"])
    ),
    unique_by=lambda entry: entry.name,
    max_size=6,
)


@given(pins_, records_)
def test_the_rules_come_to_rest_and_then_the_labels_say_what_the_pins_say(
    pins: list[PinRow], records: list[ImageRecord]
) -> None:
    theirs = {entry.name for entry in records if entry.pinned and MARK not in entry.labels}
    before = {entry.name: entry for entry in records}
    for _ in range(4):
        actions = decide(pins, records)
        pins, records = apply(actions, pins, records)
    assert decide(pins, records) == ()
    live = {row.reference: row for row in pins}
    assert not any(row.releasing for row in pins)
    assert not any(row.expires_at is not None and row.expires_at <= NOW for row in pins)
    targets = {entry.name: entry.target.digest for entry in records}
    pinned = {targets[name] for name in live if name in targets}
    for entry in records:
        if entry.target.digest in pinned:
            assert entry.pinned
        else:
            assert MARK not in entry.labels
            assert entry.pinned == (entry.name in theirs)
        if entry.name in theirs:
            assert entry.labels == before[entry.name].labels
        assert entry.labels["other"] == "stays"
    for name, row in live.items():
        assert row.digest == targets.get(name, row.digest)
