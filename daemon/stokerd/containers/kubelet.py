"""Recreating under a kubelet: the container is stopped, and the kubelet starts its next attempt. Pure."""

from __future__ import annotations

from stokerd.containers.actions import Commit, Examine, Settle
from stokerd.containers.model import Seen, Target
from stokerd.containers.proving import Unfit, ending, prove
from stokerd.containers.scene import Scene, Step, failed, given_up
from stokerd.containers.swap import end_old, not_stopped, restarted, retarget


def let_restart(scene: Scene, target: Target) -> Step:
    old = scene.sight.find(target.row.old_id)
    follower = _follower(scene, target)
    if not target.committed:
        return _begin(scene, target, old, follower)
    if old is not None and old.alive:
        if target.effort.stuck:
            return not_stopped(target)
        return end_old(scene, target, old)
    if scene.ask.parking:
        return None
    if follower is None or follower.state != "running":
        return _wait(scene, target, follower)
    step = prove(scene, target, follower)
    if not isinstance(step, Unfit):
        return step
    what = str(step) or "it had not proven itself when the deadline of the request passed"
    return Settle(
        target.name,
        "Failed",
        "ProbeFailed" if step else "DeadlineExceeded",
        f"the kubelet started attempt {follower.attempt}: {what}",
        container=follower.id,
        attempt=follower.attempt,
    )


def _follower(scene: Scene, target: Target) -> Seen | None:
    """Return the newest attempt after the one to be recreated."""
    later = [
        each
        for each in scene.sight.named(target.name)
        if each.id != target.row.old_id and each.attempt > target.row.old_attempt
    ]
    return max(later, key=lambda each: each.attempt, default=None)


def _begin(scene: Scene, target: Target, old: Seen | None, follower: Seen | None) -> Step:
    if follower is not None:
        return retarget(scene, target, follower) or restarted(target, follower)
    if old is None:
        return failed(
            target, "ContainerGone", f"container {target.row.old_id[:13]} was removed by something else meanwhile",
            "`stoker containers` shows what is there now",
        )  # fmt: skip
    end = given_up(scene, target)
    if end is not None:
        return end
    if scene.ask.parking or not scene.turn(target):
        return None
    if old.alive and scene.now < scene.stop_at:
        return scene.stop_at
    return Commit(target.name)


def _wait(scene: Scene, target: Target, follower: Seen | None) -> Step:
    """The kubelet waits longer after each crash; nobody but it may start the next attempt."""
    if follower is not None and follower.state == "exited" and follower.exit_code is None:
        return Examine(target.name, follower.id)
    if scene.halt != "DeadlineExceeded":
        return None
    so_far = "has not started it again"
    if follower is not None:
        so_far = f"started attempt {follower.attempt}, which {ending(follower)}" if follower.state == "exited" else (
            f"created attempt {follower.attempt} and has not started it"
        )  # fmt: skip
    return failed(
        target,
        "DeadlineExceeded",
        f"the kubelet {so_far}",
        "look at the pod's events: its restart policy, or a pause after crashes, may hold it back",
    )
