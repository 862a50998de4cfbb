"""Reads what preflight decides on: processes, sockets, space. Blocking; what cannot be read is left out."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from stokerd.checkpoints.catching import family
from stokerd.checkpoints.criu import CONFIG_ANNOTATION, NODE_CONFIG, tcp_closed_by
from stokerd.checkpoints.manifest import Node
from stokerd.checkpoints.model import has_own_pids, shared_memory
from stokerd.checkpoints.preflight import Facts, OpenFile, Space
from stokerd.runtime.types import RuntimeInfo

_ESTABLISHED = "01"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)", re.MULTILINE)
_IDS = re.compile(r"^[UG]id:(.*)", re.MULTILINE)
_SYS_RESOURCE = 24
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Survey(Protocol):
    """Adds to *facts* what the machine says of a container's processes and of the file systems."""

    def __call__(
        self, facts: Facts, pids: Iterable[int], spec: Mapping[str, Any], images: str, upper: str, prefix: str
    ) -> Facts: ...


def survey(facts: Facts, pids: Iterable[int], spec: Mapping[str, Any], images: str, upper: str, prefix: str) -> Facts:
    """*images* and *upper* are directories of the node, *prefix* is how they are reached from here."""
    pids = tuple(pids)
    files = tuple(OpenFile(pid, target) for pid in pids for target in _open_files(pid))
    sockets = {match.group(1) for file in files if (match := _SOCKET.fullmatch(file.target))}
    config = (spec.get("annotations") or {}).get(CONFIG_ANNOTATION) or NODE_CONFIG
    return replace(
        facts,
        own_pids=has_own_pids(spec),
        files=files,
        established=sum(_established(pid, sockets) for pid in pids[:1]),
        tcp_closed=tcp_closed_by(_text(f"{prefix}{config}")),
        terminal=bool((spec.get("process") or {}).get("terminal")),
        inner_namespaces=_apart(pids),
        strangers=tuple(pid for pid in pids if _is_stranger(pid)),
        memory=sum(map(_resident, pids)),
        tasks=_family(pids),
        shared_bytes=_used(prefix + shared) if (shared := shared_memory(spec)) else 0,
        images=_space(prefix + images, images),
        snapshots=_space(prefix + upper, upper),
    )


def sees_all(containerd: int) -> bool:
    """Say whether CRIU, as a child of containerd's, may look at the limits of every user's processes."""
    found = _CAPABILITIES.search(_text(f"/proc/{containerd}/status"))
    return found is None or bool(int(found.group(1), 16) >> _SYS_RESOURCE & 1)


def node_of(info: RuntimeInfo) -> Node:
    """Return what a restore has to be like."""
    machine = platform.uname()
    flags = next(
        (
            line.partition(":")[2]
            for line in _text("/proc/cpuinfo").splitlines()
            if line.startswith(("flags", "Features"))
        ),
        "",
    )
    return Node(
        kernel=machine.release,
        architecture=machine.machine,
        cpu_features=" ".join(sorted(flags.split())),
        criu=info.criu_version,
        runc=info.runc_version,
        containerd=info.version,
    )


def dumpers(directory: str) -> tuple[int, ...]:
    """Return the ids of CRIU processes that have a directory of the node open.

    One that has lost its runc may work on, and set the freezer back at its end to what it found.
    """
    found: list[int] = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _text(f"{process}/comm").strip() == "criu":
            targets = _open_files(int(process.name))
            if any(target == directory or target.startswith(f"{directory}/") for target in targets):
                found.append(int(process.name))
    return tuple(found)


def _open_files(pid: int) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(entry.readlink()))
    return found


def _established(pid: int, sockets: set[str]) -> int:
    """Count established TCP connections among these sockets."""
    count = 0
    for name in ("tcp", "tcp6"):
        for line in _text(f"/proc/{pid}/net/{name}").splitlines()[1:]:
            fields = line.split()
            count += len(fields) > 9 and fields[3] == _ESTABLISHED and fields[9] in sockets
    return count


def _apart(pids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the processes that are in another PID namespace than the first; those that have ended are in none."""
    own = _namespace(pids[0]) if pids else ""
    return tuple(pid for pid in pids[1:] if own and _namespace(pid) not in {"", own})


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _is_stranger(pid: int) -> bool:
    """Whether any of a process's ids is not root's."""
    ids = _IDS.findall(_text(f"/proc/{pid}/status"))
    return any(int(each) for line in ids for each in line.split()[:3])


def _resident(pid: int) -> int:
    fields = _text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _family(pids: tuple[int, ...]) -> int:
    """Count the threads of all, 0 when one of them does not descend from the first."""
    tasks = family(pids[0]) if pids else frozenset()
    return len(tasks) if set(pids) <= {process for process, _ in tasks} else 0


def _used(path: str) -> int:
    """Return what a file system holds, which is mounted for one pod alone."""
    try:
        state = os.statvfs(path)
    except OSError:
        return 0
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def _space(path: str, shown: str) -> Space | None:
    try:
        state, device = os.statvfs(path), Path(path).stat().st_dev
    except OSError:
        return None
    inodes = state.f_favail if state.f_files else None
    return Space(shown, state.f_bavail * state.f_frsize, inodes, device)


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(4 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
