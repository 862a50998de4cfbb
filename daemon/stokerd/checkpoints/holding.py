"""Leases that hold what is made in containerd until it is complete; those of a stokerd that died are given back."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Literal

import structlog

from stokerd.checkpoints.ending import to_the_end
from stokerd.checkpoints.model import OWNER_LABEL
from stokerd.errors import RuntimeFailure, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.types import GC_EXPIRE_LABEL

_log = structlog.get_logger("checkpoints")
Kind = Literal["commit", "push", "ship"]
_PREFIXES = ("stoker-commit-", "stoker-push-", "stoker-ship-")
_LONGEST = timedelta(hours=24)
"""Should no stokerd come back, what a lease holds goes by itself so long afterwards."""


class Holder:
    """Makes leases. *owner* marks those of this daemon."""

    def __init__(self, runtime: NativeRuntime, owner: str, clock: Callable[[], datetime]) -> None:
        self._runtime, self._owner, self._clock = runtime, owner, clock
        self._held: set[str] = set()

    @asynccontextmanager
    async def lease(self, kind: Kind) -> AsyncIterator[str]:
        """Yield the id of a lease, which is deleted at the end, whatever happens."""
        name = f"stoker-{kind}-{secrets.token_hex(8)}"
        expires = (self._clock() + _LONGEST).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._held.add(name)
        try:
            await self._runtime.leases.create(name, {GC_EXPIRE_LABEL: expires, OWNER_LABEL: self._owner})
            try:
                yield name
            finally:
                await to_the_end(self._runtime.leases.delete(name), f"delete {name}")
        finally:
            self._held.discard(name)

    async def clear(self) -> list[str]:
        """Delete the leases that this daemon made in an earlier life; return those that could not be."""
        left: list[str] = []
        for lease in await self._runtime.leases.list():
            ours = lease.labels.get(OWNER_LABEL) == self._owner and lease.id.startswith(_PREFIXES)
            if not ours or lease.id in self._held:
                continue
            try:
                await self._runtime.leases.delete(lease.id)
            except RuntimeUnavailable:
                raise
            except RuntimeFailure as error:
                _log.warning("cannot delete a lease", lease=lease.id, why=error.message)
                left.append(lease.id)
            else:
                _log.info("what was under way when stokerd ended is removed", lease=lease.id)
        return left
