"""A coordinator's link in this process, and nodes that say exactly what a test has them say."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import msgspec
from prometheus_client import CollectorRegistry

from stoker import link_documents as documents
from stoker.objects import link
from stoker.objects.cluster_nodes import Node
from stoker.objects.link import Document, Full, Hello, JoinAnswer, JoinRequest, Result, Welcome, Wish
from stoker_coordinator.nodes.ports import Content, Presence, Share
from stoker_coordinator.nodes.service import Nodes
from stoker_coordinator.nodes.settings import LinkSettings
from stoker_coordinator.store.memory import MemoryStore

M = TypeVar("M")
PATIENCE = 20.0


class Ear:
    """A listener, a sink of results and a source of wishes that remembers everything."""

    def __init__(self) -> None:
        self.contents: list[tuple[str, Content]] = []
        self.presences: list[tuple[str, Presence]] = []
        self.results: list[tuple[str, Result]] = []
        self.wishes: dict[str, Sequence[Wish]] = {}
        self.fails = False
        self._changed = asyncio.Event()

    def on_content(self, node: str, content: Content) -> None:
        self.contents.append((node, content))
        self._changed.set()

    def on_presence(self, node: str, presence: Presence) -> None:
        self.presences.append((node, presence))
        self._changed.set()

    async def on_result(self, node: str, result: Result) -> None:
        if self.fails:
            raise RuntimeError("the store is full")
        self.results.append((node, result))
        self._changed.set()

    async def share(self, node: str) -> Share:
        return Share(self.wishes.get(node, ()))

    async def until(self, what: Any) -> None:
        """Return when *what* () is true."""
        async with asyncio.timeout(PATIENCE):
            while not what():
                self._changed.clear()
                await self._changed.wait()


class Hand:
    """A clock that is moved by hand: who is silent, and for how long, does not depend on how busy the machine is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A running link."""

    def __init__(self, nodes: Nodes, store: MemoryStore, ear: Ear, registry: CollectorRegistry) -> None:
        self.nodes, self.store, self.ear, self.registry = nodes, store, ear, registry

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def beat(self, name: str, node: FakeNode) -> None:
        """Have a node say that it is there, and return when it was heard. The clock must have moved since."""
        await node.say(link.Heartbeat())
        async with asyncio.timeout(PATIENCE):
            while self.nodes.state(name).heard_seconds_ago:  # noqa: ASYNC110 - there is nothing that would tell
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def node(self, name: str = "n1", **hello: Any) -> AsyncIterator[FakeNode]:
        """Have a node greet over the local address."""
        async with grpc.aio.insecure_channel(self.nodes.ports.plain, options=FakeNode.OPTIONS) as channel:
            yield await FakeNode(channel).greet(name, **hello)


class FakeNode:
    """One stream."""

    OPTIONS = (("grpc.use_local_subchannel_pool", 1),)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = channel.stream_stream(link.CONNECT)()
        self.first: link.DownMessage | link.Unknown | None = None
        self._sequence: dict[str, int] = {}

    async def greet(self, name: str, **hello: Any) -> FakeNode:
        defaults = {"boot_id": "boot", "machine_id": "machine", "instance": "run-1", "version": "0.1.0"}
        await self.say(Hello(node=name, **{**defaults, **hello}))
        self.first = await self.hear()
        return self

    @property
    def welcome(self) -> Welcome:
        assert isinstance(self.first, Welcome), self.first
        return self.first

    async def say(self, message: Any) -> None:
        await self.call.write(message if isinstance(message, bytes) else link.encode(message))

    async def say_full(self, document: Document, content: Any, *, digest: str = "", sequence: int = 0) -> bytes:
        """Send a document whole; return its JSON."""
        text = content if isinstance(content, bytes) else documents.canonical(content)
        number = sequence or self._sequence.get(document, 0) + 1
        self._sequence[document] = number
        await self.say(
            Full(
                document=document,
                sequence=number,
                digest=digest or documents.digest_of(text),
                body=documents.pack(text),
            )
        )
        return text

    async def hear(self) -> link.DownMessage | link.Unknown | None:
        """Return the next message, None at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            data = await self.call.read()
        return None if data is grpc.aio.EOF else link.decode_down(cast("bytes", data))

    async def hear_a(self, kind: type[M]) -> M:
        """Return the next message of one kind; pass over others."""
        while True:
            message = await self.hear()
            assert message is not None, f"the stream ended before a {kind.__name__}"
            if isinstance(message, kind):
                return message


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    store: MemoryStore | None = None,
    ear: Ear | None = None,
    tls: bool = False,
    wall: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    returning: float = 0.0,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Run the link of a coordinator."""
    store, ear, registry = store or MemoryStore(), ear or Ear(), CollectorRegistry()
    secure = {"listen": "127.0.0.1:0", "join_listen": "127.0.0.1:0"} if tls else {"listen": "", "join_listen": ""}
    nodes = Nodes(
        LinkSettings(**{**secure, "plain_listen": "127.0.0.1:0", **settings}),
        directory,
        store,
        registry,
        version="test",
        clock=clock,
        wall=wall,
        returning=returning,
    )
    nodes.add_listener(ear)
    nodes.set_results(ear)
    nodes.set_wishes(ear)
    await nodes.open()
    run = asyncio.create_task(nodes.run())
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({run, asyncio.create_task(nodes.listening.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            run.result()
        yield Bench(nodes, store, ear, registry)
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        await nodes.close()


async def join(address: str, authority: bytes, token: str, node: str, csr: bytes) -> JoinAnswer:
    """Ask for a certificate."""
    credentials = grpc.ssl_channel_credentials(authority)
    async with grpc.aio.secure_channel(address, credentials, options=FakeNode.OPTIONS) as channel:
        request = msgspec.msgpack.encode(JoinRequest(token=token, node=node, csr=csr))
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(link.JOIN)
        answer = await ask(request, timeout=PATIENCE)
    return msgspec.msgpack.decode(answer, type=JoinAnswer)


async def object_of(bench: Bench, name: str, wanted: Callable[[Node], Any] = lambda _: True) -> Node:
    """Return the node's object once *wanted* holds of it."""
    async with asyncio.timeout(20):
        while True:
            node = await bench.store.find(Node, name)
            if node is not None and wanted(node):
                return node
            await asyncio.sleep(0.02)
