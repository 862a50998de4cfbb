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


class Freezer(msgspec.Struct, frozen=True):
    """The file that freezes a cgroup, and what is written to it for that and against it."""

    path: Path
    on: str
    off: str


def freezer(groups: str) -> Freezer | None:
    """Return what runc has CRIU freeze, from a container's /proc/PID/cgroup; None where there is nothing to freeze by.

    It is the freezer of v1 wherever there is one: then nobody freezes by the group in v2 that runc makes beside it, or
    that the container shares with whoever started containerd.
    """
    paths = {
        name: path
        for _, names, path in (line.split(":", 2) for line in groups.splitlines())
        for name in names.split(",")
    }
    if path := paths.get("freezer"):
        found = Freezer(Path(f"/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN", "THAWED")
    elif path := paths.get(""):
        found = Freezer(Path(f"/sys/fs/cgroup{path}/cgroup.freeze"), "1", "0")
    else:
        return None
    return None if ".." in found.path.parts else found


def freezer_of(process: int) -> Freezer | None:
    """Return what the container of its first process is frozen by; None where that cannot be seen."""
    found = freezer(_text(f"/proc/{process}/cgroup"))
    return found if found is not None and found.path.exists() else None


def thaw_group(first: int) -> bool:
    """Thaw the cgroup of a process; say whether it was frozen. A CRIU that died at the wrong moment leaves it so, and
    containerd, which did not freeze it, would not know. OSError when it is frozen and cannot be written."""
    switch = freezer_of(first)
    if switch is None or _text(str(switch.path)).strip() == switch.off:
        return False
    switch.path.write_text(switch.off, encoding="ascii")
    return True


def halted(first: int, container_id: str) -> bool:
    """Say whether a container that runs, as containerd sees it, stands all the same, or soon will."""
    switch = freezer_of(first)
    return (switch is not None and _text(str(switch.path)).strip() != switch.off) or being_frozen(container_id)


def being_frozen(container_id: str) -> bool:
    """Say whether a runc is about to freeze the container: it goes on although nobody waits for it any more."""
    for process in Path("/proc").iterdir():
        # The name first: reading the arguments of a process may have to wait for it, if it is stuck in the kernel.
        if process.name.isdigit() and "run" in _text(f"{process}/comm"):
            arguments = _text(f"{process}/cmdline").split("\0")
            if "pause" in arguments and container_id in arguments:
                return True
    return False


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


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - many of them, while others stand
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
