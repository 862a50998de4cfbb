"""Whose turn it is: one request at a time in each pod, in the order in which they were made. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec


class Waiting(msgspec.Struct, frozen=True):
    request: str
    pod: str


def startable(waiting: Sequence[Waiting], running: Collection[str], limit: int) -> list[str]:
    """Return the requests to start now, of those that wait, oldest first; *running* are the pods that are busy."""
    taken = set(running)
    started: list[str] = []
    free = limit - len(taken)
    for each in waiting:
        if each.pod not in taken and free > 0:
            started.append(each.request)
            free -= 1
        taken.add(each.pod)  # nobody overtakes within a pod
    return started


def ahead(waiting: Sequence[Waiting], running: dict[str, str], request: str) -> str:
    """Return the request that goes right before *request* on its pod; "" when none does.

    *running* has the request that each busy pod is busy with.
    """
    mine = next((each for each in waiting if each.request == request), None)
    if mine is None:
        return ""
    before = running.get(mine.pod, "")
    for each in waiting:
        if each.request == request:
            return before
        if each.pod == mine.pod:
            before = each.request
    return before
