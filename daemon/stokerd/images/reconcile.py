"""Bringing containerd and what we meant together again, after a start, a crash or containerd's absence."""

from __future__ import annotations

from typing import Protocol

import structlog

from stokerd.images.jobs import Pull
from stokerd.images.leases import leased, orphaned
from stokerd.registry.references import Reference
from stokerd.runtime.protocol import Runtime

_log = structlog.get_logger("images")


class Cleaner(Protocol):
    """What is needed of `scheduler.Scheduler`, which knows what is wanted at every moment."""

    def found(self, reference: Reference) -> Pull | None: ...


async def drop_orphans(runtime: Runtime, daemon: str, cleaner: Cleaner) -> int:
    """Delete those of our pull leases whose image nobody wants, with all that they hold.

    Returns how many there were. Leases of others, kubelet's pulls among them, are left alone. Between the look at the
    leases and their end, somebody may come who wants the image: so it is the scheduler that removes them.
    """
    leases = await runtime.leases.list()
    images = leased(leases, daemon)
    found = [cleaner.found(reference) for reference in images.values()]
    gone = [pull.gone for pull in found if pull is not None]
    nameless = orphaned(leases, daemon, images)
    for identity in nameless:
        await runtime.leases.delete(identity, sync=True)
    for event in gone:
        await event.wait()
    if gone or nameless:
        _log.info("removed what broken pulls left", leases=len(gone) + len(nameless))
    return len(gone) + len(nameless)
