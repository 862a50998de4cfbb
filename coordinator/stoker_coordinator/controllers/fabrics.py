"""From what nodes and central sources say to HyperNode objects, live.

The tree is built in memory, branch by branch; objects follow it. What changes with every second (load) is written a few
times a minute, what changes because something happened at once. HyperNodes that others made are never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog
from msgspec.structs import replace

from stoker.objects import cluster_nodes as objects
from stoker.objects.cluster_nodes import Node
from stoker.objects.meta import Key, Object
from stoker.objects.topology import TopologyLoad, TopologyReport
from stoker_coordinator.controllers.fabric_memory import FabricMemory, Kept
from stoker_coordinator.controllers.fabric_settings import FabricSettings, options
from stoker_coordinator.controllers.fabric_sources import CentralSources
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.controllers.writing import Writer
from stoker_coordinator.errors import AlreadyExists, NotFound, StoreFailed
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import Delta, HyperNode, NodeFacts, SourceState
from stoker_coordinator.hypernodes.objects import SOURCE_LABEL, manifest
from stoker_coordinator.hypernodes.observe import observe, uses, with_state
from stoker_coordinator.hypernodes.rules import is_name
from stoker_coordinator.nodes.ports import Content, Presence
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("fabrics")
KINDS = (Node, objects.HyperNode)
_GATHER = 0.05
"""Seconds in which changes are gathered before the tree is settled."""
_GATHER_TIMES, _GATHER_MOST = 2.0, 0.3
"""When settling takes long, as while thousands of nodes come, so many times longer is gathered, up to this."""
_LOAD_EVERY = 10.0
_KEEP_EVERY = 2.0
_LEFTOVERS_AFTER = 600.0
"""HyperNodes of ours that nobody knows any more go so long after a start: until then nodes may still come back."""


class Fabrics:
    """`nodes.ports.Listener`. `open`, then `run` in the coordinator's task group. ``live`` is the tree."""

    def __init__(
        self,
        store: Store,
        informer: Informer,
        memory: FabricMemory,
        settings: FabricSettings,
        *,
        clock: Callable[[], datetime],
    ) -> None:
        self._store, self._memory, self._clock = store, memory, clock
        self._informer = informer
        self._writer = Writer(width=32)
        self._options = options(settings)
        self.live = Live(self._options)
        self.sources = CentralSources(settings, self._hear_sources, clock)
        self.changed: list[Callable[[], object]] = []
        """Called after each change of the tree."""
        self._objects: dict[str, objects.HyperNode] = {}
        self._loads: set[str] = set()
        """Domains of which only the load is different."""
        self._facts: set[str] = set()
        self._gone: set[str] = set()
        self._remember = False
        """Names and times may be others than those that were kept."""
        self._states: tuple[SourceState, ...] = ()
        """Of central sources, as they were kept last."""
        self._keeping = asyncio.Lock()
        self._wake = asyncio.Event()
        informer.hear(self._hear)

    async def open(self) -> None:
        """Take up what was known before the start. What cannot be read is as if it had not been kept."""
        try:
            kept = await self._memory.open()
        except StoreFailed as error:
            _log.error("what was known of the fabrics is lost; nodes find their places again", why=error.message)
            kept = Kept()
        self.live = Live(self._options, kept.memory)
        self.sources.remember({source.name: source for source in kept.sources})
        self.live.central(self.sources.states)
        for facts in kept.nodes:
            self.live.put(facts)
        self.live.settle(self._clock())  # whoever asks right after the start sees what was known

    async def run(self) -> None:
        """Follow nodes and sources until cancelled."""
        await self._informer.synced.wait()
        for name in [name for name in self.live.nodes() if not self._is_known(name)]:
            self._forget(name)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writer.run(), name="fabrics: writes")
            group.create_task(self.sources.run(), name="fabrics: sources")
            group.create_task(self._settle(), name="fabrics: tree")
            group.create_task(self._keep(), name="fabrics: memory")
            group.create_task(self._clear(), name="fabrics: leftovers")

    # ------------------------------------------------------------------------------------------ hearing

    def on_content(self, node: str, content: Content) -> None:
        """Take a report, or what goes through a node's ports. It is the link's word which node it is."""
        if isinstance(content, TopologyReport):
            self._put(observe(content, self._facts_of(node)))
        elif isinstance(content, TopologyLoad):
            self.live.use(node, uses(content))
            self._wake.set()

    def on_presence(self, node: str, presence: Presence) -> None:
        """Mark a node that is not ready; it keeps its place."""
        facts = self._facts_of(node)
        since = datetime.fromtimestamp(presence.since, UTC)
        ready = presence.connected and presence.ready
        self._put(with_state(facts, ready=ready, since=since, reason=presence.reason))

    def _facts_of(self, node: str) -> NodeFacts:
        """Return what is known of a node; if that is nothing, its object may have labels."""
        known = self.live.facts(node)
        if known is not None and not self.live.is_stranger(node):
            return known
        kept = self._informer.objects.get(Key("Node", "", node))
        return NodeFacts(node, labels=kept.metadata.labels if kept is not None else {})

    def _put(self, facts: NodeFacts) -> None:
        if self.live.facts(facts.name) != facts:
            self.live.put(facts)
            self._facts.add(facts.name)
            self._gone.discard(facts.name)
            self._wake.set()

    def _hear(self, old: Object | None, new: Object | None) -> None:
        match new if new is not None else old:
            case objects.HyperNode() as domain:
                self._objects.pop(domain.metadata.name, None)
                if new is not None:
                    self._objects[domain.metadata.name] = domain
            case Node() as node if new is None:
                self._forget(node.metadata.name)
            case Node() as node:
                facts = self.live.facts(node.metadata.name)
                if facts is not None and dict(facts.labels) != node.metadata.labels:
                    self._put(replace(self._facts_of(node.metadata.name), labels=node.metadata.labels))
            case _:
                return

    def _is_known(self, node: str) -> bool:
        return Key("Node", "", node) in self._informer.objects or self.live.is_stranger(node)

    def _forget(self, node: str) -> None:
        """The node is no part of the cluster any more."""
        self.live.remove(node)
        self._gone.add(node)
        self._facts.discard(node)
        self._wake.set()

    def _hear_sources(self, states: tuple[SourceState, ...]) -> None:
        self.live.central(states)
        self._wake.set()

    # ------------------------------------------------------------------------------------------ the tree

    async def _settle(self) -> None:
        """Bring the tree up to date soon after each change, and have objects follow it."""
        load_at, took = 0.0, 0.0
        known: dict[str, HyperNode] = {}
        loop = asyncio.get_running_loop()
        self._follow(Delta(changed=tuple(self.live.hypernodes())), known)
        self._wake.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(load_at if self._loads else None):
                    await self._wake.wait()
            await asyncio.sleep(min(max(_GATHER, _GATHER_TIMES * took), _GATHER_MOST))
            self._wake.clear()
            began = loop.time()
            delta = self.live.settle(self._clock())
            took = loop.time() - began
            if _moves(delta, known):
                await self._keep_now()  # first: nobody is told of a place that a coordinator killed now would not know
            self._follow(delta, known)
            if self._loads and loop.time() >= load_at:
                load_at = loop.time() + _LOAD_EVERY
                for name in self._loads:
                    self._write(known[name])
                self._loads.clear()

    def _follow(self, delta: Delta, known: dict[str, HyperNode]) -> None:
        """Have objects follow what is different, and tell others; *known* is what the objects have been told."""
        for domain in delta.changed:
            before = known.get(domain.name)
            known[domain.name] = domain
            if before is not None and _same_but_load(before, domain):
                self._loads.add(domain.name)
            else:
                self._loads.discard(domain.name)
                self._write(domain)
        for name in delta.removed:
            known.pop(name, None)
            self._loads.discard(name)
            self._remove(name)
        if delta.changed or delta.removed:
            self._remember = True
            for call in self.changed:
                call()

    def _write(self, domain: HyperNode) -> None:
        members = tuple(each for each in domain.members if is_name(each.name))
        if not members or not is_name(domain.name):
            _log.warning("a domain cannot be written as a HyperNode", domain=domain.name, members=len(domain.members))
            return
        wanted = manifest(replace(domain, members=members))
        self._writer.put(domain.name, lambda: self._bring(wanted))

    async def _bring(self, wanted: objects.HyperNode) -> None:
        """Have the store hold it; what others made under that name stays theirs."""
        name = wanted.metadata.name
        kept = await self._store.find(objects.HyperNode, name)
        if kept is None:
            with contextlib.suppress(AlreadyExists):
                await self._store.create(wanted)
                return
            kept = await self._store.find(objects.HyperNode, name)
        if kept is None or not _is_ours(kept):
            _log.warning("a HyperNode of this name is somebody else's", name=name)
            return
        with contextlib.suppress(NotFound):
            if kept.spec != wanted.spec:
                await self._store.change(objects.HyperNode, name, change=lambda each: replace(each, spec=wanted.spec))
            status = replace(wanted.status, observed_generation=kept.status.observed_generation)
            if kept.status != status:
                change = replace(wanted.status, observed_generation=kept.metadata.generation)
                await self._store.change(
                    objects.HyperNode, name, change=lambda each: replace(each, status=change), status=True
                )

    def _remove(self, name: str) -> None:
        async def remove() -> None:
            kept = await self._store.find(objects.HyperNode, name)
            if kept is not None and _is_ours(kept):
                with contextlib.suppress(NotFound):
                    await self._store.delete(objects.HyperNode, name, uid=kept.metadata.uid)

        self._writer.put(name, remove)

    async def _clear(self) -> None:
        """Some time after a start, remove HyperNodes of ours that are no domains any more."""
        await asyncio.sleep(_LEFTOVERS_AFTER)
        there = {domain.name for domain in self.live.hypernodes()}
        for name, kept in list(self._objects.items()):
            if name not in there and _is_ours(kept):
                _log.info("a HyperNode that nobody knows any more is removed", name=name)
                self._remove(name)

    # ------------------------------------------------------------------------------------------ memory

    async def _keep(self) -> None:
        """Write down what has become different, every few seconds."""
        while True:
            await asyncio.sleep(_KEEP_EVERY)
            await self._keep_now(remember=self._remember)

    async def _keep_now(self, *, remember: bool = True) -> None:
        async with self._keeping:
            names, self._facts = self._facts, set()
            gone, self._gone = self._gone, set()
            self._remember = False
            states = self.sources.states
            fresh = tuple(state for state in states if state not in self._states)
            nodes = [facts for facts in map(self.live.facts, names) if facts is not None]
            try:
                await self._memory.keep(nodes, gone, fresh, self.live.memory() if remember else None)
            except StoreFailed as error:
                _log.warning("what is known of the fabrics cannot be kept", why=error.message)
                self._facts |= names
                self._gone |= gone
                self._remember |= remember
            else:
                self._states = states


def _moves(delta: Delta, known: Mapping[str, HyperNode]) -> bool:
    """Say whether a domain comes or goes, or has other members or switches."""
    return bool(delta.removed) or any(_place(known.get(each.name)) != _place(each) for each in delta.changed)


def _place(domain: HyperNode | None) -> tuple[object, ...]:
    return (domain.members, domain.switches) if domain is not None else ()


def _is_ours(kept: objects.HyperNode) -> bool:
    return kept.metadata.labels.get(SOURCE_LABEL) == "stoker"


def _same_but_load(before: HyperNode, now: HyperNode) -> bool:
    """Say whether nothing has happened but that other amounts go through the links."""
    return replace(
        before, sent_gbps=now.sent_gbps, received_gbps=now.received_gbps, congestion=now.congestion
    ) == replace(now, congested_links=before.congested_links)
