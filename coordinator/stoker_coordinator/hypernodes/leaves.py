"""Which switches are one domain, and which nodes are at home in it. Pure, and incremental.

Two switches are alike if more than three fifths of the nodes on either are on both (three of five are enough): the
rails of a rack are, also with some links missing; a border or storage switch that touches every rack is not, or is like
a much larger one at most.
Alike switches form a group. A node is at home in the group that it has most links to; if two have as many, in the one
that reaches fewer nodes, or has more switches: one that missing links and stray cables have set apart is no domain.

``put`` says what a node hangs on, ``settle`` brings groups and homes up to date. Only groups around what was put are
looked at, and the result is the same as if all had been put at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_FEW = 2
_ENOUGH = (3, 5)
_NOTHING: Mapping[str, int] = {}


class Settled(NamedTuple):
    """What ``settle`` changed. A group is known by the first of its switches."""

    groups: set[str]
    """Whose switches or homes are different, or that are no more."""
    shape: bool
    """Whether any group that is somebody's home has come, gone, or has other switches."""


class Leaves:
    """Nodes on switches. With *alone*, no two switches are one domain: somebody has said what the domains are."""

    def __init__(self, *, alone: bool = False) -> None:
        self.links: dict[str, Mapping[str, int]] = {}
        """Of each node: its switches, and how many links go there."""
        self.nodes: dict[str, set[str]] = {}
        """Of each switch: the nodes that hang on it."""
        self.groups: dict[str, tuple[str, ...]] = {}
        self.group_of: dict[str, str] = {}
        self.homes: dict[str, set[str]] = {}
        """Of each group: the nodes that are at home in it. Groups that are nobody's home are not here."""
        self.home_of: dict[str, str] = {}
        self._alone = alone
        self._girth: dict[str, int] = {}
        self._moved: set[str] = set()
        self._touched: dict[str, int] = {}  # switches with other nodes than before, and how many these were

    def put(self, node: str, links: Mapping[str, int]) -> None:
        """Say which switches a node hangs on, by how many links; on none, it is forgotten."""
        before = self.links.get(node, _NOTHING)
        if before == links:
            return
        self._moved.add(node)
        if before.keys() != links.keys():
            nodes_of, touched = self.nodes, self._touched
            for switch in before:
                touched.setdefault(switch, len(nodes_of[switch]))
                nodes_of[switch].discard(node)
            for switch in links:
                nodes = nodes_of.get(switch)
                if nodes is None:
                    nodes_of[switch] = {node}
                    touched.setdefault(switch, 0)
                else:
                    touched.setdefault(switch, len(nodes))
                    nodes.add(node)
        if links:
            self.links[node] = links
        else:
            del self.links[node]

    def settle(self) -> Settled:
        """Bring groups and homes up to date."""
        stirred, before, regrouped = self._regroup()
        shape = any(gid in self.homes for gid in stirred)
        changed = {gid for gid in before if gid not in self.groups} | stirred
        for node in self._moved | self._nodes_of(regrouped):
            shape |= self._go_home(node, changed)
        for gid in [gid for gid, homes in self.homes.items() if not homes] if shape or changed else ():
            del self.homes[gid]
        shape |= any(gid in self.homes for gid in stirred)
        self._forget()
        return Settled(changed, shape)

    def _nodes_of(self, switches: Iterable[str]) -> set[str]:
        return {node for switch in switches for node in self.nodes.get(switch, ())}

    def _regroup(self) -> tuple[set[str], set[str], set[str]]:
        """Return the groups with other switches, all groups looked at, and the switches whose nodes may move."""
        start = set(self._touched)
        for switch, before in self._touched.items():
            # What a switch of two nodes is like depends on the others that these have.
            if 1 <= before <= _FEW or len(self.nodes[switch]) <= _FEW:
                start.update(self._beside(switch))
        for switch in list(start):
            if switch in self.group_of:
                start.update(self.groups[self.group_of[switch]])
        found = self._components(start)
        reached = start.union(*found)
        old = {self.group_of[switch] for switch in reached if switch in self.group_of}
        old_groups = {gid: (self.groups.pop(gid), self._girth.pop(gid)) for gid in old}
        for switch in reached:
            self.group_of.pop(switch, None)
        stirred: set[str] = set()
        regrouped: set[str] = set()
        for switches in found:
            gid = switches[0]
            girth = max(len(self.nodes[switch]) for switch in switches).bit_length()
            self.groups[gid], self._girth[gid] = switches, girth
            self.group_of.update(dict.fromkeys(switches, gid))
            if old_groups.get(gid, ((), 0))[0] != switches:
                stirred.add(gid)
            if old_groups.get(gid) != (switches, girth):
                regrouped.update(switches)
        for gid, (switches, _) in old_groups.items():
            if self.groups.get(gid) != switches:
                stirred.add(gid)
                regrouped.update(switches)
        return stirred, old, regrouped

    def _components(self, start: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the groups of all switches that are reached from *start*, each sorted."""
        seen: set[str] = set()
        found = []
        for first in start:
            if first in seen or not self.nodes.get(first):
                continue
            group, waiting = [], [first]
            seen.add(first)
            done: list[set[str]] = []
            while waiting:
                switch = waiting.pop()
                group.append(switch)
                nodes = self.nodes[switch]
                if self._alone or nodes in done:
                    continue  # what is like a switch with the same nodes is found already
                done.append(nodes)
                near = self._like(switch, seen)
                seen.update(near)
                waiting.extend(near)
            found.append(tuple(sorted(group)))
        return found

    def _like(self, switch: str, seen: set[str]) -> list[str]:
        """Return the switches that are like one, but those *seen*."""
        nodes = self.nodes[switch]
        size = len(nodes)
        shared: dict[str, int] = {}
        for node in nodes:
            for other in self.links[node]:
                if other not in seen:
                    shared[other] = shared.get(other, 0) + 1
        found = []
        for other, count in shared.items():
            others = len(self.nodes[other])
            union = size + others - count
            if (
                5 * count > 3 * union
                or (count, union) == _ENOUGH
                or (size + others == _FEW + 1 and self._lacks_a_link(switch, other))
            ):
                found.append(other)
        return found

    def _lacks_a_link(self, one: str, other: str) -> bool:
        """Say of a switch of one node and one of two, whether a link is missing.

        It is not if the second node has a switch of its own as well: then the wider one is above both.
        """
        wide = max(one, other, key=lambda switch: len(self.nodes[switch]))
        alone = {node for each in self._beside(wide) if len(self.nodes[each]) == 1 for node in self.nodes[each]}
        return len(alone) == 1

    def _beside(self, switch: str) -> set[str]:
        """Return the other switches that the nodes of one hang on."""
        return {other for node in self.nodes[switch] for other in self.links[node] if other != switch}

    def _go_home(self, node: str, changed: set[str]) -> bool:
        """Find a node's home; say whether a group has become, or is no longer, somebody's home."""
        before = self.home_of.get(node)
        links = self.links.get(node)
        if not links:
            home = None
        elif len(links) == 1:
            home = self.group_of[next(iter(links))]
        else:
            home = self._nearest(links)
        if home == before:
            return False
        fresh = emptied = False
        if before is not None:
            homes = self.homes[before]
            homes.discard(node)
            emptied = not homes
            changed.add(before)
        if home is None:
            del self.home_of[node]
        else:
            self.home_of[node] = home
            homes = self.homes.setdefault(home, set())
            fresh = not homes
            homes.add(node)
            changed.add(home)
        return fresh or emptied

    def _nearest(self, links: Mapping[str, int]) -> str:
        groups = {self.group_of[switch] for switch in links}
        if len(groups) == 1:
            return groups.pop()
        counts: dict[str, int] = {}
        for switch, count in links.items():
            gid = self.group_of[switch]
            counts[gid] = counts.get(gid, 0) + count
        return min(counts, key=lambda gid: (-counts[gid], self._girth[gid], -len(self.groups[gid]), gid))

    def _forget(self) -> None:
        for switch in self._touched:
            if not self.nodes[switch]:
                del self.nodes[switch]
        self._touched.clear()
        self._moved.clear()
