"""Sees from outside that a CRIU holds all processes of a container while it dumps them, and for how long.

CRIU stops them itself, for less time than a freeze around the whole dump: runc and CRIU have to start, too. What is
copied between two looks that find all of them in the hands of the same CRIU is as it was at that moment: CRIU never
lets go of one before the end. Blocking; runs in a thread.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from stokerd.checkpoints.trees import Stop

_PAUSE = 0.0005
_GONE = frozenset("ZX")
Tasks = frozenset[tuple[int, int]]


class Held(msgspec.Struct, frozen=True):
    """All tasks (process and thread) that were found stopped, by whom, and since when (`time.perf_counter`)."""

    tracer: int
    tasks: Tasks
    since: float


def caught(first: int, ended: Stop) -> Held | None:
    """Wait until a CRIU has stopped *first* and all its descendants; None when *ended* says that it is too late."""
    stood: set[tuple[int, int]] = set()
    since, tracer = 0.0, 0
    while not ended():
        now = _state(first, first)[1]
        if now and now != tracer:
            stood, since, tracer = set(), time.perf_counter(), now
        if now and _is_criu(now):
            tasks = family(first)
            states = {task: _state(*task) for task in tasks}
            stood |= {task for task, (state, by) in states.items() if state in _GONE or (by == now and state == "t")}
            if tasks <= stood and family(first) == tasks:
                return Held(now, tasks, since)
        time.sleep(_PAUSE)  # of others' processes nobody tells
    return None


def still(first: int, held: Held) -> bool:
    """Say whether they have been held without a break since then."""
    states = (_state(*task) for task in held.tasks)
    return all(state in _GONE or by == held.tracer for state, by in states) and family(first) == held.tasks


def family(first: int) -> Tasks:
    """Return all tasks of a process and of its descendants."""
    found: set[tuple[int, int]] = set()
    todo = [first]
    while todo:
        process = todo.pop()
        for thread in _threads(process):
            found.add((process, thread))
            todo += map(int, _text(f"/proc/{process}/task/{thread}/children").split())
    return frozenset(found)


def thaw_group(first: int) -> None:
    """Thaw the cgroup of a process. A CRIU that died at the wrong moment leaves it frozen, and containerd, which did
    not freeze it, would not know. OSError when it cannot be written."""
    for line in _text(f"/proc/{first}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "freezer" in controllers.split(","):
            _write(Path(f"/sys/fs/cgroup/freezer{path}/freezer.state"), "THAWED")
        elif not controllers:
            for mount in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
                _write(Path(f"{mount}{path}/cgroup.freeze"), "0")


def _threads(process: int) -> list[int]:
    try:
        return [int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []


def _state(process: int, thread: int) -> tuple[str, int]:
    """Return the state of a task, and who traces it; one that has ended is gone."""
    state, tracer = "X", 0
    for line in _text(f"/proc/{process}/task/{thread}/status").splitlines():
        if line.startswith("State:"):
            state = line.split()[1]
        elif line.startswith("TracerPid:"):
            tracer = int(line.split()[1])
            break
    return state, tracer


def _is_criu(process: int) -> bool:
    return _text(f"/proc/{process}/comm").strip() == "criu"


def _write(path: Path, text: str) -> None:
    if path.exists() and ".." not in path.parts:
        path.write_text(text, encoding="ascii")


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - many of them, while others stand
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
