"""What the rig has made on this machine, written down before it is made.

One directory per thing under /run/stoker-rig, with `record.json` in it: the owner (a process id with its start time),
the cgroup in which all its processes are, and the directories that are its own. Taking a thing down needs only its
record, so the same code serves an orderly stop, a failed test and what a killed run left.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.rig import mounts, paths
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import RigError
from tests.rig.processes import ProcessId

FILE = "record.json"
# What this process has recorded, in order; the end of a test session looks whether all of it is gone.
made: list[Record] = []


@dataclass
class Record:
    """One node or registry."""

    name: str
    kind: str
    owner: ProcessId
    cgroup: NodeCgroup
    # Removed with all that is in them; loop disks lie in them and are mounted in them.
    directories: list[Path] = field(default_factory=list)
    # What an attaching process must know; of no interest to the removal.
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        return paths.RUN / self.name

    @property
    def in_use(self) -> bool:
        """True while its owner lives."""
        return self.owner.alive

    def create(self) -> None:
        """Write it down for the first time; the name must be free."""
        paths.RUN.mkdir(mode=0o755, exist_ok=True)
        try:
            self.run_dir.mkdir()
        except FileExistsError:
            raise RigError(
                f"{self.name} is in use or was left behind: `python -m tests.rig status`, then `... clean`"
            ) from None
        made.append(self)
        self.save()

    def save(self) -> None:
        _remember()
        data = asdict(self)
        data["directories"] = [str(each) for each in self.directories]
        data["cgroup"] = [str(each) for each in self.cgroup.directories]
        aside = self.run_dir / f"{FILE}.new"
        aside.write_text(json.dumps(data, indent=1), encoding="utf-8")
        aside.rename(self.run_dir / FILE)

    def destroy(self) -> None:
        """End its processes, unmount its mounts, remove its directories. May be called again after a failure."""
        self.cgroup.kill()
        for directory in (*self.directories, self.run_dir):
            mounts.remove_below(directory)
        self.cgroup.remove()
        for directory in (*self.directories, self.run_dir):
            # Last the record itself: until then the rest can be found.
            while directory.exists():
                with contextlib.suppress(FileNotFoundError):  # a stokerd that is just ending removes what is its own
                    shutil.rmtree(directory)

    def left_over(self) -> list[str]:
        """What of it is still on the machine, in words; empty after destroy()."""
        found = [f"process {pid}" for pid in self.cgroup.pids()]
        found += [f"cgroup {each}" for each in self.cgroup.directories if each.exists()]
        for directory in (*self.directories, self.run_dir):
            found += [f"mount {point}" for point in mounts.mounts_below(directory)]
            found += [f"loop device {device}" for device in mounts.loops_below(directory)]
            found += [f"directory {directory}"] if directory.exists() else []
        return found


def load(name: str) -> Record:
    file = paths.RUN / name / FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RigError(f"there is no {name}; `python -m tests.rig status` lists what there is") from None
    return Record(
        name=data["name"],
        kind=data["kind"],
        owner=ProcessId(**data["owner"]),
        cgroup=NodeCgroup(tuple(Path(each) for each in data["cgroup"])),
        directories=[Path(each) for each in data["directories"]],
        details=data["details"],
    )


def load_all() -> list[Record]:
    found = []
    for file in sorted(paths.RUN.glob(f"*/{FILE}")):
        try:
            found.append(load(file.parent.name))
        except (RigError, ValueError, KeyError, TypeError):
            continue  # just removed, or not of this version: cleanup.py has a word for those
    return found


@cache
def _remember() -> None:
    """Once per process: remove at its end what it has not removed itself."""
    atexit.register(destroy_own)


def destroy_own() -> None:
    """Remove whatever this very process owns; what fixtures and `with` leave after an error."""
    for record in load_all():
        if record.owner.pid != os.getpid() or not record.in_use:
            continue
        try:
            record.destroy()
        except (RigError, OSError) as error:
            print(f"rig: {record.name} could not be removed: {error}", file=sys.stderr)
