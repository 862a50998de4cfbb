"""What stands in the way of a checkpoint, told before anything is frozen. Pure; `surveying` reads the facts."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from stokerd.checkpoints.criu import LEAST, NODE_CONFIG, TcpMode, parse_version

Check = Literal[
    "criu",
    "state",
    "space",
    "inodes",
    "io-uring",
    "terminal",
    "tcp",
    "device",
    "namespace",
    "pid-namespace",
    "root",
    "user",
]

_RESERVE_BYTES = 64 << 20
_RESERVE_INODES = 1_000
_MOST_TASKS = 64
"""So many can be looked at within a short dump."""
_KNOWN_DEVICES = frozenset({"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "shm", "net/tun"})
_ANONYMOUS = re.compile(r"anon_inode:\[?([\w-]+)\]?")
_KNOWN_ANONYMOUS = frozenset({"eventfd", "eventpoll", "signalfd", "timerfd", "inotify", "fanotify", "pidfd", "bpf-map"})


class OpenFile(msgspec.Struct, frozen=True):
    """What a descriptor of a process leads to, as /proc/PID/fd says it."""

    pid: int
    target: str


class Space(msgspec.Struct, frozen=True):
    """What is free on a file system; ``inodes`` is None where it has no such limit, ``device`` tells whether two paths
    are on the same one."""

    path: str
    bytes: int
    inodes: int | None = None
    device: int = 0


class Facts(msgspec.Struct, frozen=True):
    """What is so before a checkpoint.

    ``memory`` and ``upper_bytes`` are what it will take, at most, on the file systems of ``images`` and ``snapshots``.
    ``own_pids``: whether the container has a PID namespace of its own; ``inner_namespaces``: ids of processes in
    further ones inside of it. ``tasks`` counts their threads when all descend from the first process, else it is 0;
    ``shared_bytes`` is what its /dev/shm holds. ``established`` counts TCP connections; ``tcp_closed``: CRIU is told to
    leave them out. ``strangers`` are processes of other users than root; CRIU ``sees_all`` of them, or not.
    """

    criu: str
    state: str
    own_pids: bool = True
    overlay: bool = True
    files: tuple[OpenFile, ...] = ()
    established: int = 0
    tcp_closed: bool = False
    terminal: bool = False
    inner_namespaces: tuple[int, ...] = ()
    strangers: tuple[int, ...] = ()
    sees_all: bool = True
    memory: int = 0
    tasks: int = 0
    shared_bytes: int = 0
    upper_bytes: int = 0
    upper_inodes: int = 0
    images: Space | None = None
    snapshots: Space | None = None


class Obstacle(msgspec.Struct, frozen=True):
    """One thing that would make the checkpoint fail, and what to do about it."""

    check: Check
    message: str
    hint: str = ""


def obstacles(facts: Facts, tcp: TcpMode) -> tuple[Obstacle, ...]:
    """Return everything that stands in the way; empty when CRIU can be tried."""
    return (*_node(facts), *_processes(facts, tcp), *_space(facts))


def fits_into_dump(facts: Facts) -> bool:
    """Say whether the root filesystem can be copied in the time for which CRIU itself holds the processes.

    A dump of little memory takes some 30 ms, more memory takes longer. Processes that do not descend from the first
    (somebody's exec) are none of CRIU's, and would run on meanwhile.
    """
    size, files = facts.upper_bytes + facts.shared_bytes, facts.upper_inodes
    enough = size <= (4 << 20) + facts.memory // 32 and files <= 100 + (facts.memory >> 22)
    return facts.state == "running" and 0 < facts.tasks <= _MOST_TASKS and enough


def together(found: tuple[Facts, ...]) -> tuple[Facts, ...]:
    """Return the facts of containers that are dumped one after the other: each needs its space beside those before."""
    memory = upper = inodes = 0
    summed: list[Facts] = []
    for facts in found:
        memory, upper = memory + facts.memory, upper + facts.upper_bytes
        inodes += facts.upper_inodes
        summed.append(msgspec.structs.replace(facts, memory=memory, upper_bytes=upper, upper_inodes=inodes))
    return tuple(summed)


def _node(facts: Facts) -> list[Obstacle]:
    found: list[Obstacle] = []
    version = parse_version(facts.criu)
    if not facts.criu:
        found.append(Obstacle("criu", "there is no criu on containerd's PATH", "install CRIU on the node"))
    elif version.parts < LEAST:
        found.append(Obstacle("criu", f"CRIU {facts.criu} is too old", "install CRIU 3.16 or later"))
    if facts.state not in {"running", "paused"}:
        found.append(Obstacle("state", f"the container is {facts.state}; only a running one has memory to keep"))
    if not facts.overlay:
        found.append(
            Obstacle("root", "its root filesystem is not on containerd's overlayfs", "use the overlayfs snapshotter")
        )
    if not facts.own_pids:
        hint = "make the pod with NamespaceOption.pid = CONTAINER (shareProcessNamespace: false)"
        found.append(Obstacle("pid-namespace", "it shares its PID namespace with the pod", hint))
    return found


def _processes(facts: Facts, tcp: TcpMode) -> list[Obstacle]:
    found: list[Obstacle] = []
    rings = sorted({file.pid for file in facts.files if "[io_uring]" in file.target})
    if rings:
        hint = "switch it off in the program, or block it by seccomp"
        found.append(Obstacle("io-uring", f"io_uring is in use by process {_some(rings)}", hint))
    devices = sorted({file.target for file in facts.files if _foreign_device(file.target)})
    if devices:
        found.append(Obstacle("device", f"open devices that CRIU cannot keep: {', '.join(devices[:5])}"))
    odd = sorted({file.target for file in facts.files if _odd_inode(file.target)})
    if odd:
        found.append(Obstacle("device", f"open files of a kind that CRIU cannot keep: {', '.join(odd[:5])}"))
    terminals = sorted({file.pid for file in facts.files if file.target.startswith("/dev/pts/")})
    if terminals and facts.terminal:
        hint = "start the container without a terminal (tty: false)"
        found.append(Obstacle("terminal", f"process {_some(terminals)} has the terminal of the container open", hint))
    if facts.established and tcp != "established" and not facts.tcp_closed:
        hint = "allow them to be closed (tcp: close) or kept (tcp: established)"
        if tcp == "close":  # containerd has no field for it
            hint = f"let CRIU close them: add tcp-close to {NODE_CONFIG} on the node"
        found.append(Obstacle("tcp", f"{facts.established} established TCP connection(s)", hint))
    if facts.inner_namespaces:
        hint = "containers inside of the container cannot be kept; stop them"
        found.append(
            Obstacle("namespace", f"process {_some(facts.inner_namespaces)} is in namespaces of its own", hint)
        )
    if facts.strangers and not facts.sees_all:
        text = f"process {_some(facts.strangers)} runs as another user than root, and CRIU may not look at its limits"
        found.append(Obstacle("user", text, "give containerd CAP_SYS_RESOURCE, which its service has by default"))
    return found


def _space(facts: Facts) -> list[Obstacle]:
    wanted: dict[str | int, tuple[Space, int, int]] = {}
    for space, size, inodes in (
        (facts.images, facts.memory, 50),
        (facts.snapshots, facts.upper_bytes, facts.upper_inodes),
    ):
        if space is not None:
            key = space.device or space.path
            _, before, inodes_before = wanted.get(key, (space, 0, 0))
            wanted[key] = (space, before + size, inodes_before + inodes)
    found: list[Obstacle] = []
    for space, size, inodes in wanted.values():
        if size + _RESERVE_BYTES > space.bytes:
            text = f"up to {size >> 20} MiB are needed on {space.path}, {space.bytes >> 20} MiB are free"
            found.append(Obstacle("space", text, "free space, or remove old checkpoints"))
        if space.inodes is not None and inodes + _RESERVE_INODES > space.inodes:
            text = f"{inodes} inodes are needed on {space.path}, {space.inodes} are free"
            found.append(Obstacle("inodes", text, "remove files, or old checkpoints"))
    return found


def _foreign_device(target: str) -> bool:
    name = target.removeprefix("/dev/")
    return name != target and name not in _KNOWN_DEVICES and not name.startswith(("pts/", "shm/", "mqueue/", "fd/"))


def _odd_inode(target: str) -> bool:
    match = _ANONYMOUS.match(target)
    return match is not None and match.group(1) not in _KNOWN_ANONYMOUS and match.group(1) != "io_uring"


def _some(pids: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, pids[:5])) + (", …" if len(pids) > 5 else "")
