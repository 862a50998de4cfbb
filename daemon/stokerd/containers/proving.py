"""Whether a container that was started has proven itself. Pure."""

from __future__ import annotations

from stokerd.containers.actions import Check, Examine, Observe, Settle
from stokerd.containers.model import Seen, Target
from stokerd.containers.scene import Scene, Step


class Unfit(str):
    """Why a container will not do."""

    __slots__ = ()


def prove(scene: Scene, target: Target, running: Seen) -> Step | Unfit:
    """Return what comes next for a container that runs: Settle with success once it has stayed up and is ready."""
    if running.started_at is None:
        return Examine(target.name, running.id)
    ready_at = running.started_at + scene.ask.spec.min_started
    probe, effort = target.spec.probe, target.effort
    if probe is not None and not effort.probed:
        if effort.probe_failures >= probe.failure_threshold:
            return Unfit(f"the probe failed {effort.probe_failures} times in a row: {effort.remark}")
        if scene.halt != "DeadlineExceeded":
            return Check(target.name, running.id) if scene.now >= effort.probe_at else effort.probe_at
    elif scene.now >= ready_at:
        if scene.sight.at < ready_at:
            return Observe(full=False)
        return _proven(target, running)
    if scene.halt == "DeadlineExceeded":
        return Unfit("")
    return ready_at


def _proven(target: Target, running: Seen) -> Settle:
    text = f"runs as attempt {running.attempt}"
    return Settle(target.name, "Succeeded", "Recreated", text, container=running.id, attempt=running.attempt)


def ending(seen: Seen) -> str:
    """Say how a container ended."""
    code = "" if seen.exit_code is None else f" with status {seen.exit_code}"
    return f"exited{code}" + (f" ({seen.reason})" if seen.reason and seen.reason not in {"Error", "Completed"} else "")
