"""Requests find their nodes, are given up when nobody answers for them, and go in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import structlog

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_nodes import Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.meta import Key, Object
from stoker_coordinator.controllers import cloning, requests
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.controllers.pods import PodIndex
from stoker_coordinator.controllers.requests import GRACE, PodRequest, Request
from stoker_coordinator.controllers.returning import Returning
from stoker_coordinator.controllers.writing import Writer
from stoker_coordinator.errors import NotFound
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("controllers")
_LOOK_EVERY, _LONGEST_SLEEP = 1.0, 60.0

KINDS = (Node, ContainerRecreateRequest, Checkpoint, Commit, Clone)
"""What the informer must follow."""


class Placing:
    """`run` belongs to the coordinator's task group. Call `changed` when *pods* is different."""

    def __init__(self, store: Store, informer: Informer, pods: PodIndex, *, clock: Callable[[], datetime]) -> None:
        self._store, self._informer, self._pods, self._clock = store, informer, pods, clock
        self._returning = Returning()
        self._writer = Writer(width=16)
        self._nodes: dict[str, Node] = {}
        self._open: dict[Key, Request] = {}
        self._over: dict[Key, Request] = {}
        """Those that are to go some time."""
        self._homes: dict[Key, tuple[str, int]] = {}
        """Of each Clone its node, and how many clones it has there."""
        self._wake = asyncio.Event()
        informer.hear(self._hear)

    async def run(self) -> None:
        """Place requests until cancelled."""
        await self._informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._writer.run(), name="requests: writes")
            group.create_task(self._steer(), name="requests: steer")

    def changed(self) -> None:
        """Pods came, went or moved."""
        if self._open:
            self._wake.set()

    def _hear(self, old: Object | None, new: Object | None) -> None:
        match new if new is not None else old:
            case Node() as node:
                if new is None:
                    self._nodes.pop(node.metadata.name, None)
                else:
                    self._nodes[node.metadata.name] = node
            case ContainerRecreateRequest() | Checkpoint() | Commit() | Clone() as request:
                self._hear_request(request, gone=new is None)
            case _:
                return
        self._wake.set()

    def _hear_request(self, request: Request, *, gone: bool) -> None:
        key = request.key
        self._open.pop(key, None)
        self._over.pop(key, None)
        if gone or request.deleting:
            self._homes.pop(key, None)
            return
        if isinstance(request, Clone) and request.status.node_name:
            self._homes[key] = (request.status.node_name, request.spec.count)
        if not requests.is_over(request):
            self._open[key] = request
        elif requests.expires_at(request) is not None:
            self._over[key] = request

    async def _steer(self) -> None:
        while True:
            self._wake.clear()
            now = self._clock()
            for request in list(self._open.values()):
                self._look(request, now)
            for request in list(self._over.values()):
                expires = requests.expires_at(request)
                if expires is not None and expires <= now:
                    self._remove(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY if self._waits() else _LONGEST_SLEEP):
                    await self._wake.wait()

    def _waits(self) -> bool:
        """Whether time alone may bring something about soon."""
        return bool(self._over) or any(not self._answers(each.status.node_name) for each in self._open.values())

    def _answers(self, node: str) -> bool:
        known = self._nodes.get(node)
        return known is not None and known.status.connected

    def _look(self, request: Request, now: datetime) -> None:
        if self._writer.pending(request.key):
            return
        name = request.status.node_name
        if not name:
            if isinstance(request, Clone):
                self._place_clone(request, now)
            else:
                self._place(request, now)
            return
        node = self._nodes.get(name)
        silent = None
        if node is None or not node.status.connected:
            silent = (node.status.last_seen if node is not None else None) or request.metadata.creation_timestamp or now
        hopeless = requests.hopeless_at(request, silent, now)
        if hopeless is not None and hopeless <= now and self._returning.over:
            self._end(request, "NodeSilent", f"node {name} does not answer; what it has done is not known", now)

    def _place_clone(self, clone: Clone, now: datetime) -> None:
        """Give clones to a node, once there is something to make them of."""
        named = Key("Checkpoint", clone.metadata.namespace, clone.spec.checkpoint)
        checkpoint = self._informer.objects.get(named)
        load = Counter[str]()
        if clone.spec.selector is not None or not clone.spec.checkpoint:
            for node, count in self._homes.values():
                load[node] += count
        found = cloning.place(
            clone, checkpoint if isinstance(checkpoint, Checkpoint) else None, self._nodes.values(), load
        )
        if found.node:
            self._homes[clone.key] = (found.node, clone.spec.count)
            self._change(clone, lambda kept: cloning.given(kept, found, now))
        elif found.outlook == "never" or (found.outlook == "soon" and self._waited(clone, now)):
            self._end(clone, found.reason, found.message, now)
        elif found.message != clone.status.message:
            self._change(clone, lambda kept: cloning.waiting(kept, found))

    def _place(self, request: PodRequest, now: datetime) -> None:
        """Give the request to the node that has its pod; give it up when there is none for long."""
        having = self._pods.nodes_of(request.metadata.namespace, request.spec.pod_name)
        found = requests.where(request, having, [name for name in having if self._answers(name)])
        if found.node:
            self._change(request, lambda kept: requests.placed(kept, found.node))
        elif self._waited(request, now):
            self._end(request, found.reason, found.message, now)

    def _waited(self, request: Request, now: datetime) -> bool:
        """Whether nodes have had the time to say that they are there, and what they have."""
        return self._returning.over and now - (request.metadata.creation_timestamp or now) >= GRACE

    def _end(self, request: Request, reason: str, message: str, now: datetime) -> None:
        _log.info("a request is given up", request=str(request.key), reason=reason, why=message)
        self._change(request, lambda kept: requests.ended(kept, reason, message, now))

    def _change(self, request: Request, change: Callable[[Any], Any]) -> None:
        key, kind, uid = request.key, type(request), request.metadata.uid

        def same(kept: Any) -> Any:
            return kept if kept.metadata.uid != uid or requests.is_over(kept) else change(kept)

        async def write() -> None:
            try:
                await self._store.change(kind, key.name, key.namespace, change=same, status=True)
            except NotFound:
                return

        self._writer.put(key, write, lambda _: self._wake.set())

    def _remove(self, request: Request) -> None:
        key, kind, uid = request.key, type(request), request.metadata.uid
        self._over.pop(key, None)

        async def remove() -> None:
            try:
                await self._store.delete(kind, key.name, key.namespace, uid=uid)
            except NotFound:
                return

        self._writer.put(key, remove)
