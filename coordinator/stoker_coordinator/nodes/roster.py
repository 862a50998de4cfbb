"""All nodes that are known, and the stream of each that is connected.

There may be ten thousand of each, so both are small: slots, no task of their own but the stream's reader, and no queue.
What is to be said is kept by kind, the newest only, and written when the stream takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

from stoker.objects.link import (
    Ack,
    DownMessage,
    Hello,
    Refused,
    ResultKey,
)
from stoker_coordinator.nodes.admission import Peer, Seen
from stoker_coordinator.nodes.pacing import Pace
from stoker_coordinator.nodes.ports import Presence
from stoker_coordinator.nodes.receiving import Kept


class Wire(Protocol):
    """What is needed of a stream: `grpc.aio.ServicerContext`."""

    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...


class Session:
    """One open stream."""

    __slots__ = (
        "_acks",
        "_outbox",
        "answered",
        "beat",
        "cut",
        "desired_due",
        "ending",
        "heard",
        "hello",
        "opened",
        "pace",
        "peer",
        "protocol",
        "reader",
        "renewed",
        "wire",
        "writing",
    )

    def __init__(self, wire: Wire, peer: Peer, hello: Hello, protocol: int, now: float) -> None:
        self.wire, self.peer, self.hello, self.protocol = wire, peer, hello, protocol
        self.opened = self.heard = now
        self.pace = Pace()
        self.beat: tuple[bool, str, int] = (True, "", 0)
        """Ready, why not, free bytes: of the last heartbeat."""
        self.reader: asyncio.Task[Any] | None = None
        self.writing = False
        """A task writes what is in the outbox; no second one is begun."""
        self.desired_due = False
        self.ending = self.cut = False
        self.renewed = float("-inf")
        self.answered: asyncio.Event | None = None
        """Somebody waits for the answer to a Probe."""
        self._outbox: dict[str, DownMessage] = {}
        self._acks: list[ResultKey] = []

    def put(self, kind: str, message: DownMessage) -> None:
        """Say this instead of what was to be said of the same kind."""
        self._outbox[kind] = message

    def acknowledge(self, keys: list[ResultKey]) -> None:
        self._acks += keys

    def next(self) -> DownMessage | None:
        """Take out what is to be said next, but for Desired; None: nothing."""
        if self._acks:
            keys, self._acks = self._acks, []
            return Ack(results=keys)
        if self._outbox:
            return self._outbox.pop(next(iter(self._outbox)))
        return None

    def end(self, refused: Refused) -> None:
        """Say why, as the last thing; the node closes then."""
        self.ending = True
        self.desired_due = False
        self._acks.clear()
        self._outbox = {"refused": refused}


class Record:
    """One node by its name, connected or not."""

    __slots__ = (
        "conflict",
        "counts",
        "former",
        "generation",
        "heard",
        "hello",
        "kept",
        "name",
        "presence",
        "runtime_ready",
        "seen",
        "session",
        "told",
        "written",
        "written_at",
    )

    def __init__(self, name: str, now: float, presence: Presence) -> None:
        self.name = name
        self.session: Session | None = None
        self.hello: Hello | None = None
        self.heard = now
        """Since when it is silent, while it has no stream."""
        self.seen: float | None = None
        """When the last stream that has ended brought its last word; None: there was none since the start."""
        self.presence = presence
        self.runtime_ready: tuple[bool, str] = (True, "")
        self.kept: dict[str, Kept] = {}
        self.former: tuple[str, ...] = ()
        self.generation = 0
        self.told = b""
        """Digest of the last Desired."""
        self.conflict: tuple[float, str] | None = None
        """Since when two machines claim the name, and what is known of the other."""
        self.counts: tuple[int, int, int] = (0, 0, 0)
        """Images, pods, generation of the topology."""
        self.written = 0
        """Hash of what the Node object says."""
        self.written_at = float("-inf")

    @property
    def last_word(self) -> float | None:
        """When anything was heard of it last; None: not since the coordinator's start."""
        return self.session.heard if self.session is not None else self.seen

    def as_seen(self, now: float) -> Seen | None:
        """Return what `admission` goes by."""
        if self.session is None:
            return None
        hello = self.session.hello
        return Seen(hello.boot_id, hello.machine_id, hello.instance, now - self.session.heard)


class Roster:
    """Records by name."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self.connected = 0

    def get(self, name: str) -> Record | None:
        return self._records.get(name)

    def known(self, name: str, now: float, wall: float) -> Record:
        """Return the record of *name*; make it where there is none."""
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = Record(name, now, Presence(False, False, wall, "NeverConnected"))
        return record

    def forget(self, name: str) -> None:
        record = self._records.get(name)
        if record is not None and record.session is None:
            del self._records[name]

    def attach(self, record: Record, session: Session) -> Session | None:
        """Let *session* be the node's; return the one that was."""
        former, record.session = record.session, session
        self.connected += former is None
        return former

    def detach(self, record: Record, session: Session) -> bool:
        """Take a stream away that has ended; False: another one is there already."""
        if record.session is not session:
            return False
        record.session = None
        record.heard = record.seen = session.heard
        self.connected -= 1
        return True

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)
