"""One test run at a time on one machine: two would fight for its cores and its memory.

A run whose tests are shared out to several processes (pytest-xdist) is one run: its processes hold the lock together.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from typing import IO

from tests.rig.errors import RigError

LOCK = Path(os.environ.get("STOKER_RIG_LOCK", "/run/stoker-rig.lock"))
DEFAULT_TIMEOUT = 1800.0


class RunLock:
    """Held from acquire() to release() or the end of the process.

    Processes that give the same *run* hold it together; without one it is the process's own.
    """

    def __init__(self, path: Path = LOCK, *, run: str = "") -> None:
        self.path = path
        self._run = run
        self._file: IO[str] | None = None

    def acquire(self, timeout: float | None = None) -> None:
        limit = float(os.environ.get("STOKER_RIG_LOCK_TIMEOUT", DEFAULT_TIMEOUT)) if timeout is None else timeout
        file = self.path.open("a+", encoding="utf-8")
        deadline = time.monotonic() + limit
        told = False
        while not self._taken(file):
            holder = _read(file)[0]
            if time.monotonic() >= deadline:
                file.close()
                raise RigError(f"process {holder} has the rig; it did not end within {limit:g} s")
            if not told:
                told = True
                print(f"rig: process {holder} has the rig, waiting for it", file=sys.stderr, flush=True)
            time.sleep(0.2)
        self._file = file

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _taken(self, file: IO[str]) -> bool:
        """Take it alone, or join those of this run who have it."""
        if _flock(file, fcntl.LOCK_EX):
            file.truncate(0)
            file.write(f"{os.getpid()} {self._run}".rstrip())
            file.flush()
            # Between the two locks somebody else may come, so what the file says is looked at once more.
            return not self._run or (_flock(file, fcntl.LOCK_SH) and self._is_ours(file))
        return bool(self._run) and _flock(file, fcntl.LOCK_SH) and self._is_ours(file)

    def _is_ours(self, file: IO[str]) -> bool:
        if _read(file)[1] == self._run:
            return True
        _flock(file, fcntl.LOCK_UN)
        return False


def _flock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: IO[str]) -> tuple[str, str]:
    """Return whose it is: the process that took it first, and its run."""
    file.seek(0)
    process, _, run = file.read().strip().partition(" ")
    return process or "unknown", run
