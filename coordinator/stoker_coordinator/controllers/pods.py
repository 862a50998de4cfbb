"""Which pods are on which nodes, from what nodes say. Pure; each node's word costs what it says."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.objects.inventory import PodInventory
from stoker.objects.meta import LabelSelector
from stoker_coordinator.objects.selectors import of_labels

PodKey = tuple[str, str]
"""Namespace and name."""


class PodIndex:
    """Knows the pods of all nodes that have said so."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[PodKey, Mapping[str, str]]] = {}
        self._nodes: dict[PodKey, set[str]] = {}
        self._told: set[str] = set()

    def update(self, node: str, inventory: PodInventory | None) -> bool:
        """The node has these pods now; None: it is no more. Return whether pods came, went or changed their labels, or
        the node has told of them for the first time.

        Pods that are not ready are none: they are on their way out, or leftovers of an earlier try.
        """
        pods = inventory.pods if inventory is not None else []
        fresh: dict[PodKey, Mapping[str, str]] = {
            (pod.namespace, pod.name): pod.labels for pod in pods if pod.phase == "Ready"
        }
        old = self._by_node.get(node, {})
        known = node in self._told
        if inventory is None:
            self._told.discard(node)
        else:
            self._told.add(node)
        if fresh == old:
            return not known
        for key in old.keys() - fresh.keys():
            nodes = self._nodes[key]
            nodes.discard(node)
            if not nodes:
                del self._nodes[key]
        for key in fresh.keys() - old.keys():
            self._nodes.setdefault(key, set()).add(node)
        if fresh:
            self._by_node[node] = fresh
        else:
            self._by_node.pop(node, None)
        return True

    def has_told(self, node: str) -> bool:
        """Whether the node has said which pods it has, since the coordinator started."""
        return node in self._told

    def nodes_of(self, namespace: str, name: str) -> frozenset[str]:
        """Return the nodes that have a pod of this name: one, unless it has just moved."""
        return frozenset(self._nodes.get((namespace, name), ()))

    def nodes_with(self, namespace: str, selector: LabelSelector) -> frozenset[str]:
        """Return the nodes with pods of this namespace that the selector means."""
        meant = of_labels(selector)
        return frozenset(
            node
            for node, pods in self._by_node.items()
            if any(space == namespace and meant.matches(labels) for (space, _), labels in pods.items())
        )
