"""Operations on checkpoints as lines of text. Pure functions from the state to lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.cli.text import Style, clean, pad, shorten_end, width_of
from stoker.units import brief_duration, fine_duration, format_size

if TYPE_CHECKING:
    from datetime import datetime

    from stoker.objects.checkpoints import CheckpointInfo, CloneInfo, CommittedImage, Operation, PushedTo

_WORDS = {
    "Checkpoint": "checkpoint of",
    "Clone": "clone of",
    "Restore": "restore of",
    "Commit": "commit of",
    "Verify": "verification of",
    "Export": "export of",
    "Import": "import of",
    "Push": "push of",
    "Pull": "pull of",
}
_STEPS = {"surrounding": "preparing root, files and network"}
"""Steps of which the name alone says too little."""


def title(operation: Operation) -> str:
    """Return what is done, in words: ``checkpoint of default/web/app``."""
    words = "clones of" if operation.kind == "Clone" and operation.desired > 1 else _WORDS[operation.kind]
    return clean(f"{words} {operation.subject or operation.id}")


def state_text(operation: Operation) -> str:
    """Return what an operation is at: ``dumping``, ``3 of 10``."""
    if operation.cancelled and operation.phase in {"Pending", "Running"}:
        return "cancelling"
    if operation.phase == "Pending":
        return "waiting for its turn"
    if operation.desired > 1 and operation.kind == "Clone":
        return f"{operation.succeeded} of {operation.desired}"
    if operation.phase == "Running" and operation.steps:
        step = clean(_STEPS.get(operation.steps[-1].name, operation.steps[-1].name))
        if operation.total_bytes:
            return f"{step} {format_size(operation.done_bytes)} of {format_size(operation.total_bytes)}"
        return step
    return operation.phase.lower()


def took_seconds(operation: Operation, now: datetime) -> float:
    """Return how long an operation has been under way, or was."""
    if operation.created_at is None:
        return 0.0
    return max(0.0, ((operation.finished_at or now) - operation.created_at).total_seconds())


def clone_line(clone: CloneInfo, style: Style) -> str:
    """Return the line of a clone that runs."""
    where = ", ".join(clean(each) for each in clone.addresses) or ("in its pod" if clone.pod_id else "no address")
    later = f"{style.separator}its memory still comes" if clone.memory == "loading" else ""
    return f"{style.ok} {clean(clone.id)}  {style.paint(where + later, 'dim')}"


def frame(operation: Operation, *, wall: datetime, trouble: str, width: int, style: Style) -> list[str]:
    """Return the live part: one line, with a bar where there are many clones."""
    took = brief_duration(took_seconds(operation, wall))
    state = state_text(operation)
    if trouble:
        state = f"no connection: {clean(trouble)}"
    if operation.desired > 1 and operation.kind == "Clone":
        state = f"{style.bar(operation.succeeded / operation.desired, min(20, width // 4))} {state}"
    text = f"  {title(operation)}  {state}"
    text = shorten_end(text, max(1, width - 2 - width_of(took)), style) if width_of(text) > width else text
    return [pad(text, max(1, min(width, 78) - 1 - width_of(took))) + took]


def outcome_lines(operation: Operation, style: Style, now: datetime) -> list[str]:
    """Return what an operation that succeeded has brought."""
    took = fine_duration(took_seconds(operation, now))
    if operation.kind == "Verify":
        return [f"{style.ok} {clean(operation.subject)}: all is as it was written ({took})"]
    if operation.kind == "Checkpoint":
        lines = [_checkpoint_line(each, style) for each in operation.checkpoints]
        return [*lines[:-1], f"{lines[-1]}, in {took}"] if lines else [f"{style.ok} done in {took}"]
    if operation.kind in {"Clone", "Restore"}:
        return [_clones_line(operation, took)]
    if operation.image is not None:
        return [f"{_image_line(operation.image, style)}, in {took}", *_image_details(operation)]
    if operation.pushed is not None:
        first = f"{style.ok} {clean(operation.pushed.reference)}  {_sent(operation.pushed)}, in {took}"
        return [first, f"  {clean(operation.pushed.digest)}", *_partly(operation.pushed)]
    if operation.kind == "Pull":
        return [_taken_line(each, style) + f", in {took}" for each in operation.checkpoints]
    return [f"{style.ok} {title(operation)}: done in {took}"]


def _checkpoint_line(made: CheckpointInfo, style: Style) -> str:
    name = f" {clean(made.name)!r}" if made.name else ""
    size = f"{format_size(made.bytes)}, {format_size(made.memory_bytes)} of it memory"
    state = "stopped" if made.stopped else f"frozen {fine_duration(made.frozen_seconds)}"
    return f"{style.ok} {clean(made.id)}{name}  {clean(made.container)}: {size}; {state}"


def _image_details(operation: Operation) -> list[str]:
    made, pushed = operation.image, operation.pushed
    lines = [f"  {clean(made.digest)}", *_skipped(made)] if made is not None else []
    return [*lines, f"  pushed: {_sent(pushed)}", *_partly(pushed)] if pushed is not None else lines


def _sent(pushed: PushedTo) -> str:
    kinds = ((pushed.existing_bytes, "there already"), (pushed.mounted_bytes, "mounted"))
    return f"{format_size(pushed.sent_bytes)} sent" + "".join(f", {format_size(n)} {how}" for n, how in kinds if n)


def _partly(pushed: PushedTo) -> list[str]:
    if not pushed.partial:
        return []
    return ["  only what this node has of the index was pushed: the manifest of its own platform"]


def _taken_line(made: CheckpointInfo, style: Style) -> str:
    name = f" {clean(made.name)!r}" if made.name and made.name != made.id else ""
    size = f"{format_size(made.bytes)}, {format_size(made.memory_bytes)} of it memory"
    return f"{style.ok} {clean(made.id)}{name}: {size}"


def _clones_line(operation: Operation, took: str) -> str:
    subject = clean(operation.subject)
    if operation.kind == "Restore":
        return f"{subject}: restored in {took}"
    noun = "clone" if operation.desired == 1 else "clones"
    return f"{subject}: {operation.desired} {noun} in {took}"


def _image_line(made: CommittedImage, style: Style) -> str:
    stood = f"; frozen {fine_duration(made.frozen_seconds)}" if made.frozen_seconds else ""
    return f"{style.ok} {clean(made.image)}  layer {format_size(made.layer_bytes)}{stood}"


def _skipped(made: CommittedImage) -> list[str]:
    if not made.skipped:
        return []
    shown = ", ".join(clean(each) for each in made.skipped[:5])
    more = f" and {len(made.skipped) - 5} more" if len(made.skipped) > 5 else ""
    return [f"  sockets are left out: {shown}{more}"]
