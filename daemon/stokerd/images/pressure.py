"""Reading the machine: disk pressure and file system state. Thin; what the numbers mean is decided elsewhere."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from stokerd.images.space import FileSystem

_SOME_AVG10 = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
_SOME_TOTAL = re.compile(r"^some .*\btotal=(\d+)", re.MULTILINE)


def io_pressure(path: Path = Path("/proc/pressure/io")) -> float | None:
    """Return the share of the last ten seconds, in percent, in which some task waited for a disk.

    None where the kernel does not say (no PSI, or switched off). Source: kernel Documentation/accounting/psi.rst.
    """
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return None
    match = _SOME_AVG10.search(text)
    return float(match.group(1)) if match else None


def file_system(path: str, *, host_root: str = "") -> FileSystem:
    """Return the state of the file system under *path*, as seen from the runtime's mount namespace.

    Raises OSError when it cannot be asked.
    """
    state = os.statvfs(f"{host_root}{path}" if host_root else path)
    return FileSystem(
        path=path,
        total_bytes=state.f_blocks * state.f_frsize,
        free_bytes=state.f_bavail * state.f_frsize,
        total_inodes=state.f_files,
        free_inodes=state.f_favail,
    )


class PressureGauge:
    """Pressure over the last second or two, from the kernel's running total.

    The kernel's own averages cover ten seconds and more: after a pull has ended, the next would wait for its echo.
    """

    _SHORTEST = 0.5
    _LONGEST = 5.0

    def __init__(self, path: Path = Path("/proc/pressure/io"), clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._before: tuple[float, float] | None = None
        self._last: float | None = None

    async def read(self) -> float | None:
        """Return the share of time, in percent, in which some task waited for a disk; None where it is not known."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> float | None:
        total, now = io_stall_seconds(self._path), self._clock()
        if total is None:
            return None
        if self._before is None or now - self._before[0] > self._LONGEST:
            self._before, self._last = (now, total), io_pressure(self._path)
        elif now - self._before[0] >= self._SHORTEST:
            self._last = min((total - self._before[1]) / (now - self._before[0]), 1.0) * 100
            self._before = (now, total)
        return self._last


def io_stall_seconds(path: Path) -> float | None:
    """Return for how long since boot some task waited for a disk; None where the kernel does not say."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return None
    match = _SOME_TOTAL.search(text)
    return int(match.group(1)) / 1e6 if match else None
