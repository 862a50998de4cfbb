"""Recreating without a kubelet: the new container is created beside the old one, then takes its place. Pure.

What to do next follows from what is there, so it does not matter what died in between:

    nothing of ours                → create it (the old one is not touched before)
    ours created, old one runs     → preStop hook, stop the old one
    ours created, old one exited   → start ours
    ours runs                      → wait until it has proven itself
    ours has failed                → create the old one anew, stop ours, start that
"""

from __future__ import annotations

from stokerd.containers.actions import (
    Blame,
    Commit,
    Create,
    Examine,
    Hook,
    Observe,
    Retarget,
    Settle,
    Start,
    Stop,
    Warm,
)
from stokerd.containers.model import ROLES, Seen, Target, next_attempt, ours
from stokerd.containers.proving import Unfit, ending, prove
from stokerd.containers.scene import MAX_FAILURES, MIN_STOP, Scene, Step, drop, failed, given_up, stop_grace

_NEVER_RAN = frozenset({"StartError", "Unknown"})
"""What containerd's CRI gives as the reason of a container that has exited without ever having run: it could not be
started; or containerd was killed over the start, and all it knows is that there is no process."""


def swap(scene: Scene, target: Target) -> Step:
    old = scene.sight.find(target.row.old_id)
    new = ours(scene.sight, target, "new")
    heir = _heir(scene, target, old)
    if heir is not None:
        return drop(scene, target, Retarget(target.name, heir.id, heir.attempt, target.row.forced))
    foreign = _foreign(scene, target, old)
    if foreign is not None:
        return _displaced(scene, target, foreign)
    if target.effort.stuck and old is not None and old.alive:
        return drop(scene, target, not_stopped(target))
    if target.row.verdict:
        return _go_back(scene, target, old, new)
    if new is None:
        return _prepare(scene, target, old)
    if new.state == "created":
        return _take_over(scene, target, old, new)
    if old is not None and old.alive:
        return Stop(target.name, old.id, stop_grace(scene, target))  # two never stay
    if new.state == "exited":
        return _fell(scene, target, new)
    if new.state == "unknown":
        return Stop(target.name, new.id, target.effort.grace)
    return _prove(scene, target, new)


def _heir(scene: Scene, target: Target, old: Seen | None) -> Seen | None:
    """Return what an earlier request made in place of the old one, running or not: its configuration is the one that
    holds now."""
    if target.committed or (old is not None and old.alive):
        return None
    made = [
        each
        for each in scene.sight.named(target.name)
        if each.attempt > target.row.old_attempt
        and each.state != "created"
        and each.request != scene.ask.id
        and (each.request or each.id in scene.ask.heirs)
    ]
    return max(made, key=lambda each: (each.alive, each.attempt), default=None)


def _foreign(scene: Scene, target: Target, old: Seen | None) -> Seen | None:
    """Return a container of the name that something else runs in place of the old one."""
    gone = old is None or not old.alive
    others = [
        each
        for each in scene.sight.named(target.name)
        if each.state == "running"
        and each.id != target.row.old_id
        and each.request != scene.ask.id
        and (gone or each.attempt > target.row.old_attempt)
    ]
    return max(others, key=lambda each: each.attempt, default=None)


def _displaced(scene: Scene, target: Target, foreign: Seen) -> Step:
    """Something else has restarted the container: ours goes, and with force theirs is recreated, once."""
    for role in ROLES:
        made = ours(scene.sight, target, role)
        if made is not None and made.alive and not target.effort.stuck:
            return Stop(target.name, made.id, target.effort.grace)
    again = retarget(scene, target, foreign)
    if again is not None:
        return drop(scene, target, again)
    return drop(scene, target, restarted(target, foreign))


def retarget(scene: Scene, target: Target, current: Seen) -> Retarget | None:
    """Return what makes *current* the container to recreate, None when it is to be left as it is.

    What earlier requests made is no restart by something else: whoever asks again wants it recreated again.
    """
    if target.committed:
        return None
    if current.request or current.id in scene.ask.heirs:
        return Retarget(target.name, current.id, current.attempt, target.row.forced)
    if scene.ask.spec.force and not target.row.forced:
        return Retarget(target.name, current.id, current.attempt, True)
    return None


def restarted(target: Target, current: Seen) -> Settle:
    """Return how a target ends whose container was restarted by something else meanwhile."""
    text = f"something else restarted it meanwhile, as attempt {current.attempt}"
    reason = "RestartedBySomethingElse"
    if target.spec.changed:
        text += "; the change of image or environment was not made"
        hint = "ask again, or with forceRecreate"
        return Settle(target.name, "Failed", reason, text, hint, container=current.id, attempt=current.attempt)
    text += "" if target.row.killed else "; nothing was stopped"
    return Settle(target.name, "Succeeded", reason, text, container=current.id, attempt=current.attempt)


# ---------------------------------------------------------------------------------------------- before anything is done


def _prepare(scene: Scene, target: Target, old: Seen | None) -> Step:
    effort = target.effort
    if not target.committed:
        end = _refused(scene, target, old)
        if end is not None:
            return drop(scene, target, end)
        if scene.ask.parking:
            return None
    elif effort.lost or effort.refused:
        why = effort.refused[1] if effort.refused else "the environment of the request was lost in a crash"
        return Blame(target.name, f"the new container could not be created: {why}")
    if target.spec.image and not effort.warmed:
        return Warm(target.name, target.spec.image)
    if effort.image_missing and not effort.image_restored:
        return Warm(target.name, restore=True)
    ready = scene.turn(target) and (scene.ask.spec.failure_policy == "Ignore" or scene.warm)
    return Create(target.name, "new", next_attempt(scene.sight, target)) if ready or target.committed else None


def _refused(scene: Scene, target: Target, old: Seen | None) -> Settle | None:
    """Return how an untouched target ends for which nothing can be made."""
    if old is None:
        return failed(
            target, "ContainerGone", f"container {target.row.old_id[:13]} was removed by something else meanwhile",
            "`stoker containers` shows what is there now",
        )  # fmt: skip
    if target.effort.refused is not None:
        return failed(target, *target.effort.refused)
    end = given_up(scene, target)
    if end is None and target.effort.lost:
        return failed(
            target,
            "EnvironmentLost",
            "stokerd was restarted before the new container was made, and values of variables are kept in memory only; "
            "this container was not touched",
            "ask again",
        )
    return end


# ---------------------------------------------------------------------------------------------- the change itself


def _take_over(scene: Scene, target: Target, old: Seen | None, new: Seen) -> Step:
    """The new one is there, and has not been started."""
    if old is not None and old.alive:
        return _stop(scene, target, old)
    if not target.committed:
        return Commit(target.name)  # nothing runs: whatever was to end the request, this container is not left dead
    if target.effort.refused is not None:
        return _afresh(scene, target, new) or Blame(target.name, _not_started(target.effort.refused[1]))
    if target.effort.failures >= MAX_FAILURES:
        return _afresh(scene, target, new) or Blame(target.name, _not_started(target.effort.remark))
    return Start(target.name, new.id)


def _afresh(scene: Scene, target: Target, new: Seen) -> Create | None:
    """Return what makes the new container once more, where it is not to blame for not having started.

    A stokerd that is killed takes its call with it, and the container is left as one that could not be started; a
    containerd that is killed loses the pipes of a container that was created, and cannot start it afterwards.
    """
    if new.created_at >= scene.ask.since:
        return None
    return Create(target.name, "new", next_attempt(scene.sight, target), source=new.id)


def _not_started(why: str) -> str:
    return f"the new container could not be started: {why}"


def _stop(scene: Scene, target: Target, old: Seen) -> Step:
    if not target.committed:
        end = given_up(scene, target)
        if end is not None:
            return drop(scene, target, end)
        if scene.ask.parking or not scene.prepared:
            return None
        return Commit(target.name) if scene.now >= scene.stop_at else scene.stop_at
    return end_old(scene, target, old)


def end_old(scene: Scene, target: Target, old: Seen) -> Step:
    """Run the hook, then stop."""
    grace = target.effort.grace
    if target.effort.hook and grace > 0:
        return Hook(target.name, old.id, grace - MIN_STOP if grace > MIN_STOP else grace)
    return Stop(target.name, old.id, stop_grace(scene, target))


def not_stopped(target: Target) -> Settle:
    return failed(
        target,
        "StopFailed",
        f"the container could not be stopped: {target.effort.remark}",
        "a process in uninterruptible sleep cannot be killed; look at the node's kernel log and its storage",
    )


# ---------------------------------------------------------------------------------------------- afterwards


def _prove(scene: Scene, target: Target, new: Seen) -> Step:
    if scene.ask.parking:
        return None
    step = prove(scene, target, new)
    if not isinstance(step, Unfit):
        return step
    if step:
        return Blame(target.name, str(step))
    if target.spec.changed:
        return Blame(target.name, "the new container had not proven itself when the deadline of the request passed")
    return Settle(
        target.name,
        "Failed",
        "DeadlineExceeded",
        f"the new container runs as attempt {new.attempt}, and had not proven itself when the deadline passed",
        container=new.id,
        attempt=new.attempt,
    )


def _fell(scene: Scene, target: Target, new: Seen) -> Step:
    """The new one has ended."""
    if target.effort.refused is not None:
        return _afresh(scene, target, new) or Blame(target.name, _not_started(target.effort.refused[1]))
    if new.exit_code is None:
        return Examine(target.name, new.id)
    if new.reason in _NEVER_RAN:
        again = _afresh(scene, target, new)
        if again is not None:
            return again
    return Blame(target.name, f"the new container {ending(new)}")


def _go_back(scene: Scene, target: Target, old: Seen | None, new: Seen | None) -> Step:
    """The old one is made anew before the new one is stopped, if it still runs: none is worse than a bad one."""
    if old is not None and old.alive:
        return drop(scene, target, failed(target, "CreateFailed", f"{target.row.verdict}; the old one still runs"))
    back = ours(scene.sight, target, "back")
    if back is None or back.state == "exited":
        if target.effort.returns >= MAX_FAILURES:
            return _lost(target, new)
        if target.effort.image_missing and not target.effort.image_restored:
            return Warm(target.name, restore=True)
        return Create(target.name, "back", next_attempt(scene.sight, target))
    if new is not None and new.alive:
        if target.effort.stuck:
            return drop(scene, target, _lost(target, new))
        return Stop(target.name, new.id, target.effort.grace)
    if back.state == "created":
        if target.effort.failures >= MAX_FAILURES:
            return _lost(target, new)
        return Start(target.name, back.id)
    if back.state == "unknown":
        return Stop(target.name, back.id, target.effort.grace)
    if back.started_at is None:
        return Examine(target.name, back.id)
    if scene.sight.at < back.started_at:
        return Observe(full=False)
    return Settle(
        target.name,
        "Failed",
        "RolledBack",
        f"{target.row.verdict}; the old one is back as attempt {back.attempt}",
        rolled_back=True,
        container=back.id,
        attempt=back.attempt,
    )


def _lost(target: Target, new: Seen | None) -> Settle:
    runs = new is not None and new.alive
    return Settle(
        target.name,
        "Failed",
        "RollbackFailed",
        f"{target.row.verdict}; the old one could not be brought back: {target.effort.remark or 'it exits at once'}; "
        + ("the new one still runs" if runs else "no container of this name runs now"),
        "see to the cause and recreate it again: its last container is still there",
        container=new.id if runs and new is not None else "",
        attempt=new.attempt if runs and new is not None else 0,
    )
