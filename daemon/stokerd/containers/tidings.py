"""What an event of the runtime means for a request: something new, or what it did itself. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

from stokerd.containers.model import Sight
from stokerd.runtime.pod_types import ContainerEvent, ContainerEventKind

Verdict = Literal["news", "known", "later"]
_AFTER: dict[ContainerEventKind, frozenset[str]] = {
    "created": frozenset({"created", "running", "exited", "unknown"}),
    "started": frozenset({"running", "exited"}),
    "stopped": frozenset({"exited"}),
    "deleted": frozenset(),
}
"""The states in which a container is after an event, as far as nothing else has happened."""


def judge(event: ContainerEvent, sight: Sight, in_hand: AbstractSet[str], *, creating: bool) -> Verdict:
    """Say whether *event* calls for another look at the pod.

    *in_hand* are containers that a call is under way for, *creating*: one is just being made. Their events are
    understood once the call has returned ("later").
    """
    if event.id == event.pod_id:
        return "known" if event.kind in {"created", "started"} else "news"
    if event.id in in_hand:
        return "later"
    container = sight.find(event.id)
    if container is None:
        if event.kind == "deleted":
            return "known"
        return "later" if creating else "news"
    return "known" if container.state in _AFTER[event.kind] else "news"
