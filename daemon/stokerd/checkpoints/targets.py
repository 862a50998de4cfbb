"""Which containers a name stands for: what this room asks of whoever knows pods. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec


class Target(msgspec.Struct, frozen=True):
    """One container."""

    id: str
    name: str = ""
    pod: str = ""
    namespace: str = ""

    @property
    def shown(self) -> str:
        """``namespace/pod/container``, or the id."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.id


class Names(Protocol):
    """Knows the pods of the node; `wiring` makes one of the room that has the inventory."""

    async def targets(self, name: str, containers: Sequence[str], alive: Collection[str]) -> tuple[Target, ...]:
        """Return the containers meant: those of the pod *name* that run, or those of it that are named, or the one
        container *name*. *alive* are ids of containers that have ended, and were restored in their place. NotFound,
        Conflict."""
        ...


def shown(targets: Sequence[Target]) -> str:
    """Return several containers in few words: ``default/web: app, sidecar``."""
    if len(targets) == 1:
        return targets[0].shown
    pods = {(each.namespace, each.pod) for each in targets}
    names = ", ".join(each.name or each.id for each in targets)
    if len(pods) == 1:
        (namespace, pod), *_ = pods
        return f"{'/'.join(filter(None, (namespace, pod)))}: {names}"
    return names
