"""From what is wished for and what is known of it, what to do next. Pure.

The coordinator says everything that it wishes, again and again; each wish is begun once. What is wished for no more is
broken off; what is over is kept until the coordinator has it. What some kinds have made goes with their wish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from stoker.objects.link import FINAL, ResultKey, Wish
from stokerd.journal.rows import WishRow

MOST_ROWS = 20_000
"""Wishes and results that are kept. The oldest results go beyond that, even if nobody ever came for them."""


class Begin(Struct, frozen=True):
    """Begin with a wish, or find what was begun of it before a restart."""

    wish: Wish


LASTING = frozenset({"clone"})
"""Kinds of wishes that make what is there only as long as it is wished for."""


class BreakOff(Struct, frozen=True):
    key: ResultKey


class Undo(Struct, frozen=True):
    """Remove what a wish has made, and then forget it."""

    key: ResultKey


class Adopt(Struct, frozen=True):
    """Write a wish down that is over and that the journal lost: what it made is to go when it does."""

    wish: Wish


class Forget(Struct, frozen=True):
    key: ResultKey


Action: TypeAlias = Begin | BreakOff | Undo | Adopt | Forget


def key_of(row: WishRow) -> ResultKey:
    return ResultKey(row.uid, row.generation)


def plan(
    wishes: Sequence[Wish], paused: bool, rows: Iterable[WishRow], busy: Iterable[ResultKey]
) -> tuple[Action, ...]:
    """Return what to do. *busy*: wishes that something follows already."""
    known = {key_of(row): row for row in rows}
    wanted = {ResultKey(wish.uid, wish.generation): wish for wish in wishes}
    at_work = set(busy)
    actions: list[Action] = []
    for key, row in known.items():
        if key in wanted:
            continue
        if row.phase not in FINAL:
            actions.append(BreakOff(key))
        elif row.acknowledged:
            actions.append(Undo(key) if row.kind in LASTING else Forget(key))
    for key, wish in wanted.items():
        found = known.get(key)
        if wish.done:
            actions += [Adopt(wish)] if found is None and wish.kind in LASTING else []
            continue
        begun = key in at_work or (found is not None and found.phase in FINAL)
        # What was begun goes on while the node is paused; a row alone only says that it was about to be.
        if not begun and not (paused and (found is None or not found.local)):
            actions.append(Begin(wish))
    kept = len(known) + sum(isinstance(each, Begin) for each in actions)
    if kept > MOST_ROWS:
        old = (row for row in known.values() if row.phase in FINAL and row.kind not in LASTING)
        over = sorted(old, key=lambda row: row.created_at)
        gone = {each.key for each in actions if isinstance(each, Forget)}
        actions += [Forget(key_of(row)) for row in over[: kept - MOST_ROWS] if key_of(row) not in gone]
    return tuple(actions)
