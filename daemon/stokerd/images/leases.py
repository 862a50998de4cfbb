"""The leases of our pulls: named so that a restarted daemon finds its own, and touches no other.

A pull's lease states what was meant, in containerd itself: this image, for this daemon. It holds every byte that the
pull brought, so a broken pull can go on where it stopped, and deleting the lease removes exactly what the pull left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

from stokerd.registry.references import InvalidReference, Reference, parse_reference
from stokerd.runtime.types import GC_EXPIRE_LABEL, Lease

DAEMON_LABEL = "stoker.dev/daemon"
IMAGE_LABEL = "stoker.dev/image"
PREFIX = "stoker-pull-"
LIFETIME = timedelta(days=7)
"""After which containerd itself drops a lease, should no stokerd come back to this node."""
_LABEL_LIMIT = 4096
"""containerd's limit for a label's key and value together."""


def lease_id(daemon: str, image: str) -> str:
    """Return the id of the lease under which *daemon* pulls *image*: always the same, so that it is found again."""
    return PREFIX + hashlib.sha256(f"{daemon}\0{image}".encode()).hexdigest()[:32]


def lease_labels(daemon: str, image: str, now: datetime) -> dict[str, str]:
    """Return the labels of a new pull lease."""
    expires = (now.astimezone(UTC) + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        DAEMON_LABEL: daemon,
        IMAGE_LABEL: image[: _LABEL_LIMIT - len(IMAGE_LABEL)],
        GC_EXPIRE_LABEL: expires,
    }


def leased(leases: Iterable[Lease], daemon: str) -> dict[str, Reference]:
    """Return the images that this daemon's pull leases are for, by the leases' ids."""
    found: dict[str, Reference] = {}
    for lease in leases:
        try:
            reference = parse_reference(lease.labels.get(IMAGE_LABEL, ""))
        except InvalidReference:
            continue
        if lease.labels.get(DAEMON_LABEL) == daemon and lease.id == lease_id(daemon, reference.pull_spec):
            found[lease.id] = reference
    return found


def orphaned(leases: Iterable[Lease], daemon: str, wanted: Collection[str]) -> tuple[str, ...]:
    """Return the ids of this daemon's pull leases that no pull wants any more (*wanted*: lease ids)."""
    return tuple(
        lease.id
        for lease in leases
        if lease.id.startswith(PREFIX) and lease.labels.get(DAEMON_LABEL) == daemon and lease.id not in wanted
    )
