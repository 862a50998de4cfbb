"""What would be done for a request, for people to read before it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.objects.containers import Owner, PlannedStep
from stokerd.containers.model import Seen, Spec, TargetSpec


class Subject(msgspec.Struct, frozen=True):
    """A container that would be recreated, with its preStop hook in words, or why that cannot be run."""

    spec: TargetSpec
    current: Seen
    grace: float
    hook: str = ""
    hook_problem: str = ""


def steps(spec: Spec, owner: Owner, subjects: Sequence[Subject]) -> list[PlannedStep]:
    """Return the steps in the order in which they would be begun."""
    planned: list[PlannedStep] = []
    for each in subjects:
        if each.spec.image:
            planned.append(_step(each, "warm", each.spec.image))
    if spec.unready_grace:
        planned.append(PlannedStep(container="", action="wait", detail=f"{spec.unready_grace:g} s before any stop"))
    each_whole = [_one(spec, owner, each) for each in subjects]
    if spec.ordered or len(subjects) < 2:
        return planned + [step for whole in each_whole for step in whole]
    for depth in range(max(map(len, each_whole))):  # side by side
        planned += [whole[depth] for whole in each_whole if depth < len(whole)]
    return planned


def _one(spec: Spec, owner: Owner, each: Subject) -> list[PlannedStep]:
    planned = [] if owner == "kubelet" else [_step(each, "create", _creation(each))]
    if each.current.alive:
        if each.hook and not each.hook_problem and each.grace > 0:
            planned.append(_step(each, "prestop", each.hook))
        planned.append(_step(each, "stop", f"attempt {each.current.attempt}, within {each.grace:g} s"))
    if owner == "kubelet":
        planned.append(_step(each, "wait", "for the kubelet to start the next attempt"))
    else:
        planned.append(_step(each, "start", ""))
    planned.append(_step(each, "verify", _verification(spec, each)))
    if owner != "kubelet":
        planned.append(_step(each, "remove", f"attempt {each.current.attempt}"))
    return planned


def _step(each: Subject, action: str, detail: str) -> PlannedStep:
    return PlannedStep(container=each.spec.name, action=action, detail=detail)


def _creation(each: Subject) -> str:
    parts = ["beside the old one"]
    if each.spec.image:
        parts.append(f"image {each.spec.image}")
    if each.spec.env_set:
        parts.append("sets " + ", ".join(each.spec.env_set))
    if each.spec.env_removed:
        parts.append("takes away " + ", ".join(each.spec.env_removed))
    return "; ".join(parts)


def _verification(spec: Spec, each: Subject) -> str:
    probe = each.spec.probe
    parts = [f"stays up for {spec.min_started:g} s" if spec.min_started else "runs"]
    if probe is not None:
        what = f"port {probe.tcp_port}" if probe.tcp_port else f"command {probe.exec[0]}"
        parts.append(f"probe: {what}, up to {probe.failure_threshold} times")
    return "; ".join(parts)


def warnings(owner: Owner, ready: bool, waits_for: str, subjects: Sequence[Subject]) -> list[str]:
    """Return what is worth knowing before."""
    found = []
    if not ready:
        found.append("the pod's sandbox is not ready: the request would fail at once, with SandboxGone")
    if waits_for:
        found.append(f"it would wait for the request {waits_for} on the same pod")
    for each in subjects:
        if each.hook_problem:
            found.append(f"{each.spec.name}: its preStop hook cannot be run: {each.hook_problem}")
        if owner == "kubelet" and not each.current.alive:
            found.append(f"{each.spec.name}: it does not run; the kubelet may wait before it starts it again")
    if owner == "kubelet":
        found.append("the kubelet starts the next attempt only where the pod's restartPolicy lets it")
    return found
