"""The tree of one fabric, kept up to date branch by branch. Pure.

Nodes are put, then ``settle`` looks at the groups around them, at the switches above only if a group has come, gone, or
changed its switches, and describes the domains anew that this concerns, and those above them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from heapq import heapify, heappop, heappush

from stoker_coordinator.hypernodes.leaves import Leaves
from stoker_coordinator.hypernodes.levels import Links, Shape, Upper, declared, rise
from stoker_coordinator.hypernodes.model import Delta, HyperNode, NameMemory, NodeFacts, Port, PortUse, Stamp
from stoker_coordinator.hypernodes.naming import Names
from stoker_coordinator.hypernodes.status import Frame, Still, Tally, describe, still

ROOT = ""
_NO_USE: Mapping[tuple[str, int], PortUse] = {}


class FabricTree:
    """One fabric. *parents*: its tree, where a source tells it; otherwise it is found from the *links* of switches."""

    def __init__(
        self, fabric: str, links: Links, parents: Mapping[str, str] | None, names: Mapping[str, NameMemory]
    ) -> None:
        self.fabric = fabric
        self.links = links
        self.parents = parents
        self.names = Names(fabric, names)
        self.leaves = Leaves(alone=parents is not None)
        self.hypernodes: dict[str, HyperNode] = {}
        self.facts: dict[str, tuple[NodeFacts, tuple[Port, ...]]] = {}
        self.frames: dict[str, Frame] = {}
        """By key: of a leaf group, of an upper domain, or of the root."""
        self._shape = Shape((), {}, ())
        self._children: dict[str, tuple[str, ...]] = {}
        self._above: dict[str, str] = {}
        self._delicate: set[str] = set()
        self._perching: dict[str, list[str]] = {}
        self._still: dict[str, Still] = {}
        self._upward: dict[str, tuple[tuple[str, ...], set[str], tuple[int, float, int]]] = {}
        self._stale: set[str] = set()
        self._reshape = True
        self._all = True
        self._failed: tuple[tuple[str, str], ...] = ()
        self._noted = False

    def put(self, facts: NodeFacts, ports: tuple[Port, ...]) -> None:
        """Take a node with its ports in this fabric; without any, it is no part of it."""
        if not ports:
            self.drop(facts.name)
            return
        self.facts[facts.name] = (facts, ports)
        switches = [port.switch for port in ports if port.switch]
        counts = dict.fromkeys(switches, 1)
        if len(counts) < len(switches):
            counts = {switch: switches.count(switch) for switch in counts}
        self.leaves.put(facts.name, counts)
        self._stale.add(facts.name)

    def drop(self, node: str) -> None:
        """Forget a node."""
        if self.facts.pop(node, None) is not None:
            self.leaves.put(node, {})

    def touch(self, node: str) -> None:
        """Say that something of a node has changed that is no matter of structure."""
        if node in self.facts:
            self._stale.add(node)

    def relink(self, links: Links, parents: Mapping[str, str] | None) -> None:
        """Take other links between switches."""
        self.links, self.parents = links, parents
        self._reshape = self._all = True
        self._still.clear()
        self._upward.clear()

    def note(self, failed: tuple[tuple[str, str], ...]) -> None:
        """Take which central sources do not answer, and why."""
        self._noted |= failed != self._failed
        self._failed = failed

    def settle(
        self,
        now: datetime,
        called: Mapping[str, str],
        uses: Mapping[str, Mapping[tuple[str, int], PortUse]],
        stamps: dict[str, Stamp],
        taken: Callable[[], Iterable[str]],
    ) -> Delta:
        """Bring the tree up to date; return what has become different. *stamps* are changed."""
        settled = self.leaves.settle()
        homes = {self.leaves.home_of[node] for node in self._stale if node in self.leaves.home_of}
        self._stale.clear()
        dirty = homes | settled.groups
        if self._reshape or settled.shape or self._delicate & settled.groups:
            dirty |= self._frame(called, taken, now)
        if self._all:
            dirty |= self.frames.keys()
        elif self._noted:
            dirty |= {key for key, frame in self.frames.items() if frame.root}
        self._reshape = self._all = self._noted = False
        if not dirty:
            return Delta()
        return self._describe(dirty, now, called, uses, stamps)

    # ------------------------------------------------------------------------------------------ structure

    def _frame(self, called: Mapping[str, str], taken: Callable[[], Iterable[str]], now: datetime) -> set[str]:
        """Find all domains anew; return the keys of those that are not as they were."""
        leaves = {gid: self.leaves.groups[gid] for gid in self.leaves.homes}
        if self.parents is not None:
            shape = declared(leaves, self.parents)
        else:
            weights = {switch: len(self.leaves.homes[gid]) for gid, switches in leaves.items() for switch in switches}
            shape = rise(leaves, weights, self.links)
            self._delicate = {self.leaves.group_of[switch] for switch in shape.delicate}
        self._shape = shape
        perching = self._perching
        domains, root = self._domains(leaves, shape)
        moved = {key for key in perching.keys() | self._perching.keys() if perching.get(key) != self._perching.get(key)}
        if not leaves:
            old, self.frames = self.frames, {}
            self._children, self._above = {}, {}
            self.names.assign({}, called.__getitem__, (), now)
            return set(old)
        named = {key: upper.switches for key, upper in domains.items() if key != root}
        self.names.assign(named, lambda switch: called.get(switch) or self.heard(switch), taken(), now)
        return self._reframe(domains, root, shape) | moved

    def heard(self, switch: str) -> str:
        """Return what a node says that a switch is called."""
        node = min(self.leaves.nodes.get(switch, ()), default="")
        ports = self.facts[node][1] if node else ()
        return next((port.switch_name for port in ports if port.switch == switch), "")

    def _domains(self, leaves: Mapping[str, tuple[str, ...]], shape: Shape) -> tuple[dict[str, Upper], str]:
        """Return all domains by key, and the key of the root."""
        domains = {gid: Upper(gid, 1, switches, ()) for gid, switches in leaves.items() if gid not in shape.perched}
        domains.update((upper.key, upper) for upper in shape.uppers)
        self._perching = {}
        alone = len(shape.top) == 1 and domains[shape.top[0]].tier > 1
        root = shape.top[0] if alone else ROOT
        if not alone and leaves:
            tier = 1 + max((domains[key].tier for key in shape.top), default=1)
            domains[ROOT] = Upper(ROOT, tier, (), shape.top)
        for gid, key in shape.perched.items():
            self._perching.setdefault(key or root, []).append(gid)
        return domains, root

    def _reframe(self, domains: Mapping[str, Upper], root: str, shape: Shape) -> set[str]:
        names = {**self.names.of, root: self.names.root}
        self._above = {child: upper.key for upper in domains.values() for child in upper.children}
        self._children = {key: tuple(sorted(upper.children, key=names.__getitem__)) for key, upper in domains.items()}
        beneath: dict[str, set[str]] = {}
        frames: dict[str, Frame] = {}
        for upper in sorted(domains.values(), key=lambda each: each.tier):
            below = set(shape.carried.get(upper.key, ())).union(*(beneath[child] for child in upper.children))
            count, gbps, lost = self._uplinks(upper.key, upper.switches, below)
            beneath[upper.key] = below.union(upper.switches)
            frames[upper.key] = Frame(
                name=names[upper.key],
                fabric=self.fabric,
                tier=upper.tier,
                parent=names[self._above[upper.key]] if upper.key in self._above else "",
                children=tuple(names[child] for child in self._children[upper.key]),
                switches=upper.switches,
                uplinks=count,
                uplink_gbps=gbps,
                uplinks_down=lost,
                root=upper.key == root,
                parts=len(upper.children) if upper.key == ROOT else 1,
            )
        self._upward = {key: each for key, each in self._upward.items() if key in frames}
        old, self.frames = self.frames, frames
        changed = {key for key in old.keys() | frames.keys() if old.get(key) != frames.get(key)}
        for key in changed:
            self._still.pop(key, None)
        return changed

    def _uplinks(self, key: str, switches: tuple[str, ...], below: set[str]) -> tuple[int, float, int]:
        """Return how many links lead up, what they carry, and how many are down."""
        known = self._upward.get(key)
        if known is not None and known[0] == switches and known[1] == below:
            return known[2]
        count, total, lost = 0, 0.0, 0
        own = set(switches)
        for switch in switches:
            for other, (links, gbps, down) in self.links.get(switch, {}).items():
                if other not in own and other not in below:
                    count += links
                    total += gbps
                    lost += down
        found = (count, round(total, 3), lost)
        self._upward[key] = (switches, below, found)
        return found

    # ------------------------------------------------------------------------------------------ how they are doing

    def _describe(
        self,
        dirty: Iterable[str],
        now: datetime,
        called: Mapping[str, str],
        uses: Mapping[str, Mapping[tuple[str, int], PortUse]],
        stamps: dict[str, Stamp],
    ) -> Delta:
        """Describe domains anew, and those above them as far up as that makes a difference."""
        perched = {gid: key for key, gids in self._perching.items() for gid in gids}
        waiting = [key for key in {perched.get(key, key) for key in dirty} if key in self.frames]
        heap = [(self.frames[key].tier, self.frames[key].name, key) for key in waiting]
        heapify(heap)
        changed = []
        while heap:
            key = heappop(heap)[2]
            while heap and heap[0][2] == key:
                heappop(heap)
            found = self._look_at(key, now, called, uses, stamps)
            if found is not None:
                changed.append(found)
                above = self._above.get(key)
                if above is not None:
                    heappush(heap, (self.frames[above].tier, self.frames[above].name, above))
        return Delta(tuple(changed), self._sweep(stamps))

    def _look_at(
        self,
        key: str,
        now: datetime,
        called: Mapping[str, str],
        uses: Mapping[str, Mapping[tuple[str, int], PortUse]],
        stamps: dict[str, Stamp],
    ) -> HyperNode | None:
        """Describe one domain; return it if it is not as it was."""
        frame = self.frames[key]
        tally = Tally()
        for node in sorted(self._nodes_at(key)):
            facts, ports = self.facts[node]
            tally.node(facts, ports, uses.get(node, _NO_USE))
        below = [self.hypernodes[name] for name in frame.children]
        for each in below:
            tally.domain(each)
        stays = self._still.get(key)
        if stays is None:
            stays = self._still[key] = still(frame, called)
        failed = self._failed if frame.root else ()
        found, stamps[frame.name] = describe(frame, stays, tally, below, failed, stamps.get(frame.name), now)
        if self.hypernodes.get(frame.name) == found:
            return None
        self.hypernodes[frame.name] = found
        return found

    def _nodes_at(self, key: str) -> Iterable[str]:
        nodes = self.leaves.homes.get(key, set())
        for gid in self._perching.get(key, ()):
            nodes = nodes | self.leaves.homes[gid]
        return nodes

    def _sweep(self, stamps: dict[str, Stamp]) -> tuple[str, ...]:
        if len(self.hypernodes) == len(self.frames):
            return ()
        there = {frame.name for frame in self.frames.values()}
        gone = tuple(sorted(self.hypernodes.keys() - there))
        for name in gone:
            del self.hypernodes[name]
            stamps.pop(name, None)
        return gone
