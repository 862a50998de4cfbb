"""Streams of nodes: from the first message to the last."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import grpc
import msgspec
import structlog
from msgspec import structs

from stoker.link_documents import cleaned
from stoker.objects import link
from stoker.objects.inventory import ImageInventory, PodInventory
from stoker.objects.link import (
    FINAL,
    About,
    Delta,
    Full,
    Heartbeat,
    Hello,
    Known,
    Notice,
    Probe,
    Refused,
    Renew,
    ResultKey,
    Results,
    Resync,
    Unknown,
    Welcome,
)
from stoker.objects.topology import TopologyReport
from stoker_coordinator.errors import CoordinatorError
from stoker_coordinator.nodes import admission
from stoker_coordinator.nodes.admission import Peer, Refusal
from stoker_coordinator.nodes.authority import Authority
from stoker_coordinator.nodes.joining import renew
from stoker_coordinator.nodes.ledger import Ledger
from stoker_coordinator.nodes.listening import peer_of
from stoker_coordinator.nodes.metrics import LinkMetrics
from stoker_coordinator.nodes.ports import RETURN_SECONDS, Content, Listener, Presence, ResultSink
from stoker_coordinator.nodes.receiving import Gap, Ignored, Lie, Taken, take
from stoker_coordinator.nodes.roster import Record, Roster, Session
from stoker_coordinator.nodes.settings import LinkSettings
from stoker_coordinator.nodes.telling import Telling
from stoker_coordinator.nodes.upkeep import Upkeep

_log = structlog.get_logger("nodes")
_HELLO_SECONDS, _PROBE_SECONDS = 10.0, 5.0
_RENEW_PAUSE = 60.0
_MOST_LIES = 100
"""A stream that has brought so many messages that no honest node sends is ended."""


class Streams:
    """Serves all streams."""

    def __init__(
        self,
        settings: LinkSettings,
        roster: Roster,
        ledger: Ledger,
        upkeep: Upkeep,
        metrics: LinkMetrics,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        version: str,
        cluster: str,
        returning: float = RETURN_SECONDS,
    ) -> None:
        """*returning*: so long nodes that were connected when the last coordinator ended are not missed."""
        self._returning = max(returning, settings.silent_after)
        self._settings, self._roster, self._ledger, self._upkeep = settings, roster, ledger, upkeep
        self._metrics, self._clock, self._wall = metrics, clock, wall
        self._version, self._cluster = version, cluster
        self.telling = Telling(metrics)
        self.authority: Authority | None = None
        self.listeners: list[Listener] = []
        self.results: ResultSink | None = None

    # ------------------------------------------------------------------------------------------ a stream

    async def connect(self, _requests: Any, context: Any) -> None:
        """Serve one stream to its end."""
        try:
            opened = await self._open(context)
        except msgspec.DecodeError:
            opened = Refusal("Invalid", "the first message is no greeting")
        if isinstance(opened, Refusal):
            await self._refuse(context, opened)
            return
        record, session = opened
        try:
            await self._read(record, session)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not session.cut or task is None:
                raise
            task.uncancel()
        finally:
            self._left(record, session)
        if session.cut:
            # gRPC tells the other end nothing of a handler that is cancelled: it would believe in its stream for ever.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was cut off")

    async def _refuse(self, context: Any, why: Refusal) -> None:
        self._metrics.refused.labels(why.reason).inc()
        message = Refused(reason=why.reason, message=why.message, hint=why.hint, retry_seconds=why.retry_seconds)
        await context.write(link.encode(message))

    async def _open(self, context: Any) -> tuple[Record, Session] | Refusal:
        peer = peer_of(context)
        if peer is None:
            return Refusal("NoCertificate", "this address is for nodes with a certificate", "join with a token", 300.0)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                data = await context.read()
        except TimeoutError:
            return Refusal("Silent", f"no greeting within {_HELLO_SECONDS:g} s")
        if data is grpc.aio.EOF:
            return Refusal("Silent", "the stream ended without a greeting")
        hello = link.decode_up(data)
        if not isinstance(hello, Hello):
            return Refusal("Invalid", "the first message is no greeting")
        try:
            epoch = await self._ledger.epoch(peer.identity.node) if peer.identity is not None else 0
        except CoordinatorError as error:
            return Refusal(error.reason, error.message, retry_seconds=10.0)
        protocol = admission.check(peer, hello, epoch, self._roster.connected, self._settings.most_nodes)
        if isinstance(protocol, Refusal):
            _log.warning("a node was refused", node=cleaned(hello.node[:64]), why=protocol.message, peer=peer.address)
            return protocol
        record = self._roster.known(hello.node, self._clock(), self._wall())
        clone = await self._met(record, peer, hello)
        if clone is not None:
            return clone
        return record, self._admit(record, context, peer, hello, protocol)

    async def _met(self, record: Record, peer: Peer, hello: Hello) -> Refusal | None:
        """Deal with the stream that is open under this name; return why the new one may not come in."""
        step = admission.meet(record.as_seen(self._clock()), hello, record.former, self._settings.silent_after)
        if step == "probe":
            step = "conflict" if await self._answers(record) else "replace"
        if step == "conflict":
            return self._conflict(record, peer, hello)
        old = record.session
        if old is not None:
            if old.hello.instance != hello.instance:
                record.former = admission.remember(record.former, old.hello.instance)
            self.telling.end(
                record, old, Refused(reason="Replaced", message="another stream of this node has taken over")
            )
        return None

    async def _answers(self, record: Record) -> bool:
        """Ask the stream that is open whether somebody is there."""
        session = record.session
        if session is None:
            return False
        if session.answered is None:
            session.answered = asyncio.Event()
            session.put("probe", Probe(nonce=secrets.randbits(31) | 1))
            self.telling.flush(record, session)
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await session.answered.wait()
        except TimeoutError:
            return False
        finally:
            session.answered = None
        return record.session is session

    def _conflict(self, record: Record, peer: Peer, hello: Hello) -> Refusal:
        """Two machines have one name: the one that is here keeps it, and both are told."""
        where = f"machine {cleaned(hello.machine_id[:40]) or 'unknown'} at {peer.address}"
        since = record.conflict[0] if record.conflict is not None else self._wall()
        if record.conflict is None:
            _log.error("two machines say that they are one node", node=record.name, other=where)
        record.conflict = (since, f"{where} has the same name and certificate, too")
        if record.session is not None:
            notice = Notice(
                reason="ClonedIdentity",
                message=f"another machine says that it is this node: {where}",
                hint="one of them was copied from the other: give it a name of its own, and let it join anew",
            )
            record.session.put("notice ClonedIdentity", notice)
            self.telling.flush(record, record.session)
        self._upkeep.note(record)
        return Refusal(
            "ClonedIdentity",
            f"another machine is connected as node {record.name}",
            "this machine was copied, or the other one was: remove uplink's state directory here, set uplink.node to a "
            "name of its own, and join anew",
            admission.CONFLICT_RETRY,
        )

    def _admit(self, record: Record, context: Any, peer: Peer, hello: Hello, protocol: int) -> Session:
        session = Session(context, peer, hello, protocol, self._clock())
        session.reader = asyncio.current_task()
        self._roster.attach(record, session)
        self._metrics.connected.set(self._roster.connected)
        if record.hello is not None and record.hello.instance != hello.instance:
            record.conflict = None if record.conflict and hello.instance not in record.former else record.conflict
        record.hello = hello
        record.generation = max(record.generation, hello.generation)
        record.told = b""
        for kept in record.kept.values():
            kept.sequence = 0
        known = [Known(document, kept.digest) for document, kept in record.kept.items()]
        welcome = Welcome(
            protocol=protocol,
            version=self._version,
            heartbeat_seconds=self._settings.heartbeat,
            known=known,
            cluster=self._cluster,
        )
        session.put("welcome", welcome)
        self._present(record, Presence(True, True, self._wall(), "Connected"))
        self.telling.tell_desired(record, session)
        return session

    async def _read(self, record: Record, session: Session) -> None:
        """Take messages until the node closes, or is to be heard no more."""
        lies = 0
        while True:
            data = await session.wire.read()
            if data is grpc.aio.EOF:
                return
            now = session.heard = self._clock()
            pause = session.pace.take(
                now,
                len(data),
                messages=self._settings.messages_per_second,
                size_rate=self._settings.bytes_per_second,
            )
            if not session.ending:  # else what comes is dropped, until the node closes or is cut off
                lies += not await self._take(record, session, data)
            if lies >= _MOST_LIES and not session.ending:
                self.telling.end(
                    record, session, Refused(reason="Invalid", message=f"{lies} messages were not as they should be")
                )
            if pause:
                await asyncio.sleep(pause)

    # ------------------------------------------------------------------------------------------ messages

    async def _take(self, record: Record, session: Session, data: bytes) -> bool:
        """Take one message; False: no honest node sends such a one."""
        try:
            message = link.decode_up(data)
        except msgspec.DecodeError as error:
            return self._lie(record, "UnreadableMessage", str(error))
        match message:
            case Heartbeat():
                self._metrics.beats.inc()
                self._beat(record, session, message)
            case About():
                self._metrics.messages.labels("about").inc()
                if record.hello is not None:
                    record.hello = structs.replace(
                        record.hello, runtime=message.runtime, capabilities=message.capabilities
                    )
                    self._upkeep.note(record)
            case Full() | Delta():
                self._metrics.messages.labels("full" if isinstance(message, Full) else "delta").inc()
                return self._document(record, session, message)
            case Results():
                self._metrics.messages.labels("results").inc()
                await self._results(record, session, message)
            case Renew():
                self._metrics.messages.labels("renew").inc()
                await self._renew(record, session, message)
            case Unknown():
                self._metrics.messages.labels("unknown").inc()
            case Hello():
                return self._lie(record, "UnexpectedMessage", "a second greeting")
        return True

    def _lie(self, record: Record, reason: str, why: str) -> bool:
        self._metrics.bad.labels(reason).inc()
        _log.warning("a node sent what it should not", node=record.name, reason=reason, why=cleaned(why[:200]))
        return False

    def _beat(self, record: Record, session: Session, beat: Heartbeat) -> None:
        problem = cleaned(beat.problem[:500])
        session.beat = (beat.ready, problem, beat.free_bytes)
        if session.answered is not None and beat.nonce:
            session.answered.set()
        ready = record.presence.ready and record.presence.connected
        if beat.ready != record.runtime_ready[0] or problem != record.runtime_ready[1] or ready != beat.ready:
            record.runtime_ready = (beat.ready, problem)
            self._present(
                record,
                Presence(True, beat.ready, self._wall(), "Connected" if beat.ready else "NodeNotReady", problem),
            )

    def _document(self, record: Record, session: Session, message: Full | Delta) -> bool:
        outcome = take(record.kept.get(message.document), message, record.name)
        match outcome:
            case Taken():
                record.kept[message.document] = outcome.kept
                if outcome.escaped:
                    self._metrics.bad.labels("ControlCharacters").inc()
                self._note_counts(record, outcome.content)
                self._tell_content(record.name, outcome.content)
            case Gap():
                self._metrics.resyncs.labels(message.document).inc()
                session.put(f"resync {message.document}", Resync(document=message.document, why=outcome.why))
                self.telling.flush(record, session)
            case Ignored():
                self._metrics.bad.labels("Repeated").inc()
            case Lie():
                refusal = Notice(
                    reason=outcome.reason, message=f"the {message.document} document was not taken: {outcome.why}"
                )
                session.put(f"notice {message.document}", refusal)
                self.telling.flush(record, session)
                return self._lie(record, outcome.reason, outcome.why)
        return True

    def _note_counts(self, record: Record, content: Content) -> None:
        images, pods, generation = record.counts
        if isinstance(content, ImageInventory):
            images = len(content.images)
        elif isinstance(content, PodInventory):
            pods = len(content.pods)
        elif isinstance(content, TopologyReport):
            generation += 1
        else:
            return
        record.counts = (images, pods, generation)
        self._upkeep.note(record)

    async def _results(self, record: Record, session: Session, message: Results) -> None:
        """Have results kept; acknowledge those that are over. What cannot be kept now is said again by the node."""
        if self.results is None:
            return
        kept = []
        for result in message.results[: link.MAX_RESULTS]:
            try:
                await self.results.on_result(record.name, result)
            except Exception as error:  # noqa: BLE001 - the border: the node says it again, and others go on
                _log.error("a result could not be kept", node=record.name, wish=result.uid, exc_info=error)
                continue
            if result.phase in FINAL:
                kept.append(ResultKey(result.uid, result.generation))
        if kept:
            session.acknowledge(kept)
            self.telling.flush(record, session)

    async def _renew(self, record: Record, session: Session, message: Renew) -> None:
        identity, now = session.peer.identity, self._clock()
        if identity is None or self.authority is None or now - session.renewed < _RENEW_PAUSE:
            return
        session.renewed = now
        try:
            fresh = await renew(self.authority, identity, message.csr, self._settings.certificate_lifetime)
        except CoordinatorError as error:
            self._lie(record, error.reason, error.message)
            return
        session.put("certificate", fresh)
        self.telling.flush(record, session)

    # ------------------------------------------------------------------------------------------ presence

    def look_after(self) -> None:
        """Go through all nodes: who has not been heard is not ready, and who keeps silent is cut off."""
        now = self._clock()
        for record in self._roster:
            session = record.session
            silent = now - (session.heard if session is not None else record.heard)
            returns = session is None and record.presence.connected
            patience = self._returning if returns else self._settings.silent_after
            if silent > patience and record.presence.reason not in {"Silent", "NeverConnected"}:
                where = "its stream is open" if session is not None else "it is not connected"
                self._present(record, Presence(session is not None, False, self._wall(), "Silent", where))
            elif session is not None and silent > self._settings.dropped_after:
                self._metrics.refused.labels("Silent").inc()
                self.telling.cut(session)
            else:
                self._upkeep.note(record)

    def _left(self, record: Record, session: Session) -> None:
        session.ending = True
        if not self._roster.detach(record, session):
            return
        self._metrics.connected.set(self._roster.connected)
        presence = record.presence
        self._present(record, Presence(False, presence.ready, presence.since, presence.reason, presence.message))

    def _present(self, record: Record, presence: Presence) -> None:
        record.presence = presence
        self._upkeep.note(record)
        for listener in self.listeners:
            try:
                listener.on_presence(record.name, presence)
            except Exception as error:  # noqa: BLE001 - the border: a listener's fault is not the node's
                _log.error("a listener failed", node=record.name, exc_info=error)

    def _tell_content(self, node: str, content: Content) -> None:
        for listener in self.listeners:
            try:
                listener.on_content(node, content)
            except Exception as error:  # noqa: BLE001 - as above
                _log.error("a listener failed", node=node, exc_info=error)
