"""Puts the daemon together: which part is made of which. Starts nothing.

A new room: build it in a function of its own, put it into `rooms` in `compose` and, where it has settings that may
change, its ``apply`` into ``reloader.add``. `main` loads and runs what is in `rooms`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry

from stoker.objects.containers import PodInfo
from stoker.objects.images import ImageStatus, InlineAuth, WarmRequest
from stoker.service.supervise import Supervisor
from stokerd import VERSION, log
from stokerd.api.server import ApiServer
from stokerd.checkpoints.room import CheckpointRoom
from stokerd.checkpoints.room import Parts as CheckpointParts
from stokerd.checkpoints.targets import Target
from stokerd.containers.clock import SystemClock as ContainerClock
from stokerd.containers.metrics import ContainerMetrics
from stokerd.containers.service import ContainersService
from stokerd.containers.service import Parts as ContainerParts
from stokerd.errors import JournalError, NotFound, StokerError
from stokerd.images.budget import DiskBudget
from stokerd.images.clock import SystemClock
from stokerd.images.manifests import local_platform
from stokerd.images.metrics import ImageMetrics
from stokerd.images.planning import Planner
from stokerd.images.policies import margins_of, timing_of
from stokerd.images.presence import Presence
from stokerd.images.pressure import PressureGauge, file_system
from stokerd.images.pull import Puller
from stokerd.images.service import ImageService, Parts
from stokerd.images.space import FileSystem
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.journal.containers import ContainerJournal
from stokerd.journal.database import Database
from stokerd.journal.images import ImageJournal
from stokerd.life.reload import Reloader, plain
from stokerd.metrics import RuntimeMetrics, watch_process
from stokerd.node.service import Control, NodeParts, NodeService
from stokerd.registry.client import RegistryClient
from stokerd.registry.hosts import RegistryEndpoint, load_endpoints
from stokerd.registry.keyring import Keyring
from stokerd.runtime.containerd import Containerd
from stokerd.settings import CheckpointSettings, ContainerSettings, ImageSettings, Settings
from stokerd.topology.metrics import TopologyMetrics
from stokerd.topology.room import TopologyRoom
from stokerd.uplink.room import Parts as UplinkParts
from stokerd.uplink.room import UplinkRoom
from stokerd.uplink.standing import UplinkMetrics

_SECRET_BYTES = 16
_WARM_PRIORITY = 100
"""Of images that a container waits for, before those that are warmed for later."""
_CANCEL_TIMEOUT = 5.0


class Room(Protocol):
    """A capability of the daemon: images, containers, ..."""

    async def load(self) -> None:
        """Take up what the journal says, before anything is asked of it."""
        ...

    async def run(self) -> None:
        """Work until cancelled, and park then what is under way. May run again after it has failed."""
        ...

    @property
    def reconciled(self) -> bool: ...
    @property
    def problem(self) -> str: ...


class Daemon(msgspec.Struct, frozen=True):
    """Everything that `main` starts and stops."""

    runtime: Containerd
    rooms: Mapping[str, Room]
    parks: Sequence[Callable[[float], Awaitable[None]]]
    """What brings work to a point at which it can be left, within so many seconds, before the rooms are stopped."""
    api: ApiServer


class Base(msgspec.Struct, frozen=True):
    """What several rooms are made of."""

    database: Database
    runtime: Containerd
    keyring: Keyring
    client: RegistryClient
    registry: CollectorRegistry
    identity: str
    """Marks what this daemon makes in containerd."""
    salt: bytes
    """Goes into the digests of requests in the journal."""


async def compose(
    reloader: Reloader,
    supervisor: Supervisor,
    registry: CollectorRegistry,
    stack: AsyncExitStack,
    passed: socket.socket | None,
    stopping: Callable[[], bool],
) -> Daemon:
    """Make all parts. What has to be closed at the end is put on *stack*."""
    settings = reloader.settings
    base = await _base(settings, registry, stack)
    runtime, keyring = base.runtime, base.keyring
    journal = ImageJournal(base.database)
    budget = DiskBudget(margins_of(settings.images), journal, lambda: _disk(runtime))
    images = _images(settings.images, base, journal, budget)
    warmer = Warmer(images, stopping)
    pods = _pods(settings.containers, base, warmer)
    checkpoints = _checkpoints(settings.checkpoints, base, pods, warmer)
    topology = TopologyRoom(settings.topology, Contents(images, pods))
    TopologyMetrics(registry, topology.snapshot)

    def parts_of_uplink() -> UplinkParts:
        from stokerd.journal.uplink import UplinkJournal  # late: most nodes have no use for it
        from stokerd.uplink.ports import Ports

        return UplinkJournal(base.database), Ports(images, pods, checkpoints, topology, node.info)

    uplink = UplinkRoom(settings.uplink, settings.daemon.state_dir, parts_of_uplink)
    UplinkMetrics(registry, lambda: uplink.link)
    rooms: dict[str, Room] = {
        "images": images,
        "containers": pods,
        "checkpoints": checkpoints,
        "topology": topology,
        "uplink": uplink,
    }
    reloader.add(
        lambda new: log.configure(new.daemon),
        lambda new: images.apply(new.images),
        lambda new: pods.apply(new.containers),
        lambda new: checkpoints.apply(new.checkpoints),
        lambda new: topology.apply(new.topology),
        lambda new: keyring.apply(new.credentials.docker_configs, helper_timeout=new.credentials.helper_timeout),
    )
    control = _control(reloader, supervisor)
    group = settings.api.group
    node = NodeService(
        NodeParts(
            runtime,
            rooms,
            budget,
            keyring,
            group,
            control,
            checkpoints.capabilities,
            topology=lambda: topology.findings,
            coordinator=lambda: uplink.link,
        )
    )
    api = ApiServer(
        settings.api,
        images,
        node,
        registry,
        containers=pods,
        checkpoints=checkpoints,
        archives=checkpoints,
        topology=topology,
        passed=passed,
    )
    return Daemon(runtime, rooms, (pods.park,), api)


async def _base(settings: Settings, registry: CollectorRegistry, stack: AsyncExitStack) -> Base:
    database = Database(settings.daemon.state_dir)
    await database.open()
    stack.push_async_callback(database.close)
    identity = await asyncio.to_thread(kept_secret, settings.daemon.state_dir / "identity")
    salt = await asyncio.to_thread(kept_secret, settings.daemon.state_dir / "salt")
    watch_process(registry)
    runtime = Containerd(settings.runtime, RuntimeMetrics(registry).observe)
    keyring = Keyring(settings.credentials.docker_configs, helper_timeout=settings.credentials.helper_timeout)
    client = RegistryClient(hosts=lambda host: _endpoints(runtime, host), user_agent=f"stoker/{VERSION}")
    stack.push_async_callback(client.aclose)
    return Base(database, runtime, keyring, client, registry, identity, bytes.fromhex(salt))


def _images(settings: ImageSettings, base: Base, journal: ImageJournal, budget: DiskBudget) -> ImageService:
    runtime, keyring, daemon = base.runtime, base.keyring, base.identity
    platform = local_platform()
    presence = Presence(runtime)
    timing = timing_of(settings)
    puller = Puller(runtime, presence, budget, keyring, daemon=daemon, platform=platform, timing=timing)
    parts = Parts(
        runtime=runtime,
        journal=journal,
        presence=presence,
        budget=budget,
        puller=puller,
        planner=Planner(runtime, presence, budget, keyring, base.client, platform),
        clock=SystemClock(),
        pressure=PressureGauge().read,
        metrics=ImageMetrics(base.registry),
        daemon=daemon,
    )
    return ImageService(parts, settings)


def _pods(settings: ContainerSettings, base: Base, warmer: Warmer) -> ContainersService:
    parts = ContainerParts(
        runtime=base.runtime,
        journal=ContainerJournal(base.database),
        warmer=warmer,
        clock=ContainerClock(),
        metrics=ContainerMetrics(base.registry),
        salt=base.salt,
    )
    return ContainersService(parts, settings)


def _checkpoints(settings: CheckpointSettings, base: Base, pods: ContainersService, warmer: Warmer) -> CheckpointRoom:
    parts = CheckpointParts(
        runtime=base.runtime,
        journal=CheckpointJournal(base.database),
        names=PodNames(pods),
        owner=base.identity,
        salt=base.salt,
        registry=base.registry,
        client=base.client,
        keyring=base.keyring,
        warmer=warmer,
    )
    return CheckpointRoom(parts, settings)


def _control(reloader: Reloader, supervisor: Supervisor) -> Control:
    return Control(
        reload=reloader.reload,
        settings=lambda: plain(reloader.settings),
        recent_logs=log.recent.lines,
        config_problem=lambda: reloader.problem,
        failures=lambda: supervisor.problems,
    )


class Contents:
    """`topology.contents.NodeContents`: what the rooms of images and of containers list."""

    def __init__(self, images: ImageService, pods: ContainersService) -> None:
        self._images = images
        self._pods = pods

    async def images(self) -> Sequence[ImageStatus]:
        """Return the images on the node."""
        return await self._images.list()

    async def pods(self) -> Sequence[PodInfo]:
        """Return the pods of the node with their containers."""
        return await self._pods.pods()


class ImageNotWarm(StokerError):
    """An image that a container needs could not be warmed; ``reason`` is that of the pull."""

    def __init__(self, reason: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason  # type: ignore[misc]


class Warmer:
    """`containers.hands.Warmer`: a warm job of the images room, awaited."""

    def __init__(self, images: ImageService, stopping: Callable[[], bool]) -> None:
        """While *stopping*, a wait that is broken off leaves the job: the next start goes on with both."""
        self._images = images
        self._stopping = stopping

    async def warm(self, image: str, auths: Sequence[InlineAuth]) -> None:
        """Return when *image* is on the node, complete and unpacked. Raises StokerError when it cannot be."""
        request = WarmRequest(images=[image], name="for a container", priority=_WARM_PRIORITY, auths=list(auths))
        job = await self._images.warm(request)
        try:
            async for _ in self._images.follow(job.id):
                pass
        except asyncio.CancelledError:
            if not self._stopping():
                await self._drop(job.id)
            raise
        item = self._images.job(job.id).items[0]
        if item.phase != "Succeeded":
            raise ImageNotWarm(item.reason, item.message or f"{image} was not warmed", hint=item.hint or None)

    async def _drop(self, job: str) -> None:
        """Nobody waits for it any more; what the pull left is removed in the images room's own time."""
        with contextlib.suppress(StokerError, TimeoutError):
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                await self._images.cancel(job)


class PodNames:
    """`checkpoints.targets.Names`, by the inventory of the containers room."""

    def __init__(self, containers: ContainersService) -> None:
        self._containers = containers

    async def targets(self, name: str, containers: Sequence[str], alive: Collection[str]) -> tuple[Target, ...]:
        try:
            pod = (await self._containers.pod(name)).info
        except NotFound:
            if containers:
                raise
            found = (await self._containers.container(name)).info
            return (Target(found.id, found.name, found.pod, found.namespace),)
        running = {each.name: each for each in reversed(pod.containers) if each.phase == "Running" or each.id in alive}
        missing = [each for each in containers if each not in running]
        if missing or not running:
            what = f"no container {missing[0]!r} that runs" if missing else "no container that runs"
            known = f"it has: {', '.join(sorted(running))}" if running else "start one first"
            raise NotFound(f"the pod {name!r} has {what}", hint=known)
        wanted = containers or [each.name for each in pod.containers if running.get(each.name) is each]
        return tuple(Target(running[each].id, each, pod.name, pod.namespace) for each in wanted)


async def _disk(runtime: Containerd) -> FileSystem:
    info = runtime.info
    return await asyncio.to_thread(file_system, info.root, host_root=info.host_root)


def _endpoints(runtime: Containerd, host: str) -> tuple[RegistryEndpoint, ...]:
    info = runtime.info
    return load_endpoints(host, info.registry_config_path, Path(info.host_root) if info.host_root else None)


def kept_secret(path: Path) -> str:
    """Return 32 hexadecimal digits that are made by chance once and then kept in *path*, for root alone.

    ``identity`` marks what this daemon makes in containerd; ``salt`` goes into the digests of requests in the journal.
    """
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text(encoding="ascii").strip()
        if text:
            return text
    text = secrets.token_hex(_SECRET_BYTES)
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(descriptor)
        fresh.replace(path)
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error.strerror}") from error
    return text
