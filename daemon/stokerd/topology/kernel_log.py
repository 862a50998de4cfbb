"""Hears what drivers of GPUs write to the kernel's log (/dev/kmsg): NVIDIA's errors by their numbers (Xid).

The log is read from its beginning, so what was written since the machine started counts, too, as far as it is kept.
NVML tells of such errors as well, but only to those who keep the driver open; and then it cannot be reset or replaced.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stokerd.topology.facts import Xid
from stokerd.topology.xids import note, parse

_LONGEST = 8192
_AT_ONCE = 256
"""Records that are read before others get their turn."""


class KernelLog:
    """Calls *told* when there are more errors than before; `xids` has them all."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._descriptor = -1
        self.xids: tuple[Xid, ...] = ()

    @property
    def listening(self) -> bool:
        return self._descriptor >= 0

    def start(self, root: Path) -> None:
        """Read the log, and hear what is added from now on; OSError where the system does not let us."""
        descriptor = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            asyncio.get_running_loop().add_reader(descriptor, self._read)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self.xids = descriptor, ()

    def stop(self) -> None:
        """Hear no more; may be called without `start`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _read(self) -> None:
        before = self.xids
        for _ in range(_AT_ONCE):
            try:
                record = os.read(self._descriptor, _LONGEST)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read; the next one is there
                self.stop()
                break
            if not record:
                self.stop()
                break
            found = parse(record)
            if found is not None:
                self.xids = note(self.xids, found.address, found.number, _wall_time(found.microseconds))
        if self.xids != before:
            self._told()


def _wall_time(microseconds: int) -> datetime:
    """Return when something happened that long after the machine started."""
    ago = max(time.monotonic() - microseconds / 1e6, 0.0)
    return (datetime.now(UTC) - timedelta(seconds=ago)).replace(microsecond=0)
