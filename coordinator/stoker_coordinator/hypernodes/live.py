"""All fabrics of a cluster, live: facts are put in, ``settle`` returns which domains have become different.

``Live`` is an index and no more: no clock, no I/O. The same facts and the same memory give the same domains, whether
they come one by one or all at once. Whoever owns it puts what it hears, settles (after each change, or a few times a
second), publishes the delta and stores ``memory()``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from stoker_coordinator.hypernodes.central import Central, layer_of, short, stranger
from stoker_coordinator.hypernodes.labels import LabelTopology, parents_of, place
from stoker_coordinator.hypernodes.levels import Links
from stoker_coordinator.hypernodes.model import (
    Delta,
    HyperNode,
    Memory,
    NameMemory,
    NodeFacts,
    Port,
    PortUse,
    SourceState,
    Stamp,
)
from stoker_coordinator.hypernodes.naming import slug
from stoker_coordinator.hypernodes.tree import FabricTree


class Options(Struct, frozen=True):
    """What is built."""

    fabrics: tuple[str, ...] | None = None
    """None: of all fabrics that are found."""
    labels: tuple[LabelTopology, ...] = ()
    """Trees that labels of nodes tell."""
    strangers: bool = False
    """Whether hosts that only central sources know are members, too."""


class _Known(Struct):
    """A node in the index: its own facts, and its ports with what central sources add."""

    facts: NodeFacts
    ports: tuple[Port, ...] = ()
    fabrics: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    stranger: bool = False


class Live:
    """The index. It is changed by ``put``, ``remove``, ``use`` and ``central``; ``settle`` makes domains of it."""

    def __init__(self, options: Options | None = None, memory: Memory | None = None) -> None:
        memory = memory or Memory()
        options = options or Options()
        labels = tuple(LabelTopology(slug(each.fabric), each.keys) for each in options.labels)
        self.options = replace(options, labels=labels)
        self.sources = Central()
        self.trees: dict[str, FabricTree] = {}
        self._nodes: dict[str, _Known] = {}
        self._uses: dict[str, dict[tuple[str, int], PortUse]] = {}
        self._names: dict[str, NameMemory] = dict(memory.names)
        self._stamps: dict[str, Stamp] = dict(memory.stamps)
        self._shorts: dict[str, set[str]] = {}
        self._claims: dict[str, int] = {}
        self._owners: dict[str, set[str]] = {}  # of hosts of central sources: the nodes that they are
        self._stale: set[str] = set()
        self._doubtful: set[str] = set()  # hosts that may be strangers, or no longer
        self._label_parents: dict[str, dict[str, str]] = {}

    # ------------------------------------------------------------------------------------------ what is heard

    def put(self, facts: NodeFacts) -> None:
        """Take what is known of a node, in place of what was known before."""
        known = self._nodes.get(facts.name)
        if known is None or known.stranger:
            self._enter(facts.name)
        elif known.facts == facts:
            return
        else:
            self._claim(known.facts, -1)
        self._claim(facts)
        if known is None:
            self._nodes[facts.name] = _Known(facts)
        else:
            known.facts, known.stranger = facts, False
        self._stale.add(facts.name)

    def remove(self, node: str) -> None:
        """Forget a node that is no part of the cluster any more. One that only is not ready is to be put as such."""
        self.use(node, ())
        known = self._nodes.get(node)
        if known is not None and not known.stranger:
            self._claim(known.facts, -1)
            self._leave(node, known)

    def use(self, node: str, uses: Iterable[PortUse]) -> None:
        """Take what goes through a node's ports."""
        fresh = {(each.nic, each.number): each for each in uses}
        if fresh != self._uses.get(node, {}):
            self._uses[node] = fresh
            if not fresh:
                del self._uses[node]
            for fabric in self._nodes[node].fabrics if node in self._nodes else ():
                if fabric in self.trees:
                    self.trees[fabric].touch(node)

    def central(self, sources: Sequence[SourceState]) -> None:
        """Take all central sources as they stand, in the order in which they count."""
        fresh = tuple(sources)
        if [each.reading for each in fresh] == [each.reading for each in self.sources.sources]:
            self.sources.sources = fresh  # how they are doing, and no more
            for fabric, tree in self.trees.items():
                tree.note(self._failed(fabric))
            return
        self._doubtful.update(self.sources.by_host)
        self.sources = Central(fresh)
        self._doubtful.update(self.sources.by_host)
        self._stale.update(self._nodes)
        for fabric, tree in self.trees.items():
            self._relink(fabric, tree)

    # ------------------------------------------------------------------------------------------ what is made of it

    def settle(self, now: datetime) -> Delta:
        """Bring all trees up to date, and return what has become different."""
        self._merge()
        changed: list[HyperNode] = []
        removed: list[str] = []
        for fabric in sorted(self.trees):
            tree = self.trees[fabric]
            delta = tree.settle(now, self.sources.called, self._uses, self._stamps, partial(self._taken, fabric))
            changed += delta.changed
            removed += delta.removed
        return Delta(tuple(changed), tuple(removed))

    def hypernodes(self, fabric: str | None = None) -> list[HyperNode]:
        """Return all domains, or those of a fabric: by fabric, tier and name."""
        trees = [self.trees[each] for each in sorted(self.trees) if fabric in {None, each}]
        found = [each for tree in trees for each in tree.hypernodes.values()]
        return sorted(found, key=lambda each: (each.fabric, each.tier, each.name))

    def facts(self, node: str) -> NodeFacts | None:
        """Return what was put of a node."""
        known = self._nodes.get(node)
        return known.facts if known is not None else None

    def is_stranger(self, node: str) -> bool:
        """Say whether only central sources know a node."""
        known = self._nodes.get(node)
        return known is not None and known.stranger

    def ports(self, node: str) -> tuple[Port, ...]:
        """Return a node's ports, with what central sources add."""
        known = self._nodes.get(node)
        return known.ports if known is not None else ()

    def nodes(self) -> Iterator[str]:
        """Yield all nodes."""
        return iter(sorted(self._nodes))

    def unplaced(self, fabric: str) -> list[str]:
        """Return the nodes with interfaces on a fabric of which nobody knows the switch."""
        tree = self.trees.get(fabric)
        return sorted(tree.facts.keys() - tree.leaves.home_of.keys()) if tree is not None else []

    def memory(self) -> Memory:
        """Return what is to be stored, so that names and times are the same after a restart."""
        names = {name: each for name, each in self._names.items() if each.fabric not in self.trees}
        for tree in self.trees.values():
            names.update(tree.names.memory)
        roots = {tree.names.root for tree in self.trees.values()}
        stamps = {name: stamp for name, stamp in self._stamps.items() if name in names or name in roots}
        return Memory(names, stamps)

    # ------------------------------------------------------------------------------------------ the index

    def _enter(self, node: str) -> None:
        name = short(node.lower())
        self._shorts.setdefault(name, set()).add(node)
        self._stale.update(self._shorts[name])  # a name without its domain is nobody's if two have it

    def _leave(self, node: str, known: _Known) -> None:
        for fabric in known.fabrics:
            if fabric in self.trees:
                self.trees[fabric].drop(node)
        del self._nodes[node]
        self._stale.discard(node)
        self._own(node, known.hosts, ())
        name = short(node.lower())
        if node in self._shorts.get(name, ()):
            self._shorts[name].discard(node)
            self._stale.update(self._shorts[name])
            if not self._shorts[name]:
                del self._shorts[name]

    def _claim(self, facts: NodeFacts, step: int = 1) -> None:
        """Count whose adapters are nodes': what is left of a host of a central source may be a stranger."""
        if not self.options.strangers:
            return
        found = self.sources.by_alias
        for alias in dict.fromkeys(alias for port in facts.ports for alias in port.aliases):
            self._claims[alias] = self._claims.get(alias, 0) + step
            if not self._claims[alias]:
                del self._claims[alias]
            self._doubtful.update(attachment.host.lower() for _, attachment in found.get(alias, ()))

    def _own(self, node: str, before: Iterable[str], hosts: Iterable[str]) -> None:
        for host in before:
            self._owners[host].discard(node)
        for host in hosts:
            self._owners.setdefault(host, set()).add(node)
        self._doubtful.update(before, hosts)

    def _merge(self) -> None:
        for node in sorted(self._stale):
            if node in self._nodes and not self._nodes[node].stranger:
                self._merge_node(self._nodes[node])
        self._stale.clear()
        if self.options.strangers:
            for host in sorted(self._doubtful):
                self._merge_stranger(host)
        self._doubtful.clear()

    def _merge_node(self, known: _Known) -> None:
        facts = known.facts
        alone = len(self._shorts.get(short(facts.name.lower()), ())) == 1
        hosts = tuple(self.sources.hosts_of(facts.name, alone=alone)) if self.sources.by_host else ()
        if hosts != known.hosts:
            self._own(facts.name, known.hosts, hosts)
            known.hosts = hosts
        ports = self.sources.ports_of(facts, alone=alone)
        for topology in self.options.labels:
            placed = place(topology, facts.labels)
            if placed is not None:
                ports = (*ports, placed)
                self._remember_labels(placed)
        self._spread(known, ports)

    def _merge_stranger(self, host: str) -> None:
        known = self._nodes.get(host)
        if known is not None and not known.stranger:
            return
        facts = None if self._owners.get(host) else stranger(self.sources, host, self._claims)
        if facts is None:
            if known is not None:
                self._leave(host, known)
            return
        if known is None:
            known = self._nodes[host] = _Known(facts, stranger=True)
        known.facts = facts
        self._spread(known, facts.ports)

    def _spread(self, known: _Known, ports: tuple[Port, ...]) -> None:
        """Put a node into the trees of its fabrics."""
        by_fabric = _by_fabric(ports)
        if self.options.fabrics is not None:
            by_fabric = {fabric: own for fabric, own in by_fabric.items() if fabric in self.options.fabrics}
        known.ports = ports
        for fabric in known.fabrics - by_fabric.keys():
            self.trees[fabric].drop(known.facts.name)
        for fabric, own in by_fabric.items():
            self._tree(fabric).put(known.facts, own)
        known.fabrics = frozenset(by_fabric)

    def _tree(self, fabric: str) -> FabricTree:
        tree = self.trees.get(fabric)
        if tree is None:
            tree = self.trees[fabric] = FabricTree(fabric, {}, None, self._names)
            self._relink(fabric, tree)
        return tree

    def _relink(self, fabric: str, tree: FabricTree) -> None:
        links: Links = self.sources.links.get(layer_of(fabric), {})
        parents = self.sources.parents.get(fabric)
        if parents is None and fabric in self._label_fabrics:
            parents = self._label_parents.setdefault(fabric, {})
        tree.relink(links, parents)
        tree.note(self._failed(fabric))

    def _failed(self, fabric: str) -> tuple[tuple[str, str], ...]:
        layer = layer_of(fabric)
        return tuple(
            (source.name, source.reason)
            for source in self.sources.sources
            if source.state != "ok" and (source.reading is None or layer_of(source.reading.fabric) == layer)
        )

    @property
    def _label_fabrics(self) -> set[str]:
        return {topology.fabric for topology in self.options.labels}

    def _remember_labels(self, port: Port) -> None:
        self._label_parents.setdefault(port.fabric, {}).update(parents_of(port.switch))

    def _taken(self, fabric: str) -> set[str]:
        """Return the names that are not for domains of *fabric*."""
        found = {tree.names.root for tree in self.trees.values()}
        for other, tree in self.trees.items():
            if other != fabric:
                found.update(tree.names.memory)
        found.update(name for name, each in self._names.items() if each.fabric not in {fabric, *self.trees})
        return found


def _by_fabric(ports: tuple[Port, ...]) -> dict[str, tuple[Port, ...]]:
    """Return ports by their fabrics. Those of one mostly stand beside each other."""
    found: dict[str, tuple[Port, ...]] = {}
    start, count = 0, len(ports)
    while start < count:
        fabric, end = ports[start].fabric, start + 1
        while end < count and ports[end].fabric == fabric:
            end += 1
        found[fabric] = found.get(fabric, ()) + ports[start:end]
        start = end
    return found
