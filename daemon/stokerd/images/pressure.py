"""Reading the machine: disk pressure and file system state. Thin; what the numbers mean is decided elsewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stokerd.images.space import FileSystem

_SOME_AVG10 = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)


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
