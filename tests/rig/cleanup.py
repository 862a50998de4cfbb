"""Remove what dead runs left on this machine: processes, mounts, loop devices, cgroups, directories.

What a living process owns stays untouched. `python -m tests.rig clean [--all]`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from tests.rig import mounts, paths, records
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import RigError
from tests.rig.records import Record

# A directory without a record: a run that is just beginning, or one that died there.
GRACE = 10.0


def cleanup(*, everything: bool = False) -> list[str]:
    """Remove what is dead (or `everything`); returns the names removed, and raises after trying all."""
    removed: list[str] = []
    failures: list[str] = []
    known = records.load_all()
    for record in known:
        if record.in_use and not everything:
            continue
        try:
            record.destroy()
            removed.append(record.name)
        except (RigError, OSError) as error:
            failures.append(f"{record.name}: {error}")
    for directory in _unrecorded({record.name for record in known}):
        try:
            _remove_unrecorded(directory)
            removed.append(directory.name)
        except (RigError, OSError) as error:
            failures.append(f"{directory.name}: {error}")
    if failures:
        raise RigError("could not remove " + "; ".join(failures))
    return removed


def _unrecorded(known: set[str]) -> list[Path]:
    if not paths.RUN.is_dir():
        return []
    old = time.time() - GRACE
    return [
        each for each in paths.RUN.iterdir() if each.is_dir() and each.name not in known and each.stat().st_mtime < old
    ]


def _remove_unrecorded(directory: Path) -> None:
    cgroup = NodeCgroup.planned(directory.name)
    cgroup.kill()
    mounts.remove_below(directory)
    cgroup.remove()
    shutil.rmtree(directory)


def status() -> list[tuple[Record, str]]:
    """Every record and what state it is in."""
    return [(record, "running" if record.in_use else "left by a dead run") for record in records.load_all()]


def stop(name: str) -> bool:
    """Stop one node or registry by name, whoever started it; False when there is none."""
    if not (paths.RUN / name / records.FILE).exists():
        return False
    records.load(name).destroy()
    return True


def main() -> int:
    if os.geteuid() != 0:
        print("cleanup needs root", file=sys.stderr)
        return 2
    try:
        for name in cleanup(everything="--all" in sys.argv[1:]):
            print(f"removed {name}")
    except RigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
