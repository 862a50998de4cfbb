"""How much memory of a container is in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

from stokerd.errors import RuntimeFailure
from stokerd.runtime.protocol import NativeRuntime

_PAGE = os.sysconf("SC_PAGE_SIZE")


async def resident(runtime: NativeRuntime, container: str) -> int:
    """Return how many bytes of memory its processes have in, about: pages that they share count once for each; 0 when
    it has just ended."""
    try:
        pids = await runtime.tasks.pids(container)
    except RuntimeFailure:
        return 0
    return await asyncio.to_thread(_resident, pids)


def _resident(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            continue
    return total
