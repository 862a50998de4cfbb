"""From groups of leaf switches up to a root: which switches stand above which. Pure.

Level by level: the switches that are linked to two or more of the domains so far are put into groups by which domains
they are linked to, in the same way as leaf switches by their nodes (``leaves``). Each group that domains are at home in
is a domain of the next tier. A switch that reaches one domain alone joins nothing; it only carries that domain further
up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from stoker_coordinator.hypernodes.leaves import Leaves

MOST_TIERS = 16
_FEWEST_PEERS = 2
Links = Mapping[str, Mapping[str, tuple[int, float, int]]]
"""Of each switch: those it is linked to, by how many links, what they carry, and how many are down."""


class Upper(NamedTuple):
    """A domain above leaf groups."""

    key: str
    tier: int
    switches: tuple[str, ...]
    children: tuple[str, ...]


class Shape(NamedTuple):
    """All domains of a fabric above its leaf groups."""

    uppers: tuple[Upper, ...]
    perched: Mapping[str, str]
    """Groups of nodes that hang on a switch higher up: the domain that this switch is of, or none."""
    top: tuple[str, ...]
    """Domains with nothing above them."""
    carried: Mapping[str, tuple[str, ...]] = {}
    """Switches that reach one domain alone."""
    delicate: AbstractSet[str] = frozenset()
    """Leaf switches whose number of nodes counts for what is a leaf and what stands above."""


def rise(leaves: Mapping[str, Sequence[str]], weights: Mapping[str, int], links: Links) -> Shape:
    """Return the domains above *leaves* (groups of switches). *weights*: nodes on each leaf switch."""
    base = {switch: weights[switch] for switches in leaves.values() for switch in switches}
    high, delicate = _too_high(base, links)
    climb = _Climb(links)
    perched: dict[str, str] = {}
    for key, switches in leaves.items():
        low = [switch for switch in switches if switch not in high]
        if low:
            climb.enter(key, 1, low)
        else:
            perched[key] = switches[0]
    while len(climb.reach) > 1 and climb.step():
        pass
    above = {switch: upper.key for upper in climb.uppers for switch in upper.switches}
    top = tuple(sorted(climb.reach))
    return Shape(
        tuple(climb.uppers),
        {key: above.get(switch, "") for key, switch in perched.items()},
        top,
        climb.carried,
        delicate,
    )


class _Climb:
    """Domains that have nothing above them yet, and the switches by which each can be reached."""

    def __init__(self, links: Links) -> None:
        self.reach: dict[str, list[str]] = {}
        self.uppers: list[Upper] = []
        self.carried: dict[str, tuple[str, ...]] = {}
        self._tier: dict[str, int] = {}
        self._used: set[str] = set()
        self._links = links

    def enter(self, key: str, tier: int, switches: Collection[str]) -> None:
        self.reach[key], self._tier[key] = list(switches), tier
        self._used.update(switches)

    def step(self) -> bool:
        """Go up by one tier; say whether that led anywhere."""
        below = self._below()
        high, _ = _too_high({switch: len(domains) for switch, domains in below.items()}, self._links)
        moved = False
        # Switches with the same domains beneath are as one here: there may be thousands, of a few kinds.
        kinds: dict[frozenset[str], list[str]] = {}
        for switch, domains in below.items():
            if switch in high:
                continue
            if len(domains) == 1:
                self._carry(next(iter(domains)), [switch])
                moved = True
            else:
                kinds.setdefault(frozenset(domains), []).append(switch)
        alike = {min(switches): switches for switches in kinds.values()}
        members: dict[str, dict[str, int]] = {}
        for first, switches in alike.items():
            for switch in switches:
                for domain, count in below[switch].items():
                    counts = members.setdefault(domain, {})
                    counts[first] = counts.get(first, 0) + count
        joining = Leaves()
        for domain, counts in members.items():
            joining.put(domain, counts)
        joining.settle()
        for gid in sorted(joining.groups):
            group = tuple(sorted(switch for first in joining.groups[gid] for switch in alike[first]))
            moved |= self._raise(group, sorted(joining.homes.get(gid, ())))
        return moved

    def _below(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        used, links = self._used, self._links
        for domain, switches in self.reach.items():
            for switch in switches:
                for other, (count, _, _) in links.get(switch, {}).items():
                    if other not in used:
                        domains = found.setdefault(other, {})
                        domains[domain] = domains.get(domain, 0) + count
        return found

    def _carry(self, domain: str, switches: Sequence[str]) -> None:
        self.reach[domain].extend(switches)
        self.carried[domain] = (*self.carried.get(domain, ()), *switches)
        self._used.update(switches)

    def _raise(self, switches: tuple[str, ...], children: list[str]) -> bool:
        if not children:
            self._used.update(switches)  # it touches what is at home elsewhere
            return True
        if len(children) == 1:
            self._carry(children[0], switches)
            return True
        tier = 1 + max(self._tier[child] for child in children)
        upper = Upper(f"{tier}/{switches[0]}", tier, switches, tuple(children))
        for child in children:
            del self.reach[child]
        self.uppers.append(upper)
        self.enter(upper.key, tier, switches)
        return True


def _too_high(candidates: Mapping[str, int], links: Links) -> tuple[set[str], set[str]]:
    """Return the candidates (with what each holds) that belong further up, and those for which that is a question.

    These are linked to more of the others than they hold, and hold much less than those: a spine that a single host
    hangs on is no leaf. Switches of one kind that are linked to each other, as in a dragonfly, all stay.
    """
    peers: dict[str, set[str]] = {}
    for switch in candidates:
        near = links.get(switch)
        if near:
            found = {other for other in near if other in candidates and other != switch}
            if len(found) >= _FEWEST_PEERS:
                peers[switch] = found
    high: set[str] = set()
    delicate = set(peers).union(*peers.values())
    waiting = set(peers)
    while waiting:
        worst = max(waiting, key=lambda each: (len(peers[each]) - candidates[each], each))
        waiting.discard(worst)
        typical = sorted(candidates[other] for other in peers[worst])
        held = candidates[worst]
        if len(typical) < _FEWEST_PEERS or len(typical) <= held or 2 * held > typical[len(typical) // 2]:
            continue
        high.add(worst)
        for other in peers[worst]:
            if other in peers:
                peers[other].discard(worst)
    return high, delicate


def declared(homes: Collection[str], parents: Mapping[str, str]) -> Shape:
    """Return the tree that a source tells itself, above *homes*. *parents* has no circles."""
    children: dict[str, set[str]] = {}
    top: set[str] = set()
    for domain in homes:
        while parent := parents.get(domain, ""):
            known = children.setdefault(parent, set())
            if domain in known:
                break
            known.add(domain)
            domain = parent
        else:
            top.add(domain)
    heights: dict[str, int] = {}

    def height(domain: str) -> int:
        if domain not in heights:
            heights[domain] = 1 + max((height(child) for child in children.get(domain, ())), default=0)
        return heights[domain]

    uppers = [Upper(each, height(each), (each,), tuple(sorted(below))) for each, below in children.items()]
    return Shape(tuple(sorted(uppers, key=lambda each: (each.tier, each.key))), {}, tuple(sorted(top)))


def without_circles(parents: Mapping[str, str]) -> dict[str, str]:
    """Return *parents* without those by which a domain would be above itself, or deeper than anything is."""
    kept: dict[str, str] = {}
    for domain in sorted(parents):
        above = parents[domain]
        while above != domain and above in kept:
            above = kept[above]
        if above != domain:
            kept[domain] = parents[domain]
    depth: dict[str, int] = {}
    for domain in list(kept):
        way = [domain]
        while way[-1] not in depth and way[-1] in kept:
            way.append(kept[way[-1]])
        base = depth.get(way[-1], 1)
        for each in reversed(way):
            base = depth.setdefault(each, base)
            base += 1
    return {domain: parent for domain, parent in kept.items() if depth[domain] <= MOST_TIERS}
