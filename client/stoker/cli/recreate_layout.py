"""Containers that are being recreated, as lines of text. Pure functions from the state to lines."""

from __future__ import annotations

from datetime import datetime

from stoker.cli.text import Style, clean, pad, shorten_end, width_of
from stoker.objects.containers import RecreateStatus, TargetStatus
from stoker.units import brief_duration, fine_duration

_FAILED = {"Failed"}
_OVER = {"Succeeded", "Failed"}
_STEPS = {
    "Waiting": "waiting",
    "Warming": "warming {image}",
    "Creating": "creating attempt {new}",
    "PreStop": "preStop hook of attempt {old}",
    "Stopping": "stopping attempt {old}",
    "Starting": "starting attempt {new}",
    "Verifying": "verifying attempt {new}",
    "RollingBack": "rolling back",
    "Removing": "removing attempt {old}",
}


def pod_name(status: RecreateStatus) -> str:
    """Return ``namespace/name`` of the pod of a request."""
    if status.namespace:
        return clean(f"{status.namespace}/{status.pod}")
    return clean(status.pod or status.pod_id[:13] or status.id)


def step_text(target: TargetStatus) -> str:
    """Return what a container is at: ``stopping attempt 2``."""
    if target.phase == "Pending" or not target.step:
        return "recreating" if target.phase == "Recreating" else target.phase.lower().replace("pending", "waiting")
    new = target.new_attempt or target.old_attempt + 1
    return clean(_STEPS[target.step].format(image=target.image or "its image", old=target.old_attempt, new=new))


def attempts(target: TargetStatus, style: Style) -> str:
    """Return ``attempt 2 → 3``; empty when nothing took the place of the old container."""
    if not target.new_id:
        return ""
    return f"attempt {target.old_attempt} {style.arrow} {target.new_attempt}"


def outcome(target: TargetStatus, style: Style) -> str:
    """Return what became of a container, without marks: ``recreated, attempt 2 → 3, down 420ms``."""
    parts = [attempts(target, style)]
    if target.downtime_seconds:
        parts.append(f"down {fine_duration(target.downtime_seconds)}")
    if target.phase == "Succeeded":
        usual = target.reason in {"", "Recreated"}
        head = "recreated" if usual else clean(target.message or target.reason)
        return ", ".join(part for part in [head, *parts] if part)
    head = clean(f"{target.reason or 'Failed'}: {target.message or 'no message'}")
    if target.rolled_back:
        told = "" if target.reason == "RolledBack" else "; rolled back"
        return ", ".join(part for part in [f"{head}{told}", *parts] if part)
    if not target.is_killed:
        return f"{head}; the old container was not stopped"
    return ", ".join(part for part in [head, *parts] if part)


def finished_lines(target: TargetStatus, style: Style, width: int) -> list[str]:
    """Return the lines about a container that is over; *width*: columns that its name gets."""
    name = pad(clean(target.name), width)
    if target.phase == "Succeeded":
        return [f"{style.ok} {name}  {style.paint(outcome(target, style), 'dim')}"]
    lines = [f"{style.bad} {name}  {outcome(target, style)}"]
    if target.hint:
        lines.append(f"    {style.paint('hint:', 'yellow')} {clean(target.hint)}")
    return lines


def name_width(status: RecreateStatus) -> int:
    """Return the columns that the longest name takes, within reason."""
    return min(30, max((width_of(clean(target.name)) for target in status.containers), default=0))


def target_line(target: TargetStatus, *, wall: datetime, name: int, width: int, style: Style) -> str:
    """Return the line of a container that is not over: its name, what is being done, and for how long.

    *name*: columns of the name, *wall*: the time of day, *width*: of the terminal.
    """
    text = f"  {pad(shorten_end(clean(target.name), name, style), name)}  {step_text(target)}"
    since = ""
    if target.phase == "Recreating" and target.started_at:
        since = brief_duration(max(0.0, (wall - target.started_at).total_seconds()))
    text = shorten_end(text, max(1, width - 2 - width_of(since)), style)
    line = pad(text, max(1, min(width, 78) - 1 - width_of(since))) + since if since else text
    return style.paint(line, "dim") if target.phase == "Pending" else line


def frame(
    status: RecreateStatus, *, wall: datetime, took: float, trouble: str, width: int, height: int, style: Style
) -> list[str]:
    """Return the lines of the live part: one for each container that is not over, and the summary."""
    active = [target for target in status.containers if target.phase not in _OVER]
    active.sort(key=lambda target: target.phase == "Pending")
    room = max(0, height - 3)
    name = name_width(status)
    lines = [target_line(target, wall=wall, name=name, width=width, style=style) for target in active[:room]]
    if len(active) > room:
        lines.append(style.paint(f"  {style.dots} and {len(active) - room} more", "dim"))
    return [*lines, summary_line(status, took=took, trouble=trouble, width=width, style=style)]


def summary_line(status: RecreateStatus, *, took: float, trouble: str, width: int, style: Style) -> str:
    """Return the last line of the live part; its parts stand in the order of their weight, and the last go first."""
    over = sum(target.phase in _OVER for target in status.containers)
    failed = sum(target.phase in _FAILED for target in status.containers)
    parts = [f"{over}/{len(status.containers)} containers"]
    if trouble:
        parts.append(style.paint(f"no connection: {clean(trouble)}", "yellow"))
    if status.waiting_for:
        parts.append(f"waits for {clean(status.waiting_for)}, which is at the same pod")
    if failed:
        parts.append(style.paint(f"{failed} failed", "red"))
    parts += [pod_name(status), brief_duration(took), clean(status.id)]
    while len(parts) > 1 and width_of(style.separator.join(parts)) > width - 1:
        parts.pop()
    return style.separator.join(parts) if len(parts) > 1 else shorten_end(parts[0], max(1, width - 1), style)


def closing_line(status: RecreateStatus, took: float) -> str:
    """Return the one sentence about a request that is over."""
    desired = len(status.containers)
    done = sum(target.phase == "Succeeded" for target in status.containers)
    failed = sum(target.phase in _FAILED for target in status.containers)
    noun = "container" if desired == 1 else "containers"
    where = pod_name(status)
    if status.result == "Succeeded":
        return f"{where}: {desired} {noun} recreated in {fine_duration(took)}"
    parts = [f"{done} of {desired} {noun} recreated"]
    if failed:
        parts.append(f"{failed} failed")
    if status.result == "Cancelled":
        parts.append("the rest cancelled" if done else "cancelled")
    text = f"{where}: {', '.join(parts)}, after {fine_duration(took)}"
    return f"{text}: {clean(status.message)}" if status.message and not failed else text


def took_seconds(status: RecreateStatus, now: datetime) -> float:
    """Return how long a request has been under way, or was."""
    if status.created_at is None:
        return 0.0
    return max(0.0, ((status.finished_at or now) - status.created_at).total_seconds())
