"""Makes all parts of the coordinator, and says which there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct
from prometheus_client import CollectorRegistry

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import AdvancedCronJob, ImageListPullJob, ImagePullJob, NodeImage, PullSecret
from stoker.objects.cluster_nodes import HyperNode, Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.inventory import PodInventory
from stoker.objects.meta import LabelSelector, Object
from stoker_coordinator.api.fabric_routes import FabricRoutes
from stoker_coordinator.api.handlers import ASKED
from stoker_coordinator.api.joining import Joining
from stoker_coordinator.api.metrics import StoreCollector
from stoker_coordinator.api.middleware import PageGate
from stoker_coordinator.api.server import ApiServer
from stoker_coordinator.audit import Audit
from stoker_coordinator.auth import Tokens
from stoker_coordinator.configuration import Settings
from stoker_coordinator.controllers.crons import Crons
from stoker_coordinator.controllers.fabric_memory import FabricMemory
from stoker_coordinator.controllers.fabrics import Fabrics
from stoker_coordinator.controllers.imagejobs import ImageJobs
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.controllers.placing import Placing
from stoker_coordinator.controllers.pods import PodIndex
from stoker_coordinator.controllers.sharing import Sharing
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import SourceState
from stoker_coordinator.nodes.ports import Content, Presence
from stoker_coordinator.nodes.service import Nodes
from stoker_coordinator.sealing import Sealer
from stoker_coordinator.store.base import Limits
from stoker_coordinator.store.collector import collect
from stoker_coordinator.store.sealed import open_sealer
from stoker_coordinator.store.sqlite import SqliteStore
from stoker_coordinator.web.chronicle import Chronicle
from stoker_coordinator.web.live import Changes
from stoker_coordinator.web.pages import COOKIE, PREFIX, PUBLIC, Pages

Run = Callable[[], Awaitable[None]]
_FOLLOWED: tuple[type[Object], ...] = (
    Node,
    NodeImage,
    ImagePullJob,
    ImageListPullJob,
    AdvancedCronJob,
    PullSecret,
    ContainerRecreateRequest,
    Checkpoint,
    Commit,
    Clone,
    HyperNode,
)


class Coordinator(Struct):
    """All parts."""

    store: SqliteStore
    nodes: Nodes
    api: ApiServer
    parts: Mapping[str, Run]
    """What runs until the coordinator stops, in the order of the start; each can run again after it has failed."""


class Surroundings:
    """What is known of nodes beside their objects: their pods, and their places in the fabric."""

    def __init__(self, informer: Informer) -> None:
        self.pods = PodIndex()
        self._leaves: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []
        informer.hear(self._hear)

    def tell(self, listener: Callable[[], None]) -> None:
        """Have *listener* called when something is different."""
        self._listeners.append(listener)

    def leaf_of(self, node: str) -> str:
        """Return the HyperNode of the lowest tier that has the node, empty when none has."""
        return self._leaves.get(node, "")

    def nodes_with_pods(self, namespace: str, selector: LabelSelector) -> frozenset[str]:
        """Return the nodes on which such pods are."""
        return self.pods.nodes_with(namespace, selector)

    def has_told(self, node: str) -> bool:
        """Whether the node has said which pods it has, since the coordinator started."""
        return self.pods.has_told(node)

    def on_content(self, node: str, content: Content) -> None:
        """Take what a node says of its pods."""
        if isinstance(content, PodInventory) and self.pods.update(node, content):
            self._changed()

    def on_presence(self, node: str, presence: Presence) -> None:
        """A node that is away keeps its pods: it will say so when they are gone."""

    def _hear(self, old: Object | None, new: Object | None) -> None:
        if isinstance(old, HyperNode) and old.spec.tier == 1:
            for name in _members(old):
                if self._leaves.get(name) == old.metadata.name:
                    del self._leaves[name]
        if isinstance(new, HyperNode) and new.spec.tier == 1:
            self._leaves.update(dict.fromkeys(_members(new), new.metadata.name))
        if isinstance(old, HyperNode) or isinstance(new, HyperNode):
            self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


def _members(hyper_node: HyperNode) -> list[str]:
    found = [member.selector.exact_match for member in hyper_node.spec.members if member.type == "Node"]
    return [match.name for match in found if match is not None]


async def compose(
    settings: Settings,
    registry: CollectorRegistry,
    stack: AsyncExitStack,
    problems: Callable[[], Mapping[str, str]],
    *,
    version: str,
) -> Coordinator:
    """Make all parts and open what they keep; *stack* closes it. *problems*: what is wrong with parts now."""
    directory = settings.coordinator.state_dir
    store = SqliteStore(
        directory,
        Limits(
            object_bytes=settings.store.max_object,
            history_changes=settings.store.history_changes,
            history_seconds=settings.store.history_age,
        ),
    )
    await store.open()
    stack.push_async_callback(store.close)
    registry.register(StoreCollector(store.counts, lambda: store.revision))
    sealer = await open_sealer(directory / "seal.key", store)
    nodes = Nodes(settings.link, directory / "link", store, registry, version=version)
    await nodes.open()
    stack.push_async_callback(nodes.close)
    informer = Informer(store, _FOLLOWED)
    memory = FabricMemory(directory / "fabric.db")
    fabrics = Fabrics(store, informer, memory, settings.fabric, clock=_now)
    await fabrics.open()
    stack.push_async_callback(memory.close)
    nodes.add_listener(fabrics)
    surroundings = Surroundings(informer)
    tokens = Tokens(directory / "tokens.json")
    pages, changes = _pages(informer, fabrics, surroundings, tokens)
    api = ApiServer(
        settings.api,
        store,
        tokens=tokens,
        sealer=sealer,
        audit=Audit(directory / "audit.log"),
        registry=registry,
        version=version,
        problems=problems,
        routes=(*Joining(nodes).routes(), *FabricRoutes(fabrics).routes(), *pages.routes()),
        gate=PageGate(PREFIX, COOKIE, PUBLIC),
        streams=(changes.streams,),
    )
    parts: dict[str, Run] = {
        "api": api.run,
        "nodes": nodes.run,
        "collector": partial(collect, store),
        **_controllers(store, informer, surroundings, nodes, sealer),
        "fabrics": fabrics.run,
    }
    return Coordinator(store, nodes, api, parts)


def _now() -> datetime:
    return datetime.now(UTC)


class _Topology:
    """`web.pages.Topology`."""

    def __init__(self, fabrics: Fabrics) -> None:
        self._fabrics = fabrics

    @property
    def live(self) -> Live:
        return self._fabrics.live

    @property
    def states(self) -> Sequence[SourceState]:
        return self._fabrics.sources.states


def _pages(informer: Informer, fabrics: Fabrics, surroundings: Surroundings, tokens: Tokens) -> tuple[Pages, Changes]:
    """Make the pages, which hear of everything once all that there was has been heard of."""
    chronicle, changes = Chronicle(_now), Changes()

    def hear(old: Object | None, new: Object | None) -> None:
        chronicle.quiet = not informer.synced.is_set()
        chronicle.hear(old, new)
        changes.hear(old, new)

    informer.hear(hear)
    fabrics.changed.append(lambda: changes.tell("fabrics"))
    pages = Pages(
        informer,
        _Topology(fabrics),
        surroundings.leaf_of,
        chronicle,
        changes,
        authenticate=lambda header: tokens.authenticate(header, _now()),
        who=lambda request: request[ASKED].who,
        clock=_now,
    )
    return pages, changes


def _controllers(
    store: SqliteStore, informer: Informer, surroundings: Surroundings, nodes: Nodes, sealer: Sealer
) -> dict[str, Run]:
    nodes.add_listener(surroundings)
    jobs = ImageJobs(store, informer, surroundings, clock=_now)
    crons = Crons(store, informer, clock=_now)
    placing = Placing(store, informer, surroundings.pods, clock=_now)
    sharing = Sharing(store, informer, nodes.desired_changed, unseal=sealer.opened, clock=_now)
    nodes.set_wishes(sharing)
    nodes.set_results(sharing)
    surroundings.tell(jobs.changed)
    surroundings.tell(placing.changed)
    return {
        "informer": informer.run,
        "image-jobs": jobs.run,
        "cron-jobs": crons.run,
        "requests": placing.run,
        "sharing": sharing.run,
    }
