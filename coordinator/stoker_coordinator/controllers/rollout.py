"""Whose turn it is: one job over many nodes. Pure; the state of a job that lives as long as the coordinator does.

All of it can be made anew from the store: places from Nodes, what was found from NodeImages. Each change costs what it
changes, not what there is: ten thousand nodes are as cheap as ten.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from stoker.objects.cluster_images import NodeTrouble
from stoker_coordinator.controllers.tags import WAITING, Found

State = Literal["waiting", "active", "succeeded", "failed", "silent"]
"""``silent``: the node does not answer; it holds no turn, and gets one when it is back."""


class Place(Struct, frozen=True):
    """A node that the job means. ``leaf`` is the switch that it hangs on, "" where nobody knows."""

    name: str
    leaf: str = ""
    silent: bool = False
    open: bool = True
    """It takes new work; a paused node does not, nor one that has only just fallen silent."""


class Node(Struct):
    """A node within the job."""

    place: Place
    found: Found = WAITING
    state: State = "waiting"


class _Leaf(Struct):
    waiting: dict[str, None]
    """Nodes whose turn may come, in order."""
    active: int = 0


def limit(parallelism: int | str | None, nodes: int) -> int:
    """Return how many of *nodes* may pull at one time: a number, or a share that is rounded up."""
    if parallelism is None:
        return 1
    if isinstance(parallelism, str):
        if parallelism.endswith("%"):
            return math.ceil(float(parallelism[:-1]) * nodes / 100)
        return int(parallelism)
    return parallelism


class Rollout:
    """The nodes of one job. Tell it what happens (`place`, `drop`, `tell`), ask it who is next (`take`)."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._leaves: dict[str, _Leaf] = {}
        self._heap: list[tuple[int, str]] = []
        """(active nodes, leaf) of leaves with nodes that wait; entries that do not hold any more are passed over."""
        self._counts: dict[State, int] = dict.fromkeys(("waiting", "active", "succeeded", "failed", "silent"), 0)
        self._images: dict[str, list[int]] = {}
        """By image: on how many nodes it is there, and on how many it failed."""
        self.bytes_total = self.bytes_done = 0

    # ------------------------------------------------------------------------------------------ being told

    def place(self, place: Place) -> None:
        """The job means this node; it is new, or something about it has changed."""
        node = self._nodes.get(place.name)
        if node is None:
            node = self._nodes[place.name] = Node(place)
            self._counts["waiting"] += 1
            self._put(node)
            self._settle(node)
        elif node.place != place:
            self._take_out(node)
            node.place = place
            self._put(node)
            self._settle(node)

    def drop(self, name: str) -> None:
        """The job does not mean this node any more."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._take_out(node)
            self._count(node.found, -1)
            self._counts[node.state] -= 1

    def tell(self, name: str, found: Found) -> None:
        """So far is the node now."""
        node = self._nodes.get(name)
        if node is None or node.found == found:
            return
        self._take_out(node)
        self._count(node.found, -1)
        node.found = found
        self._count(found, +1)
        self._put(node)
        self._settle(node)

    # ------------------------------------------------------------------------------------------ being asked

    def take(self, most: int) -> list[str]:
        """Return the nodes whose turn it is, so that *most* are active. They are, from now on: the caller has them
        start. Nodes on the switches with the fewest active ones come first, so that uplinks are spread."""
        taken: list[str] = []
        while self._counts["active"] < most and self._heap:
            active, name = heapq.heappop(self._heap)
            leaf = self._leaves.get(name)
            if leaf is None or not leaf.waiting or leaf.active != active:
                continue
            chosen = next(iter(leaf.waiting))
            node = self._nodes[chosen]
            self._take_out(node)
            node.found = Found("active")
            self._put(node)
            self._settle(node)
            taken.append(chosen)
        return taken

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self._nodes

    def count(self, state: State) -> int:
        return self._counts[state]

    @property
    def through(self) -> bool:
        """Nothing is to be waited for any more: nodes that are silent are not."""
        return not self._counts["waiting"] and not self._counts["active"]

    def image(self, image: str) -> tuple[int, int]:
        """Return on how many nodes the image is there, and on how many it failed."""
        succeeded, failed = self._images.get(image, (0, 0))
        return succeeded, failed

    def troubles(self, most: int) -> tuple[NodeTrouble, ...]:
        """Return the first of what went wrong, by node: failures, then nodes that are silent."""
        failures: list[NodeTrouble] = []
        silent: list[NodeTrouble] = []
        if self._counts["failed"] or self._counts["silent"]:
            for name, node in self._nodes.items():
                failures += node.found.failed
                if node.state == "silent":
                    silent.append(NodeTrouble(name, "", "NodeSilent", "the node does not answer"))
        return (*_first(failures, most), *_first(silent, most))[:most]

    def failed_nodes(self, most: int) -> tuple[str, ...]:
        names = (name for name, node in self._nodes.items() if node.state in {"failed", "silent"})
        return tuple(heapq.nsmallest(most, names)) if self._counts["failed"] or self._counts["silent"] else ()

    # ------------------------------------------------------------------------------------------ inside

    def _settle(self, node: Node) -> None:
        state: State = node.found.state
        if node.place.silent and state in {"waiting", "active"}:
            state = "silent"
        self._counts[node.state] -= 1
        self._counts[state] += 1
        node.state = state

    def _put(self, node: Node) -> None:
        """Have the node's leaf know of it."""
        state, place = node.found.state, node.place
        if place.silent or state not in {"waiting", "active"}:
            return
        leaf = self._leaves.setdefault(place.leaf, _Leaf({}))
        if state == "active":
            leaf.active += 1
        elif place.open:
            leaf.waiting[place.name] = None
        self._offer(place.leaf, leaf)

    def _take_out(self, node: Node) -> None:
        place = node.place
        leaf = self._leaves.get(place.leaf)
        if leaf is None or place.silent:
            return
        if node.found.state == "active":
            leaf.active -= 1
        leaf.waiting.pop(place.name, None)
        if not leaf.active and not leaf.waiting:
            del self._leaves[place.leaf]
        else:
            self._offer(place.leaf, leaf)

    def _offer(self, name: str, leaf: _Leaf) -> None:
        if leaf.waiting:
            heapq.heappush(self._heap, (leaf.active, name))
            if len(self._heap) > 8 * len(self._leaves) + 64:
                self._heap = [(each.active, key) for key, each in self._leaves.items() if each.waiting]
                heapq.heapify(self._heap)

    def _count(self, found: Found, sign: int) -> None:
        self.bytes_total += sign * found.bytes_total
        self.bytes_done += sign * found.bytes_done
        for image in found.succeeded:
            self._images.setdefault(image, [0, 0])[0] += sign
        for trouble in found.failed:
            self._images.setdefault(trouble.image, [0, 0])[1] += sign


def _first(troubles: Iterable[NodeTrouble], most: int) -> list[NodeTrouble]:
    return heapq.nsmallest(most, troubles, key=lambda each: (each.node, each.image))
