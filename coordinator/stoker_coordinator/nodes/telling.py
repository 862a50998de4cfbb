"""What is said to nodes: written by a task that lives as long as there is something, one at a time for each stream.

A node that reads slowly gets the newest of each kind and not all that was; one that does not read loses its stream.
"""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import structlog

from stoker.objects import link
from stoker.objects.link import MAX_MESSAGE, Desired, Refused
from stoker_coordinator.nodes.metrics import LinkMetrics
from stoker_coordinator.nodes.ports import WishSource
from stoker_coordinator.nodes.roster import Record, Session

_log = structlog.get_logger("nodes")
_WRITE_SECONDS, _FAREWELL_SECONDS = 30.0, 5.0


class Telling:
    """``group`` is the task group that writers belong to, while it runs."""

    def __init__(self, metrics: LinkMetrics) -> None:
        self._metrics = metrics
        self.group: asyncio.TaskGroup | None = None
        self.wishes: WishSource | None = None

    def tell_desired(self, record: Record, session: Session) -> None:
        """Have the node told what it should do, as it is when the stream takes it."""
        session.desired_due = self.wishes is not None and not session.ending
        self.flush(record, session)

    def flush(self, record: Record, session: Session) -> None:
        """Have what is to be said written, by one task at a time."""
        if session.writing or self.group is None:
            return
        session.writing = True
        self.group.create_task(self._write_out(record, session), name=f"nodes: write to {record.name}")

    async def _write_out(self, record: Record, session: Session) -> None:
        try:
            while (data := await self._next(record, session)) is not None:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await session.wire.write(data)
        except TimeoutError:
            _log.warning("a node does not read; its stream is ended", node=record.name)
            self._metrics.refused.labels("SlowReader").inc()
            self.cut(session)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            self.cut(session)  # it went away meanwhile
        finally:
            session.writing = False
        if session.ending:
            await self._part(session)

    async def _next(self, record: Record, session: Session) -> bytes | None:
        message = session.next()
        if message is not None:
            return link.encode(message)
        while session.desired_due and self.wishes is not None:
            session.desired_due = False
            data = await self._desired(record)
            if data is not None:
                return data
        return None

    async def _desired(self, record: Record) -> bytes | None:
        """Return what the node should do, None when it knows that already or it cannot be known now."""
        assert self.wishes is not None
        try:
            share = await self.wishes.share(record.name)
        except Exception as error:  # noqa: BLE001 - the border: one node's wishes must not end other streams
            _log.error("what a node should do cannot be said", node=record.name, exc_info=error)
            return None
        wishes = list(share.wishes)
        digest = hashlib.blake2b(
            link.encode(Desired(generation=0, wishes=wishes, paused=share.paused)), digest_size=16
        ).digest()
        if digest == record.told:
            return None
        data = link.encode(Desired(generation=record.generation + 1, wishes=wishes, paused=share.paused))
        if len(data) > MAX_MESSAGE:
            _log.error("what a node should do is too much for one message", node=record.name, bytes=len(data))
            return None
        record.generation += 1
        record.told = digest
        return data

    def end(self, record: Record, session: Session, why: Refused) -> None:
        """Say *why* and hear a node no more on this stream."""
        self._metrics.refused.labels(why.reason).inc()
        session.end(why)
        self.flush(record, session)

    async def _part(self, session: Session) -> None:
        """Let the node close; cut the stream off when it does not."""
        if session.reader is not None and not session.reader.done():
            await asyncio.wait({session.reader}, timeout=_FAREWELL_SECONDS)
            self.cut(session)

    def cut(self, session: Session) -> None:
        session.ending = session.cut = True
        if session.reader is not None:
            session.reader.cancel()
