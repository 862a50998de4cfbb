"""When an event of containerd may be passed on: CRI's bookkeeping runs behind them, and who is told asks CRI. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from stokerd.runtime.pod_types import ContainerEvent, ContainerEventKind, ContainerState, PodState

View = ContainerState | PodState
Kind = Literal["container", "sandbox"]

_SHOWN: Mapping[View, frozenset[ContainerEventKind]] = {
    "created": frozenset({"created"}),
    "running": frozenset({"created", "started"}),
    "unknown": frozenset({"created", "started"}),
    "exited": frozenset({"created", "started", "stopped"}),
    "ready": frozenset({"created", "started"}),
    "notready": frozenset({"created", "started", "stopped"}),
}


class Expected(msgspec.Struct, frozen=True):
    """An event that CRI does not show yet; it is forgotten at ``deadline`` (seconds of some clock)."""

    kind: ContainerEventKind
    id: str
    deadline: float


def settle(
    expected: Sequence[Expected], views: Mapping[str, View], pods: Mapping[str, str], now: float
) -> tuple[tuple[ContainerEvent, ...], tuple[Expected, ...]]:
    """Return the events that CRI shows by now, and those that it does not.

    *views* is what CRI lists, *pods* says which sandbox a container belongs to. Events of one object keep their order.
    An object that CRI does not list has not come yet, unless its removal is among what is expected.
    """
    removed = {each.id for each in expected if each.kind == "deleted"}
    shown: list[ContainerEvent] = []
    waiting: list[Expected] = []
    behind: set[str] = set()
    for each in expected:
        view = views.get(each.id)
        visible = each.id in removed if view is None else each.kind in _SHOWN[view]
        if visible and each.id not in behind:
            shown.append(ContainerEvent(each.kind, each.id, pods.get(each.id, "")))
        elif now < each.deadline:
            waiting.append(each)
            behind.add(each.id)
    return tuple(shown), tuple(waiting)
