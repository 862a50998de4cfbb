"""Bringing containerd and what we meant together again, after a start, a crash or containerd's absence."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from stokerd.images.leases import lease_id, orphaned
from stokerd.runtime.protocol import Runtime

_log = structlog.get_logger("images")


async def drop_orphans(runtime: Runtime, daemon: str, wanted: Collection[str]) -> int:
    """Delete those of our pull leases whose image (*wanted*: pull specs) nobody wants, with all that they hold.

    Returns how many there were. Leases of others, kubelet's pulls among them, are left alone.
    """
    leases = await runtime.leases.list()
    gone = orphaned(leases, daemon, {lease_id(daemon, image) for image in wanted})
    for identity in gone:
        await runtime.leases.delete(identity, sync=True)
    if gone:
        _log.info("removed what broken pulls left", leases=len(gone))
    return len(gone)
