"""The cgroup of a node: where it lies, how processes get into it, and how everything in it ends.

A node's cgroup is a child of the cgroup of whoever starts the node (version 1 and hybrid), so that limits on the
caller hold for the node too. On a pure version 2 machine a cgroup with processes of its own cannot hand controllers
down, so there it lies at the top. The node sees it as its root (a cgroup namespace), so its containers' cgroups are
below it too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.rig.errors import RigError
from tests.rig.processes import living
from tests.rig.waiting import until

MOUNT = Path("/sys/fs/cgroup")
PARENT = "stoker-rig"
# On version 2 the processes sit one level down, because the node's root must be free to hand controllers to children.
LEAF = "node"


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup hierarchy."""

    mount: Path
    version: int
    options: str

    @property
    def caller(self) -> str:
        """The cgroup of this process, as a path relative to the mount."""
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if self.version == 2 and controllers == "":
                return path.strip("/")
            if self.version == 1 and controllers and set(controllers.split(",")) & set(self.options.split(",")):
                return path.strip("/")
        return ""


def hierarchies() -> list[Hierarchy]:
    found: list[Hierarchy] = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        mount = Path(left.split(" ")[4])
        if not mount.is_relative_to(MOUNT) or any(mount == other.mount for other in found):
            continue
        if kind == "cgroup2":
            found.append(Hierarchy(mount, 2, ""))
        elif kind == "cgroup":
            # Mount options begin with `rw`; the rest names controllers, or `name=...`, or `xattr`, `release_agent=...`.
            wanted = [o for o in options.split(",") if o not in {"rw", "xattr"} and not o.startswith("release_agent")]
            found.append(Hierarchy(mount, 1, ",".join(wanted)))
    if not found:
        raise RigError(f"no cgroup hierarchy is mounted under {MOUNT}")
    return found


def unified() -> bool:
    return all(each.version == 2 for each in hierarchies())


@dataclass(frozen=True)
class NodeCgroup:
    """The directories of one node's cgroup, one per hierarchy."""

    directories: tuple[Path, ...]

    @classmethod
    def planned(cls, name: str) -> NodeCgroup:
        """Where the cgroup of node `name` will lie; makes nothing."""
        pure = unified()
        places = []
        for each in hierarchies():
            above = each.mount if pure else each.mount / each.caller
            # A process of a node that starts a node: stay beside it rather than inside it.
            if PARENT in above.parts:
                above = Path(*above.parts[: above.parts.index(PARENT)])
            places.append(above / PARENT / name)
        return cls(tuple(places))

    @property
    def name(self) -> str:
        return str(self.directories[0]) if self.directories else "(none)"

    @property
    def entries(self) -> tuple[Path, ...]:
        """The files into which a process id is written to move that process into the node."""
        return tuple(_leaf(each) / "cgroup.procs" for each in self.directories)

    @property
    def root_entries(self) -> tuple[Path, ...]:
        """The same for the process that makes the cgroup namespace, whose root these become."""
        return tuple(each / "cgroup.procs" for each in self.directories)

    def create(self) -> None:
        for directory in self.directories:
            directory.parent.mkdir(exist_ok=True)
            _inherit(directory.parent)
            directory.mkdir(exist_ok=True)
            _inherit(directory)
            _leaf(directory).mkdir(exist_ok=True)

    def pids(self) -> set[int]:
        found: set[int] = set()
        for directory in self.directories:
            for below in _walk(directory):
                try:
                    found.update(int(word) for word in (below / "cgroup.procs").read_text().split())
                except OSError:
                    continue
        return {pid for pid in living(found) if pid != os.getpid()}

    def kill(self, timeout: float = 20.0) -> None:
        """SIGKILL to everything in it until nothing is left. Frozen processes are thawed, or they would not die."""

        def empty() -> bool:
            self._thaw()
            pids = self.pids()
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not pids

        until(f"the processes of {self.name} to end", empty, timeout)

    def remove(self, timeout: float = 10.0) -> None:
        """Remove the directories. A cgroup stays busy for a moment after its last process."""
        until(f"the cgroup {self.name} to be removable", self._try_remove, timeout)

    def _try_remove(self) -> bool:
        for directory in self.directories:
            for below in reversed(list(_walk(directory))):
                try:
                    below.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:
                    return False
            try:
                directory.parent.rmdir()
            except OSError:
                continue  # another node is there, or it never was
        return True

    def _thaw(self) -> None:
        for directory in self.directories:
            for below in _walk(directory):
                _write(below / "freezer.state", "THAWED")
                _write(below / "cgroup.freeze", "0")


def _leaf(directory: Path) -> Path:
    return directory / LEAF if unified() else directory


def _walk(directory: Path) -> Iterator[Path]:
    """`directory` and all below it, parents first."""
    if not directory.is_dir():
        return
    for found, _, _ in os.walk(directory):
        yield Path(found)


def _write(path: Path, text: str) -> None:
    try:
        if path.exists():
            path.write_text(text, encoding="ascii")
    except OSError:
        return


def _inherit(directory: Path) -> None:
    """Let processes into a new cgroup: version 1 cpusets are born empty, version 2 children without controllers."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        above, own = directory.parent / name, directory / name
        if own.exists() and above.exists() and not own.read_text().strip():
            _write(own, above.read_text().strip())
    available, control = directory / "cgroup.controllers", directory.parent / "cgroup.subtree_control"
    if unified() and control.exists() and available.exists():
        for name in (directory.parent / "cgroup.controllers").read_text().split():
            _write(control, f"+{name}")
