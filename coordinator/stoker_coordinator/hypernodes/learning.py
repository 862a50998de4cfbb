"""What holds of a central source after it was asked once more. Pure.

A source that fails or brings nothing deletes nothing: what it said before holds, and the reason is shown. One that
suddenly says less than half is held back, too, until it has said so three times in a row: half a fabric may be on the
move, but more often a dump was cut short.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from stoker.fabrics.foreign import plain
from stoker_coordinator.hypernodes.model import Reading, SourceState

TIMES_HELD = 3
_MUCH_LESS = 0.5


def learn(before: SourceState, reading: Reading, now: datetime) -> SourceState:
    """Return the source after it has answered with *reading*."""
    known = before.reading
    if known is not None and known.weight and not reading.weight:
        return _kept(before, "failed", "it says nothing at all", now)
    if not reading.weight and reading.unread.count:
        return _kept(before, "failed", f"nothing of it was understood: {reading.unread.samples[0]}", now)
    if known is not None and reading.weight < known.weight * _MUCH_LESS and before.held + 1 < TIMES_HELD:
        reason = (
            f"it tells of {reading.weight} links, after {known.weight}; asked {before.held + 1} of {TIMES_HELD} times"
        )
        return replace(_kept(before, "held", reason, now), held=before.held + 1)
    since = before.since if before.state == "ok" and before.since is not None else now
    # Equal readings are one: nothing is to be built anew for them.
    same = known is not None and known == reading
    return SourceState(before.name, known if same else reading, now, "ok", since)


def failed(before: SourceState, reason: str, now: datetime) -> SourceState:
    """Return the source after it could not be read."""
    return _kept(before, "failed", reason, now)


def _kept(before: SourceState, state: str, reason: str, now: datetime) -> SourceState:
    since = before.since if before.state == state and before.since is not None else now
    return replace(before, state=state, since=since, reason=plain(reason, 200), held=0)
