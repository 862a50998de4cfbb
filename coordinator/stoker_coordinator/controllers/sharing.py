"""Each node's share of the work, and what nodes say came of it: between objects and the link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import structlog

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import NodeImage, PullSecret, SecretAuth
from stoker.objects.cluster_nodes import Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.images import InlineAuth
from stoker.objects.link import FINAL, Result, Wish
from stoker.objects.meta import Key, Object
from stoker_coordinator.controllers import requests, tags, wishes
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.controllers.requests import Request
from stoker_coordinator.controllers.writing import Writer
from stoker_coordinator.errors import NotFound
from stoker_coordinator.nodes.ports import Share
from stoker_coordinator.sealing import SealBroken
from stoker_coordinator.store.protocol import Store

_log = structlog.get_logger("controllers")

KINDS = (Node, NodeImage, PullSecret, ContainerRecreateRequest, Checkpoint, Commit, Clone)
"""What the informer must follow."""

Tell = Callable[[Sequence[str]], None]
Unseal = Callable[[Any], Any]
"""Opens the secrets of an object's spec."""


class Sharing:
    """`nodes.ports.WishSource` and `ResultSink`. *tell* is called with nodes whose share is another one now."""

    def __init__(
        self, store: Store, informer: Informer, tell: Tell, *, unseal: Unseal, clock: Callable[[], datetime]
    ) -> None:
        self._store, self._tell, self._unseal, self._clock = store, tell, unseal, clock
        self._synced = informer.synced
        self._writer = Writer(width=16)
        self._nodes: dict[str, Node] = {}
        self._images: dict[str, NodeImage] = {}
        self._secrets: dict[tuple[str, str], PullSecret] = {}
        self._requests: dict[str, dict[str, Request]] = {}
        """Of each node those that it is to be told of, by uid."""
        informer.hear(self._hear)

    async def run(self) -> None:
        """Write progress until cancelled. Final results are written when they come."""
        await self._writer.run()

    # ------------------------------------------------------------------------------------------ wishes

    async def share(self, node: str) -> Share:
        """Return all that the node should do, once that is known: what is left out is broken off and removed."""
        await self._synced.wait()
        found: list[Wish] = []
        image = self._images.get(node)
        if image is not None:
            found += wishes.image_wishes(image, self._credentials(image))
        for request in self._requests.get(node, {}).values():
            try:
                open_ = request if requests.is_over(request) else self._unseal(request)
                found.append(requests.wish(open_, self._auths(request)))
            except SealBroken as error:  # one that cannot be opened keeps the node from nothing else, nor goes there
                kept = requests.kept(request)
                found += [kept] if kept is not None else []
                _log.error("a request cannot be opened", request=str(request.key), why=error.message, hint=error.hint)
        known = self._nodes.get(node)
        return Share(found, paused=known is not None and known.spec.paused)

    def _credentials(self, image: NodeImage) -> wishes.Credentials:
        names = {(each.namespace, each.name) for entry in image.spec.images.values() for each in entry.pull_secrets}
        return {name: self._opened(name) for name in names}

    def _auths(self, request: Request) -> list[InlineAuth]:
        names = [(request.metadata.namespace, each) for each in requests.secrets_of(request)]
        return wishes.inline_auths(auth for name in names for auth in self._opened(name))

    def _opened(self, name: tuple[str, str]) -> tuple[SecretAuth, ...]:
        """Return what a PullSecret holds; nothing when it is not there, or cannot be opened."""
        secret = self._secrets.get(name)
        if secret is None:
            return ()
        try:
            auths: tuple[SecretAuth, ...] = self._unseal(secret).spec.auths
        except SealBroken as error:
            _log.error("a pull secret cannot be opened", secret=str(secret.key), why=error.message, hint=error.hint)
            return ()
        return auths

    def _hear(self, old: Object | None, new: Object | None) -> None:
        match new if new is not None else old:
            case NodeImage() as image:
                self._keep(self._images, image.metadata.name, image if new is not None else None)
                if not isinstance(old, NodeImage) or new is None or old.spec != image.spec:
                    self._tell([image.metadata.name])
            case Node() as node:
                self._keep(self._nodes, node.metadata.name, node if new is not None else None)
                if isinstance(old, Node) and old.spec != node.spec:
                    self._tell([node.metadata.name])
            case PullSecret() as secret:
                name = (secret.metadata.namespace, secret.metadata.name)
                self._keep(self._secrets, name, secret if new is not None else None)
                self._tell(self._users(name))
            case ContainerRecreateRequest() | Checkpoint() | Commit() | Clone() as request:
                self._hear_request(request, gone=new is None)
            case _:
                return

    @staticmethod
    def _keep(where: dict[Any, Any], key: Any, value: Object | None) -> None:
        if value is None:
            where.pop(key, None)
        else:
            where[key] = value

    def _users(self, secret: tuple[str, str]) -> list[str]:
        """Return the nodes that pull with this secret."""
        return [
            name
            for name, image in self._images.items()
            if any(
                secret == (each.namespace, each.name)
                for entry in image.spec.images.values()
                for each in entry.pull_secrets
            )
        ]

    def _hear_request(self, request: Request, *, gone: bool) -> None:
        node, uid = request.status.node_name, request.metadata.uid
        if not node:
            return
        known = self._requests.setdefault(node, {})
        before = known.pop(uid, None)
        if not gone and requests.is_wished(request):
            known[uid] = request
            same = before is not None and before.metadata.generation == request.metadata.generation
            if not same or (before is not None and requests.is_over(before) != requests.is_over(request)):
                self._tell([node])
        elif before is not None:
            self._tell([node])
        if not known:
            del self._requests[node]

    # ------------------------------------------------------------------------------------------ results

    async def on_result(self, node: str, result: Result) -> None:
        """Keep a result. A final one is kept when this returns; progress is written soon, the newest of it."""
        await self._synced.wait()
        write = self._of_image(node, result) if result.kind == "warm" else self._of_request(node, result)
        if write is None:
            return
        if result.phase in FINAL:
            await write()
        else:
            self._writer.put((node, result.uid), write)

    def _of_image(self, node: str, result: Result) -> Callable[[], Any] | None:
        named = wishes.image_of(result.uid)
        image = self._images.get(node)
        if named is None or image is None or image.metadata.uid != named[0]:
            return None
        repository, tag = tags.split(named[1])

        async def write() -> None:
            try:
                await self._store.change(
                    NodeImage,
                    node,
                    change=lambda kept: wishes.with_result(kept, repository, tag, result, self._clock()),
                    status=True,
                )
            except NotFound:
                return

        return write

    def _of_request(self, node: str, result: Result) -> Callable[[], Any] | None:
        """A node speaks for requests that it was given alone."""
        request = self._requests.get(node, {}).get(result.uid)
        if request is None:
            return None
        key: Key = request.key
        kind: Any = type(request)

        def change(kept: Any) -> Any:
            return requests.with_result(kept, result, self._clock()) if kept.metadata.uid == result.uid else kept

        async def write() -> None:
            try:
                await self._store.change(kind, key.name, key.namespace, change=change, status=True)
            except NotFound:
                return

        return write
