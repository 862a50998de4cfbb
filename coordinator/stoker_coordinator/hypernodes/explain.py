"""Why a node is where it is: the evidence for each edge between it and a switch. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

from stoker_coordinator.hypernodes.central import layer_of
from stoker_coordinator.hypernodes.levels import Links
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import HyperNode, Port, Wire
from stoker_coordinator.hypernodes.naming import own_part
from stoker_coordinator.hypernodes.tree import FabricTree

_MOST_STEPS = 6


class Edge(Wire, frozen=True):
    """One step of the way from a node to a switch, and who says so."""

    one: str
    other: str
    source: str
    why: str
    links: int = 1


class Explanation(Wire, frozen=True):
    """The answer to ``stoker topology why NODE SWITCH``."""

    node: str
    switch: str
    fabric: str = ""
    edges: tuple[Edge, ...] = ()
    notes: tuple[str, ...] = ()
    found: bool = False


def why(live: Live, node: str, switch: str) -> Explanation:
    """Return how *node* is tied to *switch* (its identity or its name), in the first fabric that both are in."""
    ports = live.ports(node)
    if not ports:
        known = "nothing is known of its ports" if live.facts(node) is not None else "there is no such node"
        return Explanation(node=node, switch=switch, notes=(known,))
    for fabric in dict.fromkeys(port.fabric for port in ports):
        tree = live.trees.get(fabric)
        if tree is None:
            continue
        for found in _switches(live, tree, switch):
            explained = _in_fabric(live, tree, node, found, [port for port in ports if port.fabric == fabric])
            if explained is not None:
                return explained
    return Explanation(node=node, switch=switch, notes=_elsewhere(ports))


def _switches(live: Live, tree: FabricTree, wanted: str) -> list[str]:
    """Return the switches of a fabric that *wanted* may mean."""
    name = wanted.strip().lower()
    links = live.sources.links.get(layer_of(tree.fabric), {})
    known = {*tree.leaves.nodes, *links, *(each for frame in tree.frames.values() for each in frame.switches)}
    if name in known or wanted in known:
        return [name if name in known else wanted]
    return sorted(
        each for each in known if name in {(called := _called(live, tree, each)).lower(), own_part(called).lower()}
    )


def _called(live: Live, tree: FabricTree, switch: str) -> str:
    return live.sources.called.get(switch) or tree.heard(switch)


def _in_fabric(live: Live, tree: FabricTree, node: str, switch: str, ports: list[Port]) -> Explanation | None:
    links: Links = live.sources.links.get(layer_of(tree.fabric), {})
    way = _way(links, {port.switch for port in ports if port.switch}, switch)
    if way is None:
        return None
    edges = [_edge(live, tree, node, port) for port in ports if port.switch == way[0]]
    for one, other in pairwise(way):
        count, gbps, down = links[one][other]
        source = live.sources.who_links(layer_of(tree.fabric), one, other)
        speed = (f", {gbps:g} Gb/s" if gbps else "") + (f", {down} down" if down else "")
        cables = f"{count} link{'s' if count > 1 else ''}"
        names = _called(live, tree, one) or one, _called(live, tree, other) or other
        edges.append(Edge(one=names[0], other=names[1], source=source, why=f"{cables}{speed}", links=count))
    notes = [*_notes(ports, way[0]), *_domains(tree, node, switch)]
    return Explanation(node=node, switch=switch, fabric=tree.fabric, edges=tuple(edges), notes=tuple(notes), found=True)


def _way(links: Links, start: set[str], goal: str) -> list[str] | None:
    """Return the shortest way between switches, by names where several are as short."""
    before: dict[str, str] = dict.fromkeys(sorted(start), "")
    waiting = deque((each, 1) for each in sorted(start))
    while waiting:
        switch, steps = waiting.popleft()
        if switch == goal:
            way = [switch]
            while before[way[-1]]:
                way.append(before[way[-1]])
            return way[::-1]
        if steps < _MOST_STEPS:
            for other in sorted(links.get(switch, ())):
                if other not in before:
                    before[other] = switch
                    waiting.append((other, steps + 1))
    return None


def _edge(live: Live, tree: FabricTree, node: str, port: Port) -> Edge:
    seen = f" since {port.seen:%Y-%m-%d %H:%M:%SZ}" if port.seen is not None else ""
    where = f", its port {port.switch_port}" if port.switch_port else ""
    switch = _called(live, tree, port.switch) or port.switch
    one = f"{node} {port.nic}/{port.number}" if port.nic else node
    return Edge(one=one, other=switch, source=port.source, why=f"{port.why}{where}{seen}")


def _notes(ports: list[Port], switch: str) -> list[str]:
    found = []
    for port in ports:
        if port.switch == switch and port.lost is not None:
            found.append(f"{port.nic}/{port.number}: nobody has said so any more since {port.lost:%Y-%m-%d %H:%M:%SZ}")
        if port.switch == switch and port.disputed:
            found.append(f"{port.nic}/{port.number}: {port.disputed}")
        if port.switch == switch and port.state in {"down", "degraded"}:
            found.append(f"{port.nic}/{port.number} is {port.state}: {', '.join(port.reasons) or 'no reason is told'}")
    return found


def _domains(tree: FabricTree, node: str, switch: str) -> list[str]:
    """Say which domains node and switch are in, and why these."""
    by_node = {m.name: each for each in tree.hypernodes.values() for m in each.members if m.type == "Node"}
    home = by_node.get(node)
    if home is None:
        return ["the node is in no domain of this fabric"]
    notes = [f"the node is in {home.name} by {_share(tree, node)}"]
    if len(home.switches) > 1 and home.tier == 1:
        names = ", ".join(own_part(each.name) or each.id for each in home.switches[:8])
        notes.append(f"{home.name} is {len(home.switches)} switches, since most of their nodes are the same: {names}")
    of_switch = _domain_of(tree.hypernodes, switch)
    if of_switch is None:
        count = len(tree.leaves.nodes.get(switch, ()))
        notes.append(
            f"the switch is of no domain: {count} nodes hang on it, all of them with more links elsewhere"
            if count
            else "the switch is of no domain: it joins none"
        )
    elif of_switch.name != home.name:
        notes.append(f"the switch is of {of_switch.name}, tier {of_switch.tier}")
    return notes


def _share(tree: FabricTree, node: str) -> str:
    links = tree.leaves.links.get(node, {})
    home = tree.leaves.home_of.get(node)
    own = sum(count for switch, count in links.items() if tree.leaves.group_of[switch] == home)
    return f"{own} of its {sum(links.values())} links"


def _domain_of(domains: Mapping[str, HyperNode], switch: str) -> HyperNode | None:
    return next((each for each in domains.values() if any(own.id == switch for own in each.switches)), None)


def _elsewhere(ports: tuple[Port, ...]) -> tuple[str, ...]:
    seen = sorted({own_part(port.switch_name) or port.switch for port in ports if port.switch})
    if not seen:
        return ("nobody says which switches its ports hang on",)
    return (f"no way to that switch is known; its ports hang on {', '.join(seen[:16])}",)
