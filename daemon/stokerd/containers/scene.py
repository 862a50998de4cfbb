"""One moment of a request, as its planner sees it. Pure."""

from __future__ import annotations

import msgspec

from stokerd.containers.actions import Action, Remove, Settle
from stokerd.containers.model import ROLES, Ask, Halt, Sight, Target, ours

Step = Action | float | None
"""What to do for a target; or until when to wait; or None, when an event has to come first."""
MAX_FAILURES = 3
MIN_STOP = 2.0
"""Seconds that a container has to stop in, however long its hook took."""


class Scene(msgspec.Struct, frozen=True):
    ask: Ask
    targets: tuple[Target, ...]
    sight: Sight
    now: float

    @property
    def halt(self) -> Halt:
        """Why nothing more is begun; empty: no reason."""
        if self.ask.cancelled:
            return "Cancelled"
        return "DeadlineExceeded" if self.now >= self.ask.deadline_at else ""

    @property
    def over(self) -> bool:
        """A container has failed, and the others are to be left alone then."""
        return self.ask.spec.failure_policy == "Fail" and any(each.row.phase == "Failed" for each in self.targets)

    @property
    def stop_at(self) -> float:
        """Until then nothing is stopped, so that load balancers can take the pod out."""
        return self.ask.started_at + self.ask.spec.unready_grace

    def turn(self, target: Target) -> bool:
        """Say whether all that go before *target* have come to their end."""
        earlier = (each for each in self.targets if each.row.position < target.row.position)
        return not self.ask.spec.ordered or all(each.final for each in earlier)

    @property
    def warm(self) -> bool:
        """No image is missing for the containers that are not done."""
        return all(each.final or each.committed or each.effort.warmed or not each.spec.image for each in self.targets)

    @property
    def prepared(self) -> bool:
        """Where one failure ends all: nothing stands in the way of any container, so that the first may be stopped."""
        if self.ask.spec.failure_policy == "Ignore":
            return True
        if self.ask.spec.ordered or self.ask.owner == "kubelet":
            return self.warm
        return all(each.final or each.committed or ours(self.sight, each, "new") is not None for each in self.targets)


def given_up(scene: Scene, target: Target) -> Settle | None:
    """Return how a target ends that must not be touched any more, None when it may be."""
    if scene.halt == "Cancelled":
        return failed(target, "Cancelled", "the request was cancelled; this container was not touched")
    if scene.halt == "DeadlineExceeded":
        why = f": {target.effort.remark}" if target.effort.remark else ""
        return failed(
            target,
            "DeadlineExceeded",
            f"the deadline of the request passed; this container was not touched{why}",
            "ask again, or give activeDeadlineSeconds more room",
        )
    if scene.over:
        return failed(
            target,
            "Skipped",
            "another container of the request failed; this one was not touched",
            "failurePolicy Ignore lets the others go on",
        )
    return None


def failed(target: Target, reason: str, message: str, hint: str = "") -> Settle:
    return Settle(target.name, "Failed", reason, message, hint)


def drop(scene: Scene, target: Target, then: Action) -> Action:
    """Remove what was made for *target* and does not run; *then* comes when nothing of it is left."""
    for role in ROLES:
        made = ours(scene.sight, target, role)
        if made is None or made.state not in {"created", "exited"}:
            continue
        if scene.ask.up and target.effort.failures < MAX_FAILURES:
            return Remove(target.name, made.id)
    return then


def stop_grace(scene: Scene, target: Target) -> float:
    """Return the seconds between signal and kill: what the hook, or a crash of ours, has left of the grace."""
    begun = target.row.committed_at
    if begun is None or not target.effort.spent:
        return target.effort.grace
    return max(MIN_STOP, begun + target.effort.grace - scene.now)
