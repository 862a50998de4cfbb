"""One test run at a time on one machine: two would fight for its cores and its memory."""

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
    """Held from acquire() to release() or the end of the process."""

    def __init__(self, path: Path = LOCK) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def acquire(self, timeout: float | None = None) -> None:
        limit = float(os.environ.get("STOKER_RIG_LOCK_TIMEOUT", DEFAULT_TIMEOUT)) if timeout is None else timeout
        file = self.path.open("a+", encoding="utf-8")
        deadline = time.monotonic() + limit
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                if time.monotonic() >= deadline:
                    file.close()
                    raise RigError(f"process {holder} has the rig; it did not end within {limit:g} s") from None
                if not told:
                    told = True
                    print(f"rig: process {holder} has the rig, waiting for it", file=sys.stderr, flush=True)
                time.sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
