"""Progress as lines of text. Pure functions from the state to lines; nothing here knows a terminal."""

from __future__ import annotations

from datetime import datetime

from stoker.cli.progress import Board, Totals, Tracked
from stoker.cli.text import Style, clean, pad, shorten_end, shorten_middle, width_of
from stoker.objects.images import ItemStatus
from stoker.units import brief_duration, format_size, format_size_pair

_SILENT_SECONDS = 10.0
_NARROW, _WIDE = 68, 100


def frame(board: Board, *, now: float, wall: datetime, width: int, height: int, style: Style) -> list[str]:
    """Return the lines of the live part: one for each active image, as many as *height* allows, and the summary.

    *now*: monotonic seconds, *wall*: the time of day, *width* and *height*: of the terminal, in columns and lines.
    """
    room = max(1, height - 2)
    active = [tracked for tracked in board.items.values() if tracked.active]
    shown = active if len(active) < room else active[: max(0, room - 2)]
    lines = [image_line(tracked, now=now, wall=wall, width=width, style=style) for tracked in shown]
    hidden = len(active) - len(shown)
    if hidden and room > 1:
        lines.append(style.paint(shorten_end(f"  {style.dots} and {hidden} more", max(1, width - 1), style), "dim"))
    lines.append(summary_line(board, now=now, width=width, style=style))
    return lines


def image_line(tracked: Tracked, *, now: float, wall: datetime, width: int, style: Style) -> str:
    """Return the line of an active image: name, bar, percent, bytes, speed, state; as much of it as fits."""
    narrow = width < _NARROW
    state = state_text(tracked, now=now, wall=wall, short=narrow)
    columns = _columns(tracked, state, now=now, width=width, style=style)
    right = " ".join(pad(text, columns_wide, right=align) for text, columns_wide, align in columns)
    room = width_of(right)
    if tracked.item.phase == "Waiting":
        right = pad(shorten_end(state, room, style), room)
    # The last column stays free: a terminal that has just filled it may be on the next line already.
    space = max(1, width - 1 - len("   ") - room)
    name = short_name(clean(tracked.item.reference or tracked.item.image), space, style)
    return shorten_end(f"  {pad(name, space)} {right}".rstrip(), max(1, width - 1), style)


def _columns(tracked: Tracked, state: str, *, now: float, width: int, style: Style) -> list[tuple[str, int, bool]]:
    """Return the columns right of the name: text, width, and whether it stands at the right."""
    progress = tracked.item.progress
    percent = (f"{progress.percent:.0f}%", 4, True)
    if width < _NARROW:
        return [percent, (shorten_end(state, 13, style), 13, False)]
    downloading = progress.bytes_total > 0 and not tracked.unpacking
    size = format_size_pair(progress.bytes_done, progress.bytes_total) if progress.bytes_total else ""
    speed = f"{format_size(tracked.speed.at(now))}/s" if downloading else ""
    bar_width = min(14, width // 6) if width < _WIDE else min(30, width // 5)
    columns = [(style.bar(progress.percent / 100, bar_width), bar_width, False), percent, (size, 14, True)]
    if width >= _WIDE:
        return [*columns, (speed, 10, True), (shorten_end(state, 14, style), 14, False)]
    flowing = downloading and tracked.speed.silence(now) < _SILENT_SECONDS
    return [*columns, (speed if flowing else shorten_end(state, 14, style), 14, False)]


def short_name(name: str, width: int, style: Style) -> str:
    """Return an image's name in *width* columns: Docker Hub's prefix goes first, then the middle."""
    for prefix in ("", "docker.io/library/", "docker.io/"):
        if name.startswith(prefix) and width_of(name) - len(prefix) <= width:
            return name.removeprefix(prefix)
    return shorten_middle(name.removeprefix("docker.io/library/"), width, style)


def state_text(tracked: Tracked, *, now: float, wall: datetime, short: bool = False) -> str:
    """Return what an image is at: ``resolving``, ``pulling``, ``unpacking 3/7``, ``retry in 8s``, ``no data 12s``."""
    item = tracked.item
    progress = item.progress
    if item.phase == "Waiting":
        if item.attempt == 0:
            return "waiting"
        seconds = (item.next_attempt_at - wall).total_seconds() if item.next_attempt_at else 0
        retry = f"retry in {brief_duration(seconds)}" if seconds >= 1 else "retry soon"
        return retry if short or not item.reason else f"{retry}: {clean(item.reason)}"
    if item.phase != "Pulling":
        return item.phase.lower()
    if tracked.unpacking:
        return f"unpacking {progress.layers_unpacked}/{progress.layers_total}"
    if tracked.speed.silence(now) >= _SILENT_SECONDS:
        return f"no data {brief_duration(tracked.speed.silence(now))}"
    return "pulling" if progress.bytes_total else "resolving"


def summary_line(board: Board, *, now: float, width: int, style: Style) -> str:
    """Return the last line of the live part; its parts stand in the order of their weight, and the last go first."""
    totals = board.totals(now)
    parts = [f"{totals.over}/{totals.desired} images"]
    if board.trouble:
        parts.append(style.paint(f"no connection: {clean(board.trouble)}", "yellow"))
    if totals.failed:
        parts.append(style.paint(f"{totals.failed} failed", "red"))
    if totals.bytes_total:
        parts.append(format_size_pair(totals.bytes_done, totals.bytes_total))
    if totals.speed >= 1:
        parts.append(f"{format_size(totals.speed)}/s")
        left = _time_left(totals)
        if left:
            parts.append(left)
    if totals.waiting:
        parts.append(f"{totals.waiting} waiting")
    parts.append(brief_duration(now - board.started_at))
    while len(parts) > 1 and width_of(style.separator.join(parts)) > width - 1:
        parts.pop()
    return style.separator.join(parts) if len(parts) > 1 else shorten_end(parts[0], max(1, width - 1), style)


def _time_left(totals: Totals) -> str:
    """Only when nothing waits: an image that waits has bytes that nobody has counted."""
    if totals.waiting or totals.bytes_done >= totals.bytes_total:
        return ""
    seconds = (totals.bytes_total - totals.bytes_done) / totals.speed
    return f"{brief_duration(seconds)} left" if seconds >= 1 else ""


def finished_lines(item: ItemStatus, style: Style) -> list[str]:
    """Return the lines about an image that is over: a mark, the name, what became of it, and a hint when it failed."""
    name = clean(item.reference or item.image)
    match item.phase:
        case "Succeeded":
            return [f"{style.ok} {name}  {style.paint(outcome(item), 'dim')}"]
        case "Cancelled":
            return [f"{style.none} {name}  {style.paint('cancelled', 'dim')}"]
        case _:
            lines = [f"{style.bad} {name}  {outcome(item)}"]
            if item.hint:
                lines.append(f"    {style.paint('hint:', 'yellow')} {clean(item.hint)}")
            return lines


def outcome(item: ItemStatus) -> str:
    """Return what became of an image, without marks: ``pulled 67.5 MiB in 12s``, ``NotFound: no such image``."""
    if item.phase == "Cancelled":
        return "cancelled"
    if item.phase == "Failed":
        tries = f" ({item.attempt} attempts)" if item.attempt > 1 else ""
        return clean(f"{item.reason or 'Failed'}: {item.message or 'no message'}") + tries
    if item.reason == "AlreadyPresent":
        return "already present"
    text = f"pulled {format_size(item.pulled_bytes)}" if item.pulled_bytes else "ready"
    if item.started_at and item.finished_at:
        text += f" in {brief_duration((item.finished_at - item.started_at).total_seconds())}"
    if item.previous_digest and item.previous_digest != item.digest:
        text += f", the tag moved from {clean(item.previous_digest)[:19]}"
    return text


def closing_line(board: Board, *, now: float) -> str:
    """Return the one sentence about everything."""
    totals = board.totals(now)
    took = brief_duration(now - board.started_at)
    noun = "image" if totals.desired == 1 else "images"
    if totals.succeeded == totals.desired:
        return f"{totals.desired} {noun} ready in {took}"
    rest = [f"{count} {word}" for count, word in ((totals.failed, "failed"), (totals.cancelled, "cancelled")) if count]
    left = totals.desired - totals.over
    if left:
        rest.append(f"{left} not finished")
    return f"{totals.succeeded} of {totals.desired} {noun} ready, {', '.join(rest)}, after {took}"
