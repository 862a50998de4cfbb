"""Bringing disk and containerd back to what is meant: after a start, and whenever containerd is back.

Whoever died in the middle of a checkpoint left an intent without a manifest: its container is thawed, and what there is
of it removed. Snapshots of ours without a checkpoint are removed. Pauses that were asked for stay; one that was never
answered for is undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container

import msgspec
import structlog

from stokerd.checkpoints.catching import halted
from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointError
from stokerd.checkpoints.freezing import Dumpers, dump_ended, end, thaw
from stokerd.checkpoints.model import CHECKPOINT_LABEL, OWNER_LABEL, root_name
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.taking import remove
from stokerd.errors import RuntimeFailure, RuntimeUnavailable
from stokerd.runtime.protocol import NativeRuntime

_log = structlog.get_logger("checkpoints")
_DUMP_TIMEOUT = 120.0


class Converged(msgspec.Struct):
    """What was done: containers thawed, or stopped as was meant with their checkpoints; incomplete checkpoints and
    stray snapshots removed; and what is left to do."""

    thawed: list[str] = msgspec.field(default_factory=list)
    removed: list[str] = msgspec.field(default_factory=list)
    snapshots: list[str] = msgspec.field(default_factory=list)
    stopped: list[str] = msgspec.field(default_factory=list)
    clones: list[str] = msgspec.field(default_factory=list)
    left: list[str] = msgspec.field(default_factory=list)


class AtWork:
    """What is worked on by now, wherever that is noted: it changes while it is looked at."""

    def __init__(self, *places: Container[str]) -> None:
        self._places = places

    def __contains__(self, name: object) -> bool:
        return any(name in place for place in self._places)


async def converge(
    runtime: NativeRuntime, shelf: Shelf, owner: str, dumpers: Dumpers, busy: Container[str] = ()
) -> Converged:
    """Do it all. RuntimeUnavailable when containerd goes away; it is tried again when it is back.

    *busy* are checkpoints under way, snapshots in use and containers that are being worked on: they are left alone. It
    is asked after each listing, since work begins and ends meanwhile.
    """
    done = Converged()
    complete: set[str] = set()
    for checkpoint in await asyncio.to_thread(shelf.names):
        if checkpoint in busy:
            complete.add(checkpoint)
            continue
        try:
            if await _is_complete(shelf, checkpoint):
                complete.add(checkpoint)
                await _finish(runtime, shelf, checkpoint, done)
                continue
            await _undo(runtime, shelf, checkpoint, dumpers, done)
        except RuntimeUnavailable:
            raise
        except (RuntimeFailure, CheckpointError, OSError) as error:
            _log.warning("cannot clear up after a checkpoint", id=checkpoint, why=str(error))
            done.left.append(checkpoint)
    await _strays(runtime, shelf, owner, complete, busy, done)
    await _pauses(runtime, shelf, busy, done)
    if done.thawed or done.removed or done.snapshots:
        _log.info("cleared up after checkpoints", thawed=done.thawed, removed=done.removed, snapshots=done.snapshots)
    return done


async def _is_complete(shelf: Shelf, checkpoint: str) -> bool:
    """A manifest that cannot be read is damage, which people are to see; it is no leftover."""
    try:
        return await asyncio.to_thread(shelf.manifest, checkpoint) is not None
    except CheckpointDamaged:
        return True


async def _finish(runtime: NativeRuntime, shelf: Shelf, checkpoint: str, done: Converged) -> None:
    """End a container that was to end with its checkpoint, and stands still. One that runs was let go by somebody."""
    intent = await asyncio.to_thread(shelf.intent, checkpoint)
    if intent is None or not intent.stop:
        return
    task = await runtime.tasks.get(intent.container_id)
    if task is not None and task.state in {"paused", "pausing"}:
        if not await end(runtime, intent.container_id):
            done.left.append(checkpoint)
            return
        done.stopped.append(intent.container_id)
    await asyncio.to_thread(shelf.forget_intent, checkpoint)


async def _undo(runtime: NativeRuntime, shelf: Shelf, checkpoint: str, dumpers: Dumpers, done: Converged) -> None:
    if not await dump_ended(shelf.node_path(checkpoint), dumpers, _DUMP_TIMEOUT):
        done.left.append(checkpoint)
        return
    intent = await asyncio.to_thread(shelf.intent, checkpoint)
    if intent is not None and not intent.was_paused and not await _let_go(runtime, intent.container_id, done):
        done.left.append(checkpoint)
        return
    await remove(runtime, shelf, checkpoint)
    done.removed.append(checkpoint)


async def _let_go(runtime: NativeRuntime, container_id: str, done: Converged) -> bool:
    """Thaw a container that was to stand for a moment; False when it does not go on yet. A runc or CRIU that was ended
    at the wrong moment leaves the cgroup frozen, and containerd does not know."""
    task = await runtime.tasks.get(container_id)
    if task is None or task.state not in {"running", "paused", "pausing"}:
        return True
    if task.state != "running" or await asyncio.to_thread(halted, task.pid, container_id):
        if not await thaw(runtime, container_id):
            return False
        done.thawed.append(container_id)
    return True


async def _strays(
    runtime: NativeRuntime,
    shelf: Shelf,
    owner: str,
    complete: Collection[str],
    busy: Container[str],
    done: Converged,
) -> None:
    for info in await runtime.snapshots.list():
        checkpoint = info.labels.get(CHECKPOINT_LABEL)
        if checkpoint is None or info.labels.get(OWNER_LABEL) != owner or checkpoint in busy or info.name in busy:
            continue
        if info.name == root_name(checkpoint) and (checkpoint in complete or await _is_complete(shelf, checkpoint)):
            continue
        try:
            await runtime.snapshots.remove(info.name)
        except RuntimeUnavailable:
            raise
        except RuntimeFailure as error:
            _log.warning("cannot remove a snapshot", snapshot=info.name, why=error.message)
            done.left.append(info.name)
        else:
            done.snapshots.append(info.name)


async def _pauses(runtime: NativeRuntime, shelf: Shelf, busy: Container[str], done: Converged) -> None:
    for container in [each.container_id for each in await asyncio.to_thread(shelf.pauses)]:
        pauses = {each.container_id: each for each in await asyncio.to_thread(shelf.pauses)}  # as they are by now
        pause = pauses.get(container)
        if pause is None or container in busy:
            continue
        task = await runtime.tasks.get(pause.container_id)
        if task is not None and pause.state == "paused" and task.state == "paused":
            continue
        if pause.state == "pausing" and not await _let_go(runtime, pause.container_id, done):
            done.left.append(pause.container_id)
            continue
        await asyncio.to_thread(shelf.drop_pause, pause.container_id)
