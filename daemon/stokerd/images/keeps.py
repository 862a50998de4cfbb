"""When an image that should stay warm is warmed again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stokerd.journal.rows import KeepRow

_FIRST_PAUSE = 5.0
_FORGIVEN_AFTER = 4.0
"""A keep that held for so many times its longest pause counts as new."""


@dataclass(frozen=True, slots=True)
class Rewarm:
    """Warm *reference* again."""

    reference: str


def decide_keeps(
    keeps: Iterable[KeepRow],
    present: Collection[str],
    busy: Collection[str],
    now: float,
    pause_limit: float,
    tries: Mapping[str, int] | None = None,
) -> tuple[tuple[Rewarm, ...], float | None]:
    """Return what to warm again, and when to look again because a pause ends (None: nothing waits).

    ``present``: references that are warm; ``busy``: references that are being pulled; ``tries``: how often each was
    warmed again since it was last seen warm. The pause after a rewarm doubles with each one, so that two programs that
    disagree about an image do not fight over the network, and with each that brought nothing, so that an image that is
    gone from its registry is not asked for all the time.
    """
    actions: list[Rewarm] = []
    wake: list[float] = []
    for keep in keeps:
        if keep.reference in present or keep.reference in busy:
            continue
        ready = (keep.last_rewarm_at or 0.0) + pause_after(keep, now, pause_limit, (tries or {}).get(keep.reference, 0))
        if ready <= now:
            actions.append(Rewarm(keep.reference))
        else:
            wake.append(ready)
    return tuple(actions), min(wake, default=None)


def pause_after(keep: KeepRow, now: float, limit: float, tries: int = 0) -> float:
    """Return the seconds between a keep's last rewarm and the next; *tries* rewarms since have brought nothing."""
    if keep.last_rewarm_at is None or now - keep.last_rewarm_at > _FORGIVEN_AFTER * limit:
        return 0.0
    return min(_FIRST_PAUSE * 2.0 ** min(max(keep.rewarmed - 1, tries - 1, 0), 30), limit)
