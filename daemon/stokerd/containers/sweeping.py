"""Which containers that Stoker made, or replaced, can go. Pure.

Only what does not run is removed, and only of requests that are over: what the request made and never started, the old
container once the new one has proven itself, and a new one that failed once the old one is back.
"""

from __future__ import annotations

from collections.abc import Collection

from stokerd.containers.model import Seen, Sight, Target


def leftovers(target: Target, sight: Sight, *, kubelet: bool) -> tuple[str, ...]:
    """Return the ids of containers of a target that has come to its end, and can be removed."""
    if not target.final:
        return ()
    row = target.row
    named = sight.named(target.name)
    mine = [each for each in named if each.request == row.request]
    gone = {each.id: None for each in mine if each.state == "created"}
    if kubelet or not _proven(target):
        return tuple(gone)
    newest = max((each.attempt for each in named), default=0)
    for each in named:
        ended = each.request == row.request or (each.id == row.old_id and row.committed_at is not None)
        if ended and each.state == "exited" and each.id != row.new_id and each.attempt < newest:
            gone[each.id] = None
    return tuple(gone)


def _proven(target: Target) -> bool:
    """Say whether the container in ``new_id`` is one of ours that has taken the place of the old one for good."""
    row = target.row
    if row.reason == "RestartedBySomethingElse" or not row.new_id:
        return False
    return row.phase == "Succeeded" or row.rolled_back or row.reason == "DeadlineExceeded"


def strays(containers: Collection[tuple[str, Seen]], going: Collection[str], over: Collection[str]) -> list[str]:
    """Return the ids of containers, given with their pods, that a request made, never started, and will not start.

    *going* are requests under way, *over* those that have ended. Of requests that nobody remembers, only where another
    container of the name runs: else it may be all that is left.
    """
    running = {(pod, each.name) for pod, each in containers if each.alive}
    return [
        each.id
        for pod, each in containers
        if each.request
        and each.state == "created"
        and each.request not in going
        and (each.request in over or (pod, each.name) in running)
    ]
