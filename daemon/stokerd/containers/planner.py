"""What comes next for a request: a function of what was asked, of what is there, and of the time. Pure.

`decide` may be called as often as one likes. It asks for nothing that is under way already (``busy``), and what it
asks for it would ask for again after any crash, since it goes by what the runtime shows.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from stokerd.containers.actions import EVERYTHING, Action, Decision, Observe
from stokerd.containers.kubelet import let_restart
from stokerd.containers.model import NEVER, Ask, Sight, Target
from stokerd.containers.scene import Scene, Step, drop, failed, given_up
from stokerd.containers.swap import swap

LOOK_AGAIN = 5.0
"""Seconds after which a pod that is waited for is looked at, even if no event has come."""


def decide(ask: Ask, targets: tuple[Target, ...], sight: Sight, busy: AbstractSet[str], now: float) -> Decision:
    """Return what is to be done at once, and when to ask again if nothing happens before."""
    scene = Scene(ask, targets, sight, now)
    open_targets = [each for each in targets if not each.final]
    if not open_targets:
        return Decision()
    if not ask.up or sight.at == NEVER:
        return _blind(scene, open_targets, busy)
    actions: list[Action] = []
    wakes = [ask.deadline_at] if now < ask.deadline_at else []
    waiting = False
    for target in open_targets:
        if target.name in busy:
            continue
        step = _step(scene, target)
        if step is None or isinstance(step, float):
            waiting = waiting or target.committed
            wakes += [step] if step is not None else []
        else:
            actions.append(step)
    if waiting and EVERYTHING not in busy:
        if now >= sight.at + LOOK_AGAIN:
            actions.append(Observe(full=False))
        else:
            wakes.append(sight.at + LOOK_AGAIN)
    return Decision(_single(actions, busy), min(wakes, default=None))


def _step(scene: Scene, target: Target) -> Step:
    if scene.sight.sandbox != "ready":
        what = "is gone" if scene.sight.sandbox == "gone" else "is not ready any more"
        left = "" if target.committed else "; this container was not touched"
        return drop(scene, target, failed(
            target, "SandboxGone", f"the pod's sandbox {what}, and a container cannot be started in it{left}",
            "make the pod anew",
        ))  # fmt: skip
    if scene.now < target.effort.not_before and (target.committed or given_up(scene, target) is None):
        return target.effort.not_before
    if not target.effort.known and scene.sight.find(target.row.old_id) is not None:
        return Observe()
    return let_restart(scene, target) if scene.ask.owner == "kubelet" else swap(scene, target)


def _blind(scene: Scene, targets: list[Target], busy: AbstractSet[str]) -> Decision:
    """Nobody can say what is there: look, or, when the runtime is away, end what time is up for and was not touched."""
    if scene.ask.up:
        if EVERYTHING in busy:
            return Decision()
        if scene.now >= scene.sight.not_before:
            return Decision((Observe(),))
        return Decision((), scene.sight.not_before)
    ends = [given_up(scene, each) for each in targets if not each.committed and each.name not in busy]
    settled = tuple(end for end in ends if end is not None)
    return Decision(settled, scene.ask.deadline_at if scene.now < scene.ask.deadline_at else None)


def _single(actions: list[Action], busy: AbstractSet[str]) -> tuple[Action, ...]:
    """Of several who want the pod to be looked at, one is enough."""
    looks = [each for each in actions if isinstance(each, Observe)]
    rest = tuple(each for each in actions if not isinstance(each, Observe))
    return rest if not looks or EVERYTHING in busy else (*rest, Observe(full=any(each.full for each in looks)))
