"""Which image records carry the pin label. Pure.

CRI calls an image pinned when any of its records (tag, digest, id) carries the label, so setting one would do; but a
re-pull writes the tag's record anew, and the label is gone. All records of a pinned image are labelled, with a mark of
our own beside it: a label without the mark was set by somebody else (CRI pins its sandbox image), and is never cleared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stokerd.journal.rows import PinRow
from stokerd.runtime.types import PIN_LABEL, PIN_VALUE, ImageRecord

MARK = "stoker.dev/pin"
MARK_VALUE = "yes"


@dataclass(frozen=True, slots=True)
class SetPin:
    """Label the record *name*."""

    name: str


@dataclass(frozen=True, slots=True)
class ClearPin:
    """Take our label off the record *name*."""

    name: str


@dataclass(frozen=True, slots=True)
class ReleasePin:
    """The pin on *reference* has expired: mark it as ending before its labels are cleared."""

    reference: str


@dataclass(frozen=True, slots=True)
class ForgetPin:
    """The pin on *reference* has ended and left no label: its row can go."""

    reference: str


@dataclass(frozen=True, slots=True)
class FollowPin:
    """The pinned name leads to another image now (it was pulled again): the pin goes with the name."""

    reference: str
    digest: str


PinAction = SetPin | ClearPin | ReleasePin | ForgetPin | FollowPin


def decide_pins(
    pins: Iterable[PinRow], names: Mapping[str, str], records: Iterable[ImageRecord], now: float
) -> tuple[PinAction, ...]:
    """Return what has to change for the labels to say what the pins say.

    ``names`` gives the record name (`Reference.pull_spec`) of each pin's reference. Applying the actions and deciding
    again yields nothing.
    """
    everything, rows = list(records), list(pins)
    targets = {record.name: record.target.digest for record in everything}
    pinned: set[str] = set()
    actions: list[PinAction] = []
    for pin in rows:
        digest = targets.get(names[pin.reference], "")
        if pin.releasing:
            continue
        if pin.expires_at is not None and pin.expires_at <= now:
            actions.append(ReleasePin(pin.reference))
        elif digest:
            pinned.add(digest)
            if digest != pin.digest:
                actions.append(FollowPin(pin.reference, digest))
    marked = {record.target.digest for record in everything if _ours(record)}
    actions += [ForgetPin(pin.reference) for pin in rows if pin.releasing and pin.digest not in marked - pinned]
    for record in everything:
        if record.target.digest in pinned:
            if not record.pinned:
                actions.append(SetPin(record.name))
        elif _ours(record):
            actions.append(ClearPin(record.name))
    return tuple(actions)


def next_expiry(pins: Iterable[PinRow]) -> float | None:
    """Return when the next pin ends, None when none does."""
    return min((pin.expires_at for pin in pins if pin.expires_at is not None and not pin.releasing), default=None)


def set_labels() -> dict[str, str | None]:
    return {PIN_LABEL: PIN_VALUE, MARK: MARK_VALUE}


def clear_labels() -> dict[str, str | None]:
    return {PIN_LABEL: None, MARK: None}


def total_size(pins: Iterable[PinRow]) -> int:
    """Return the bytes of all pinned images, one that several names pin counted once."""
    return sum({pin.digest or pin.reference: pin.size for pin in pins if not pin.releasing}.values())


def _ours(record: ImageRecord) -> bool:
    return MARK in record.labels
