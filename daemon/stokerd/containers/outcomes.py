"""What is known after an action has been carried out: functions of what was known and of its result. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from stokerd.containers.actions import (
    Action,
    Blame,
    Check,
    Commit,
    Create,
    Examine,
    Hook,
    Remove,
    Retarget,
    Settle,
    Start,
    Stop,
    Warm,
)
from stokerd.containers.model import NEVER, Effort, Seen, Sight, Target
from stokerd.containers.scene import MAX_FAILURES
from stokerd.errors import (
    JournalError,
    RuntimeAlreadyExists,
    RuntimeBusy,
    RuntimeFailure,
    RuntimeInvalid,
    RuntimeNotFound,
    RuntimeTimeout,
    RuntimeUnavailable,
    StokerError,
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_MOST_WAITS = 30
"""How often the end of what the runtime is doing is waited for: two minutes, with these pauses."""


class Learned(msgspec.Struct, frozen=True):
    """What the old container's configuration says."""

    grace: float
    hook: bool
    finished_at: float | None = None
    """When it ended, where it has."""


class Result(msgspec.Struct, frozen=True):
    """What came of an action.

    ``container``: the id of the one that was created. ``sight``: of an Observe, with ``learned`` for the targets whose
    old container was read. ``seen``: of an Examine, None when it is gone. ``ready``: of a Check. ``note``: of a Hook or
    a Check, what went wrong.
    """

    error: StokerError | None = None
    container: str = ""
    sight: Sight | None = None
    learned: Mapping[str, Learned] = {}
    seen: Seen | None = None
    ready: bool = False
    note: str = ""


# ---------------------------------------------------------------------------------------------- the pod


def looked(sight: Sight, result: Result, newer: Collection[str], now: float) -> Sight:
    """Return the sight after an Observe. Of the containers in *newer* more is known than it could see."""
    if result.sight is None:
        return replace(sight, at=NEVER, tries=sight.tries + 1, not_before=now + pause(sight.tries))
    known = {each.id: each for each in sight.containers}
    fresh = [
        known.get(each.id, each) if each.id in newer else _with_details(each, known.get(each.id))
        for each in result.sight.containers
        if each.id not in newer or each.id in known  # removed by us meanwhile
    ]
    missed = [each for each in sight.containers if each.id in newer and result.sight.find(each.id) is None]
    return replace(result.sight, containers=(*fresh, *missed))


def _with_details(fresh: Seen, known: Seen | None) -> Seen:
    """A listing does not say when a container was started, nor how it ended."""
    if known is None:
        return fresh
    code = known.exit_code if fresh.state == known.state else None
    return replace(fresh, started_at=known.started_at, exit_code=code, reason=known.reason)


def learned(target: Target, result: Result) -> Target:
    """Return the target after an Observe."""
    found = result.learned.get(target.name)
    if found is None or target.effort.known:
        return target
    spent = target.committed
    if spent and target.row.stopped_at is None:
        target = replace(target, row=replace(target.row, stopped_at=found.finished_at))
    return _effort(target, known=True, grace=found.grace, hook=found.hook and not spent, spent=spent)


def pause(tries: int) -> float:
    """Return the seconds to wait after so many failures before this one."""
    return min(_FIRST_PAUSE * 2.0 ** min(tries, 10), _LONGEST_PAUSE)


# ---------------------------------------------------------------------------------------------- one target


def carried_out(target: Target, sight: Sight, action: Action, result: Result, now: float) -> tuple[Target, Sight]:
    """Return the target and the pod after *action*, which is not an Observe."""
    error = result.error
    if isinstance(error, RuntimeUnavailable):
        return _again(target, now, error), replace(sight, at=NEVER)
    if error is not None and not isinstance(error, JournalError):
        return _failed(target, sight, action, error, now)
    match action:
        case Warm(restore=restore):
            return _done(target, **{"image_restored" if restore else "warmed": True}), sight
        case Commit():
            return _committed(target, sight, now), sight
        case Hook():
            return _effort(target, hook=False, spent=True, note=result.note), sight
        case Check():
            return _checked(target, result, now), sight
        case Blame(verdict=verdict):
            row = replace(target.row, verdict=verdict)
            effort = Effort(known=target.effort.known, grace=target.effort.grace, note=target.effort.note)
            return replace(target, row=row, effort=effort), sight
        case _:
            return _container_changed(target, sight, action, result, now)


def _container_changed(
    target: Target, sight: Sight, action: Action, result: Result, now: float
) -> tuple[Target, Sight]:
    match action:
        case Create(role=role, attempt=attempt):
            made = Seen(result.container, target.name, attempt, "created", now, target.row.request, role)
            row = replace(target.row, new_id=made.id, new_attempt=attempt) if role == "new" else target.row
            returns = target.effort.returns + (role == "back")
            refused = None if role == "new" else target.effort.refused
            return _done(replace(target, row=row), returns=returns, refused=refused), _put(sight, made)
        case Stop(container=container):
            return _stopped(target, sight, container, now)
        case Start(container=container):
            return _started(target, sight, container, now)
        case Examine(container=container):
            return _done(target), _examined(sight, container, result.seen, now)
        case Remove(container=container):
            return _done(target), _without(sight, container)
        case _:
            return target, sight


def settled(target: Target, sight: Sight, action: Retarget | Settle, now: float) -> Target:
    """Return the target after an action that is nothing but a decision."""
    if isinstance(action, Retarget):
        row = replace(
            target.row, old_id=action.container, old_attempt=action.attempt, forced=action.forced, new_id="",
            new_attempt=0,
        )  # fmt: skip
        effort = Effort(lost=target.effort.lost, warmed=target.effort.warmed)
        return replace(target, row=row, effort=effort)
    note = f"; {target.effort.note}" if target.effort.note else ""
    placed = sight.find(action.container)
    begun = target.row.running_at
    if begun is None and placed is not None and target.committed:  # by a kubelet
        begun = placed.started_at
    row = replace(
        target.row,
        running_at=begun,
        phase=action.phase,
        reason=action.reason,
        message=f"{action.message}{note}",
        hint=action.hint,
        rolled_back=action.rolled_back,
        new_id=action.container,
        new_attempt=action.attempt,
        finished_at=now,
    )
    return replace(target, row=row)


def _committed(target: Target, sight: Sight, now: float) -> Target:
    old = sight.find(target.row.old_id)
    killed = old is not None and old.alive
    return _done(replace(target, row=replace(target.row, committed_at=now, killed=killed)))


def _stopped(target: Target, sight: Sight, container: str, now: float) -> tuple[Target, Sight]:
    row = target.row
    if container == row.old_id:
        row = replace(row, stopped_at=now)
    gone = sight.find(container)
    after = _put(sight, replace(gone, state="exited", exit_code=None)) if gone is not None else sight
    return _done(replace(target, row=row), hook=False, spent=False), after


def _started(target: Target, sight: Sight, container: str, now: float) -> tuple[Target, Sight]:
    begun = sight.find(container)
    row = replace(target.row, running_at=now)
    if begun is None:
        return replace(target, row=row), replace(sight, at=NEVER)
    row = replace(row, new_id=begun.id, new_attempt=begun.attempt)
    return _done(replace(target, row=row)), _put(sight, replace(begun, state="running", started_at=now))


def _examined(sight: Sight, container: str, seen: Seen | None, now: float) -> Sight:
    if seen is None:
        return _without(sight, container)
    if seen.alive and (seen.started_at is None or seen.started_at > now):  # the clock was set back
        seen = replace(seen, started_at=now)
    return _put(sight, seen)


def _checked(target: Target, result: Result, now: float) -> Target:
    if result.ready:
        return _done(target, probed=True)
    probe = target.spec.probe
    period = probe.period_seconds if probe is not None else 1.0
    failures = target.effort.probe_failures + 1
    return _effort(target, probe_failures=failures, probe_at=now + period, remark=result.note)


# ---------------------------------------------------------------------------------------------- failures


def _failed(target: Target, sight: Sight, action: Action, error: StokerError, now: float) -> tuple[Target, Sight]:
    stale = replace(sight, at=NEVER)
    if isinstance(error, RuntimeBusy) and target.effort.tries < _MOST_WAITS:
        return _again(target, now, error), stale
    match action:
        case Warm(restore=restore):
            return _not_warmed(target, restore, error, now), sight
        case Create(role=role):
            return _not_created(target, role, error, now), stale
        case Start(container=container):
            return _not_started(target, sight, container, error, now), stale
        case Stop():
            failures = target.effort.failures + 1
            return _again(target, now, error, failures=failures, stuck=failures >= MAX_FAILURES), stale
        case Remove(container=container) if isinstance(error, RuntimeNotFound):
            return _done(target), _without(sight, container)
        case Remove():
            return _again(target, now, error, failures=target.effort.failures + 1), stale
        case Hook() | Check():  # the executor makes notes of what goes wrong with them
            return _again(target, now, error), sight
        case _:
            return _again(target, now, error), stale


def _not_warmed(target: Target, restore: bool, error: StokerError, now: float) -> Target:
    if target.row.verdict:
        return _again(target, now, error, returns=target.effort.returns + 1)
    if restore:
        message = f"the image that the container was made from is gone, and could not be pulled: {error.message}"
        return _effort(target, refused=("ImageGone", message, error.hint or "pull it again, or give another image"))
    message = f"the image could not be warmed ({error.reason}): {error.message}"
    return _effort(target, refused=("WarmFailed", message, error.hint or ""))


def _not_created(target: Target, role: str, error: StokerError, now: float) -> Target:
    effort = target.effort
    back = role == "back"
    returns = effort.returns + back
    # A containerd that was killed over a snapshot fails once with what that left, and takes it away in doing so.
    passing = isinstance(error, RuntimeTimeout | RuntimeAlreadyExists) or type(error) is RuntimeFailure
    if passing and effort.failures + 1 < MAX_FAILURES:
        return _again(target, now, error, failures=effort.failures + 1, returns=returns)
    if isinstance(error, RuntimeNotFound):
        if (back or not target.spec.image) and not effort.image_restored:
            return _effort(target, image_missing=True, remark=error.message)
        if not back and target.spec.image and not effort.failures:
            return _effort(target, warmed=False, failures=1, remark=error.message)  # removed since it was warmed
    if back:
        return _again(target, now, error, returns=returns)
    if isinstance(error, RuntimeNotFound):
        gone = f"the container's image is gone: {error.message}"
        return _effort(target, refused=("ImageGone", gone, error.hint or "pull the image again"))
    message = f"the new container could not be created: {error.message}"
    return _effort(target, refused=("CreateFailed", message, error.hint or ""))


def _not_started(target: Target, sight: Sight, container: str, error: StokerError, now: float) -> Target:
    begun = sight.find(container)
    failures = target.effort.failures + 1
    if begun is not None and begun.role == "back":
        return _again(target, now, error, failures=failures)
    if isinstance(error, RuntimeTimeout | RuntimeInvalid) and failures < MAX_FAILURES:
        return _again(target, now, error, failures=failures)
    return _effort(target, refused=("StartFailed", error.message, error.hint or ""))


# ---------------------------------------------------------------------------------------------- small things


def _effort(target: Target, **changes: object) -> Target:
    return replace(target, effort=replace(target.effort, **changes))


def _done(target: Target, **changes: object) -> Target:
    """Something has gone well: what failed before does not count any more."""
    return _effort(target, tries=0, failures=0, not_before=0.0, **changes)


def _again(target: Target, now: float, error: StokerError, **changes: object) -> Target:
    """Try once more, later."""
    tries = target.effort.tries
    return _effort(target, tries=tries + 1, not_before=now + pause(tries), remark=error.message, **changes)


def _put(sight: Sight, seen: Seen) -> Sight:
    others = tuple(each for each in sight.containers if each.id != seen.id)
    return replace(sight, containers=(*others, seen))


def _without(sight: Sight, container: str) -> Sight:
    return replace(sight, containers=tuple(each for each in sight.containers if each.id != container))
