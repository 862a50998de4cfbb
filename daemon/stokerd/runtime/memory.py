"""`protocol.Runtime` in memory: a containerd for tests, which can be made to fail wherever containerd can.

    runtime = MemoryRuntime()
    image = runtime.remote.add_image("registry.test/app:v1", layers=[10 << 20, 1 << 20])
    hold = runtime.remote.hold(image.reference, "layer:0", after=4 << 20)
    pull = asyncio.create_task(runtime.cri.pull(image.reference, lease="mine"))
    await hold.reached.wait()  # 4 MiB of the first layer are there, no more will come
    runtime.crash()  # the pull fails with RuntimeUnavailable; content and leases stay

It passes the same conformance suite as real containerd. What it leaves out: containers, snapshots that are written to,
and the bytes of layers, of which it only knows how many there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stokerd.errors import RuntimeUnavailable, StokerError
from stokerd.runtime.memory_artifacts import host_platform
from stokerd.runtime.memory_faults import Hold, Script
from stokerd.runtime.memory_pull import Generation, Machine
from stokerd.runtime.memory_registry import Remote
from stokerd.runtime.memory_services import (
    MemoryContent,
    MemoryCri,
    MemoryEvents,
    MemoryImages,
    MemoryLeases,
    MemorySnapshots,
    Session,
)
from stokerd.runtime.memory_store import Disk, Store
from stokerd.runtime.probe import with_capabilities
from stokerd.runtime.types import CgroupMode, ImageEvent, RuntimeInfo

_VERSIONS: dict[Generation, str] = {"1.6": "1.6.20~ds1", "1.7": "1.7.24~ds1", "2.1": "2.1.9"}


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What a memory runtime is like."""

    generation: Generation = "2.1"
    """Which containerd it behaves as."""

    platform: str = field(default_factory=host_platform)
    """What it pulls out of an index."""

    root: str = "/var/lib/containerd"
    disk_bytes: int = 100 << 30
    disk_inodes: int = 6_000_000


@dataclass(frozen=True, slots=True)
class _Services:
    session: Session
    cri: MemoryCri
    content: MemoryContent
    images: MemoryImages
    snapshots: MemorySnapshots
    leases: MemoryLeases
    events: MemoryEvents


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryRuntime:
    """A containerd, its node's disk and the registries around it.

    ``remote`` is what can be pulled, ``disk`` the file system, ``store`` all that containerd keeps, ``containers`` what
    `cri.in_use` tells of, ``calls`` how often each call was made (by the names that real calls are observed under:
    ``cri.PullImage``, ``leases.ListResources``), ``latency`` how many seconds of the loop's time each call takes.
    """

    def __init__(
        self,
        options: MemoryOptions | None = None,
        *,
        pinning: bool = True,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """Make a runtime that is up. Without *pinning* it is a containerd 1.6, which tells the kubelet of no pins."""
        self.options = options or MemoryOptions(generation="2.1" if pinning else "1.6")
        self.disk = Disk(self.options.root, self.options.disk_bytes, self.options.disk_inodes)
        self.store = Store(self.disk, clock, "overlayfs")
        self.store.on_event = self._publish
        self.remote = Remote(self.options.platform)
        self.calls: Counter[str] = Counter()
        self.containers: set[str] = set()
        self.latency = 0.0
        self.restarts = 0
        self._script = Script()
        self._machine = Machine(self.store, self.remote, self.options.platform, self.options.generation)
        self._listeners: list[Callable[[], None]] = []
        self._ready = asyncio.Event()
        self._services: _Services | None = None
        self._connect()

    # ------------------------------------------------------------------------------------------ services

    @property
    def cri(self) -> MemoryCri:
        return self._current().cri

    @property
    def content(self) -> MemoryContent:
        return self._current().content

    @property
    def images(self) -> MemoryImages:
        return self._current().images

    @property
    def snapshots(self) -> MemorySnapshots:
        return self._current().snapshots

    @property
    def leases(self) -> MemoryLeases:
        return self._current().leases

    @property
    def events(self) -> MemoryEvents:
        return self._current().events

    @property
    def info(self) -> RuntimeInfo:
        self._current()
        return self._info()

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call *listener* whenever readiness changes."""
        self._listeners.append(listener)

    async def probe(self) -> RuntimeInfo:
        await self.cri.version()
        return self._info()

    async def ping(self) -> None:
        await self.cri.version()

    async def close(self) -> None:
        """Break the connection for good; listeners are not told."""
        self._break()

    # ------------------------------------------------------------------------------------------ what tests do to it

    def crash(self) -> None:
        """Kill containerd: every call in flight fails with RuntimeUnavailable; what was written stays."""
        if self._services is None:
            return
        self._break()
        self._tell()

    def restart(self) -> None:
        """Start containerd again. Services that were taken before are of the old connection, and stay broken."""
        if self._services is not None:
            self.crash()
        self.restarts += 1
        self._connect()
        self._tell()

    def collect(self) -> None:
        """Run the garbage collector now."""
        self.store.collect()

    def fail(self, call: str, error: StokerError | str, *, times: int = 1) -> None:
        """Fail the next *times* calls of this name (``images.Update``)."""
        self._script.fail(call, error, times=times)

    def hold(self, call: str, *, times: int = 1 << 30) -> Hold:
        """Stop calls of this name before they do anything, until the barrier is released."""
        return self._script.hold(call, times=times)

    def clear_faults(self) -> None:
        """Forget what was to fail or to be held, calls and pulls alike."""
        self._script.clear()
        self.remote.script.clear()

    # ------------------------------------------------------------------------------------------ inside

    def _current(self) -> _Services:
        if self._services is None:
            raise RuntimeUnavailable(
                "no containerd answers: tried memory: nobody listens (refused)",
                hint="start containerd, or set runtime.endpoint in stokerd's configuration",
            )
        return self._services

    def _connect(self) -> None:
        session = Session(self._machine, self.calls, self._script, lambda: self.latency)
        self._services = _Services(
            session,
            MemoryCri(session, self.containers),
            MemoryContent(session),
            MemoryImages(session),
            MemorySnapshots(session),
            MemoryLeases(session),
            MemoryEvents(session),
        )
        self._ready.set()

    def _break(self) -> None:
        services, self._services = self._services, None
        self._ready.clear()
        if services is not None:
            services.session.break_off()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _publish(self, event: ImageEvent) -> None:
        if self._services is not None:
            self._services.session.publish(event)

    def _info(self) -> RuntimeInfo:
        return with_capabilities(
            RuntimeInfo(
                endpoint="memory",
                name="containerd",
                version=_VERSIONS[self.options.generation],
                api_version="v1",
                pid=1000 + self.restarts,
                root=self.options.root,
                state="/run/containerd",
                host_root="",
                snapshotter=self.store.snapshotter,
                storage_fs="ext4",
                criu_version="4.2",
                runc_version="1.3.0",
                cgroup_mode=CgroupMode.UNIFIED,
                registry_config_path="/etc/containerd/certs.d",
                decompressors=("igzip",),
            )
        )
