"""The nodes as the rest of the coordinator knows them: who is there, what they say, and telling them what to do."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry

from stoker.link_documents import Plain
from stoker.objects.cluster_nodes import Node
from stoker.objects.link import Document, Notice, Refused
from stoker_coordinator.errors import Invalid, NotFound, StoreFailed
from stoker_coordinator.nodes import tokens
from stoker_coordinator.nodes.authority import Authority, open_authority
from stoker_coordinator.nodes.joining import Joining
from stoker_coordinator.nodes.ledger import Ledger
from stoker_coordinator.nodes.listening import Ports, open_ports
from stoker_coordinator.nodes.metrics import LinkMetrics
from stoker_coordinator.nodes.names import NODE_NAME
from stoker_coordinator.nodes.ports import RETURN_SECONDS, Content, Listener, Presence, ResultSink, WishSource
from stoker_coordinator.nodes.receiving import content_of, read_kept
from stoker_coordinator.nodes.roster import Record, Roster
from stoker_coordinator.nodes.settings import LinkSettings
from stoker_coordinator.nodes.streams import Streams
from stoker_coordinator.nodes.tokens import Token
from stoker_coordinator.nodes.upkeep import Upkeep, recall
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("nodes")
_LOOK_EVERY = 2.0
_MOST_USES, _LONGEST_TOKEN = 10_000, 30 * 86_400.0
_KEEP_TOKENS = 7 * 86_400.0


class NodeState(Struct, frozen=True):
    """One node as the link knows it."""

    name: str
    presence: Presence
    heard_seconds_ago: float
    version: str = ""
    documents: tuple[str, ...] = ()


class Nodes:
    """One per coordinator. Give it listeners, then `open`, then `run` in the coordinator's task group."""

    def __init__(
        self,
        settings: LinkSettings,
        directory: Path,
        store: Store,
        registry: CollectorRegistry,
        *,
        version: str = "",
        cluster: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        returning: float = RETURN_SECONDS,
    ) -> None:
        """*directory*: where the certificate authority and the ledger of tokens are kept. *returning*: of `Streams`."""
        self._settings, self._directory, self._store = settings, directory, store
        self._clock, self._wall = clock, wall
        self.metrics = LinkMetrics(registry)
        self._roster = Roster()
        self._ledger = Ledger(directory / "nodes.db")
        self._authority: Authority | None = None
        self._upkeep = Upkeep(store, self.metrics.writes, clock, wall)
        self._streams = Streams(
            settings,
            self._roster,
            self._ledger,
            self._upkeep,
            self.metrics,
            clock,
            wall,
            version=version,
            cluster=cluster,
            returning=returning,
        )
        self.ports = Ports()
        """Where nodes are listened for, once ``listening`` is set."""
        self.listening = asyncio.Event()

    # ------------------------------------------------------------------------------------------ wiring

    def add_listener(self, listener: Listener) -> None:
        """Have *listener* hear of nodes from now on. Begin with that before `run`."""
        self._streams.listeners.append(listener)

    def set_results(self, sink: ResultSink) -> None:
        """Say who keeps results. Until then nodes keep theirs."""
        self._streams.results = sink

    def set_wishes(self, source: WishSource) -> None:
        """Say who knows what nodes should do."""
        self._streams.telling.wishes = source

    # ------------------------------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the ledger and the authority; ConfigError, StoreFailed."""
        await asyncio.to_thread(self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        self._authority = await asyncio.to_thread(open_authority, self._directory)
        await self._ledger.open()

    async def close(self) -> None:
        await self._ledger.close()

    async def run(self) -> None:
        """Serve nodes until cancelled. May run again after it has failed."""
        assert self._authority is not None
        await self._remember()
        joining = Joining(self._ledger, self._authority, self._settings, self.metrics, self._wall)
        self._streams.authority = self._authority
        async with open_ports(self._settings, self._authority, self._streams.connect, joining.join) as self.ports:
            self.listening.set()
            _log.info("nodes are listened for", link=self.ports.link, join=self.ports.join, plain=self.ports.plain)
            async with asyncio.TaskGroup() as group:
                self._streams.telling.group = group
                group.create_task(self._upkeep.run(), name="nodes: objects")
                group.create_task(self._watch_over(), name="nodes: liveness")

    async def _remember(self) -> None:
        """Take up the nodes that the store knows, so that one that does not come back is missed."""
        now = self._clock()
        for node in (await self._store.list(Node)).items:
            record = self._roster.known(node.metadata.name, now, self._wall())
            if record.session is None:
                recall(record, node.status, self._wall(), now)

    async def _watch_over(self) -> None:
        forget_at = self._clock()
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            self._streams.look_after()
            if self._clock() >= forget_at:
                forget_at = self._clock() + 3600.0
                try:
                    await self._ledger.forget_tokens(self._wall() - _KEEP_TOKENS)
                except StoreFailed as error:
                    _log.warning("old join tokens could not be removed", why=error.message)

    # ------------------------------------------------------------------------------------------ asked

    @property
    def authority(self) -> bytes:
        """The certificate (PEM) that nodes need to know the coordinator by."""
        assert self._authority is not None
        return self._authority.pem

    @property
    def connected(self) -> int:
        return self._roster.connected

    def names(self) -> Iterator[str]:
        """Yield the names of all nodes that are known."""
        return (record.name for record in self._roster)

    def state(self, node: str) -> NodeState:
        """Return what is known of one node; NotFound."""
        record = self._record(node)
        heard = record.session.heard if record.session is not None else record.heard
        version = record.hello.version if record.hello is not None else ""
        return NodeState(node, record.presence, self._clock() - heard, version, tuple(record.kept))

    def content(self, node: str, document: Document) -> Content | None:
        """Return a document of a node, None when it has sent none since the coordinator started; NotFound. It is made
        anew each time: what is kept is small, what this returns is not."""
        kept = self._record(node).kept.get(document)
        return content_of(document, kept) if kept is not None else None

    def document(self, node: str, document: Document) -> Plain | None:
        """Return the same as plain values, with all that the node sent."""
        kept = self._record(node).kept.get(document)
        return read_kept(kept) if kept is not None else None

    def _record(self, node: str) -> Record:
        record = self._roster.get(node)
        if record is None:
            raise NotFound(f"no node {node!r} is known", hint="`stoker --server ... nodes` lists those that are")
        return record

    # ------------------------------------------------------------------------------------------ told

    def desired_changed(self, nodes: Sequence[str]) -> None:
        """Have these nodes told what they should do now. Those that are away are told when they come."""
        for name in nodes:
            record = self._roster.get(name)
            if record is not None and record.session is not None:
                self._streams.telling.tell_desired(record, record.session)

    def notify(self, node: str, notice: Notice) -> None:
        """Have something logged at a node, if it is there."""
        record = self._roster.get(node)
        if record is not None and record.session is not None:
            record.session.put(f"notice {notice.reason}", notice)
            self._streams.telling.flush(record, record.session)

    # ------------------------------------------------------------------------------------------ joining

    async def create_token(self, *, seconds: float = 3600.0, uses: int = 1, node: str = "", note: str = "") -> str:
        """Return a new join token, shown this once. Invalid, StoreFailed."""
        problems = []
        if not 1 <= uses <= _MOST_USES:
            problems.append(f"uses: 1 to {_MOST_USES}")
        if not 0 < seconds <= _LONGEST_TOKEN:
            problems.append("seconds: more than 0, and 30 days at most")
        if node and NODE_NAME.fullmatch(node) is None:
            problems.append("node: no name for a node")
        if node and uses != 1:
            problems.append("uses: a token for one node is used once")
        if problems:
            raise Invalid("no such token can be made", problems)
        identity, secret, now = secrets.token_hex(6), secrets.token_urlsafe(24), self._wall()
        await self._ledger.add(
            Token(identity, tokens.digest_of(secret), now, now + seconds, uses, node, False, note[:200])
        )
        _log.info("a join token was made", token=identity, uses=uses, node=node or "any", seconds=seconds)
        return tokens.text_of(identity, secret)

    async def list_tokens(self) -> list[Token]:
        """Return all tokens, without their secrets, which nobody knows any more."""
        return await self._ledger.tokens()

    async def revoke_token(self, identity: str) -> None:
        """Let a token serve no more; NotFound."""
        if not await self._ledger.revoke_token(identity):
            raise NotFound(f"there is no join token {identity!r}")

    async def revoke_node(self, node: str) -> None:
        """Let no certificate of *node* hold any more, and end its stream; NotFound. It may join anew, by a token made
        for its name."""
        had_joined = await self._ledger.revoke_node(node)
        record = self._roster.get(node)
        if record is None and not had_joined:
            raise NotFound(f"no node {node!r} has joined")
        if record is not None and record.session is not None:
            why = Refused(
                reason="CertificateReplaced",
                message="the node's certificate was revoked",
                hint="join anew, with a token that is made for this node's name",
                retry_seconds=300.0,
            )
            self._streams.telling.end(record, record.session, why)
