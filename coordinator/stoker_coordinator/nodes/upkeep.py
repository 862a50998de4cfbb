"""Node objects in the store, kept as the link sees the nodes. What they say, and when it is worth a write, is pure.

Ten thousand nodes with a heartbeat every ten seconds must not be a thousand writes a second: an object is written when
something in it changes, and otherwise every few minutes, so that ``lastSeen`` means something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import structlog
from msgspec import structs

from stoker.objects.cluster_nodes import Node, NodeCapability, NodeStatus
from stoker.objects.link import Hello
from stoker.objects.meta import Condition, ConditionStatus, ObjectMeta
from stoker_coordinator.errors import AlreadyExists, CoordinatorError, NotFound
from stoker_coordinator.nodes.ports import Presence
from stoker_coordinator.nodes.roster import Record
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("nodes")
REWRITE_SECONDS = 300.0
_WORKERS = 8
_RETRY = 5.0
_MOST_CAPABILITIES, _MOST_ADDRESSES, _LONGEST = 64, 32, 256


class Written(Protocol):
    """Counts writes: `LinkMetrics.writes`."""

    def inc(self) -> None: ...


# ---------------------------------------------------------------------------------------------- decided


def status_of(record: Record, before: NodeStatus, wall: float, clock: float) -> NodeStatus:
    """Return what a node's object should say. *clock*: now, too, on the clock that the record goes by.

    ``lastSeen`` is when the node was heard last, and not when that was written: how long it is silent goes by that.
    """
    hello, presence, heard = record.hello, record.presence, record.last_word
    now = _time(wall)
    conditions: list[tuple[str, ConditionStatus, str, str]] = [
        ("Ready", _truth(presence), presence.reason, presence.message),
        ("RuntimeReady", "True" if record.runtime_ready[0] else "False", "", record.runtime_ready[1]),
    ]
    if record.conflict is not None or any(each.type == "IdentityConflict" for each in before.conditions):
        held = record.conflict is not None
        conditions.append(
            (
                "IdentityConflict",
                "True" if held else "False",
                "ClonedIdentity" if held else "Resolved",
                record.conflict[1] if record.conflict else "",
            )
        )
    status = structs.replace(
        before,
        conditions=_merged(before.conditions, conditions, now),
        connected=presence.connected,
        connected_since=_time(record.presence.since) if presence.connected else None,
        last_seen=before.last_seen if heard is None else _time(wall - (clock - heard)),
        images=record.counts[0],
        pods=record.counts[1],
        topology_generation=record.counts[2],
    )
    if hello is None:
        return status
    name, _, version = hello.runtime.partition(" ")
    return structs.replace(
        status,
        boot_id=hello.boot_id[:_LONGEST],
        stokerd_version=hello.version[:_LONGEST],
        protocol_version=record.session.protocol if record.session else status.protocol_version,
        runtime_name=name[:_LONGEST],
        runtime_version=version[:_LONGEST],
        addresses=tuple(each[:_LONGEST] for each in hello.addresses[:_MOST_ADDRESSES]),
        capabilities=tuple(
            NodeCapability(name=each[:_LONGEST], available=not why, detail=why[:_LONGEST])
            for each, why in sorted(hello.capabilities.items())[:_MOST_CAPABILITIES]
        ),
        disk_free_bytes=record.session.beat[2] if record.session else status.disk_free_bytes,
    )


def recall(record: Record, kept: NodeStatus, wall: float, now: float) -> None:
    """Have a record say what the object says, so that a coordinator that starts writes nothing.

    A node that was connected is taken to be, until it has had the time to come back.
    """
    record.heard = now
    held = {each.type: each for each in kept.conditions}
    ready, runtime = held.get("Ready"), held.get("RuntimeReady")
    since = ready.last_transition_time if ready is not None else None
    record.presence = Presence(
        kept.connected,
        ready is not None and ready.status == "True",
        since.timestamp() if since is not None else wall,
        "CoordinatorStarted" if kept.connected or ready is None else ready.reason,
        ready.message if ready is not None else "",
    )
    if runtime is not None:
        record.runtime_ready = (runtime.status == "True", runtime.message)
    record.counts = (kept.images, kept.pods, kept.topology_generation)
    record.written, record.written_at = essence(record), now


def essence(record: Record) -> int:
    """Return a number that is another one when the object should be written at once."""
    presence, session = record.presence, record.session
    return hash(
        (
            presence.connected,
            presence.ready,
            presence.reason,
            record.runtime_ready,
            record.conflict,
            record.counts[:2],
            session.protocol if session else 0,
            _said(record.hello) if record.hello else None,
        )
    )


def _said(hello: Hello) -> tuple[object, ...]:
    return hello.instance, hello.version, hello.runtime, frozenset(hello.capabilities.items())


def is_due(record: Record, now: float) -> bool:
    """Say whether a node's object is worth a write."""
    return essence(record) != record.written or (
        record.session is not None and now - record.written_at >= REWRITE_SECONDS
    )


def _merged(
    before: tuple[Condition, ...], fresh: list[tuple[str, ConditionStatus, str, str]], now: datetime
) -> tuple[Condition, ...]:
    """Return conditions with the moment since when each is what it is; those of others stay."""
    held = {each.type: each for each in before}
    for kind, status, reason, message in fresh:
        old = held.get(kind)
        since = old.last_transition_time if old is not None and old.status == status else now
        held[kind] = Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)
    return tuple(held.values())


def _truth(presence: Presence) -> ConditionStatus:
    if presence.ready:
        return "True"
    return "False" if presence.connected else "Unknown"


def _time(wall: float) -> datetime:
    return datetime.fromtimestamp(round(wall), UTC)


# ---------------------------------------------------------------------------------------------- done


class Upkeep:
    """Writes Node objects, each once at a time, the newest state only."""

    def __init__(self, store: Store, written: Written, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._store, self._count, self._clock, self._wall = store, written, clock, wall
        self._due: dict[str, Record] = {}
        self._busy: set[str] = set()
        self._woken = asyncio.Event()

    def note(self, record: Record) -> None:
        """Have a look at a node of which something may have changed."""
        if is_due(record, self._clock()):
            self._due[record.name] = record
            self._woken.set()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(_WORKERS):
                group.create_task(self._work(), name=f"nodes: write {number}")

    async def _work(self) -> None:
        while True:
            record = self._next()
            if record is None:
                self._woken.clear()
                await self._woken.wait()
                continue
            self._busy.add(record.name)
            try:
                await self._write(record)
            except CoordinatorError as error:
                _log.warning("a node's object could not be written; tried again", node=record.name, why=error.message)
                await asyncio.sleep(_RETRY)
                self._due.setdefault(record.name, record)
            finally:
                self._busy.discard(record.name)
                self._woken.set()

    def _next(self) -> Record | None:
        for name in self._due:
            if name not in self._busy:
                return self._due.pop(name)
        return None

    async def _write(self, record: Record) -> None:
        mark, wall, clock = essence(record), self._wall(), self._clock()

        def change(node: Node) -> Node:
            return structs.replace(node, status=status_of(record, node.status, wall, clock))

        try:
            await self._store.change(Node, record.name, change=change, status=True)
        except NotFound:
            if record.session is None:
                return  # somebody has removed the object of a node that is not there: so be it
            await self._create(record, wall, clock)
        record.written, record.written_at = mark, self._clock()
        self._count.inc()

    async def _create(self, record: Record, wall: float, clock: float) -> None:
        labels = {"kubernetes.io/hostname": record.name[:63].rstrip(".-")}
        meta = ObjectMeta(name=record.name, labels=labels)
        try:
            await self._store.create(Node(metadata=meta, status=status_of(record, NodeStatus(), wall, clock)))
        except AlreadyExists:
            self._due.setdefault(record.name, record)
