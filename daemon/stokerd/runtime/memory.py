"""`protocol.NativeRuntime` in memory: a containerd for tests, which can be made to fail wherever containerd can.

    runtime = MemoryRuntime()
    image = runtime.remote.add_image("registry.test/app:v1", layers=[10 << 20, 1 << 20])
    hold = runtime.remote.hold(image.reference, "layer:0", after=4 << 20)
    pull = asyncio.create_task(runtime.cri.pull(image.reference, lease="mine"))
    await hold.reached.wait()  # 4 MiB of the first layer are there, no more will come
    runtime.crash()  # the pull fails with RuntimeUnavailable; content and leases stay

Pods and containers are there too. Processes do what tests say they do, on the loop's clock:

    pod = runtime.add_pod("web")
    old = runtime.add_container(pod, "app", "registry.test/app:v1")  # runs
    runtime.load_image("registry.test/app:v2")
    runtime.conduct(Conduct(exits_after=0.5, exit_code=1), image="registry.test/app:v2")
    runtime.fail("cri.CreateContainer", "no")  # or hold it; "cri.CreateContainer:done" is after it took effect

Beneath CRI they can be frozen, dumped and restored (`memory_tasks`). With `MemoryOptions.snapshot_dir` the snapshots
that somebody writes to are real directories.

It passes the same conformance suite as real containerd. What it leaves out: the bytes of layers, of which it only knows
how many there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from stokerd.errors import RuntimeUnavailable, StokerError
from stokerd.runtime.memory_artifacts import Reference, host_platform
from stokerd.runtime.memory_conduct import Answer, Conduct
from stokerd.runtime.memory_cri_runtime import MemoryContainers, MemoryPods, plain_container, plain_pod
from stokerd.runtime.memory_diffs import MemoryDiffs
from stokerd.runtime.memory_faults import Hold, Script
from stokerd.runtime.memory_install import install
from stokerd.runtime.memory_pods import PodStore
from stokerd.runtime.memory_pull import Generation, Machine
from stokerd.runtime.memory_registry import Remote
from stokerd.runtime.memory_services import (
    MemoryContent,
    MemoryCri,
    MemoryEvents,
    MemoryImages,
    MemoryLeases,
    Session,
)
from stokerd.runtime.memory_snapshots import MemorySnapshots
from stokerd.runtime.memory_store import Disk, Store
from stokerd.runtime.memory_tasks import MemoryRecords, MemoryTasks, TaskStore
from stokerd.runtime.pod_types import ContainerEvent, ExecResult
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

    snapshot_dir: str = ""
    """Where snapshots that are written to have real directories; empty: they have none."""


@dataclass(frozen=True, slots=True)
class _Services:
    session: Session
    cri: MemoryCri
    pods: MemoryPods
    containers: MemoryContainers
    content: MemoryContent
    images: MemoryImages
    snapshots: MemorySnapshots
    leases: MemoryLeases
    records: MemoryRecords
    tasks: MemoryTasks
    diffs: MemoryDiffs
    events: MemoryEvents


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryRuntime:
    """A containerd, its node's disk and the registries around it.

    ``remote`` is what can be pulled, ``disk`` the file system, ``store`` all that containerd keeps of images, ``node``
    its sandboxes, containers and their processes, ``native`` what is beneath CRI, ``used`` images that `cri.in_use`
    tells of beside those of containers, ``calls`` how often each call was made (by the names that real calls are
    observed under: ``cri.PullImage``, ``leases.ListResources``), ``latency`` how many seconds of the loop's time each
    call takes.
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
        self.store = Store(self.disk, clock, "overlayfs", self.options.snapshot_dir)
        self.store.on_event = self._publish
        self.remote = Remote(self.options.platform)
        self.node = PodStore(clock, self.options.generation)
        self.node.on_event = self._publish_container
        self.native = TaskStore(self.node, self.store)
        self.calls: Counter[str] = Counter()
        self.used: set[str] = set()
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
    def pods(self) -> MemoryPods:
        return self._current().pods

    @property
    def containers(self) -> MemoryContainers:
        return self._current().containers

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
    def records(self) -> MemoryRecords:
        return self._current().records

    @property
    def tasks(self) -> MemoryTasks:
        return self._current().tasks

    @property
    def diffs(self) -> MemoryDiffs:
        return self._current().diffs

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

    def fail(self, call: str, error: StokerError | str, *, times: int = 1, of: str = "") -> None:
        """Fail the next *times* calls of this name (``images.Update``), or after they took effect
        (``cri.StartContainer:done``). *of* is the name of the one container or pod that it is about."""
        self._script.fail(call, error, times=times, reference=of)

    def hold(self, call: str, *, times: int = 1 << 30, of: str = "") -> Hold:
        """Stop calls of this name before they do anything, or after it, until the barrier is released."""
        return self._script.hold(call, times=times, reference=of)

    def clear_faults(self) -> None:
        """Forget what was to fail or to be held, calls and pulls alike."""
        self._script.clear()
        self.remote.script.clear()

    # ------------------------------------------------------------------------------------------ pods and containers

    def add_pod(
        self,
        name: str,
        namespace: str = "default",
        *,
        uid: str = "",
        attempt: int = 0,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **more: Any,
    ) -> str:
        """Make a sandbox that is ready, and return its id; *more* are fields of PodSandboxConfig's JSON."""
        about = {"name": name, "namespace": namespace, "uid": uid or f"uid-{namespace}-{name}", "attempt": attempt}
        config = {"metadata": about, "hostname": name, "labels": labels, "annotations": annotations, **more}
        return self.node.run_pod(plain_pod(config), "").id

    def add_container(
        self,
        pod_id: str,
        name: str,
        image: str,
        *,
        attempt: int = 0,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        running: bool = True,
        **more: Any,
    ) -> str:
        """Create a container, and start it unless told not to; its image is loaded when it is not there.

        *more* are fields of ContainerConfig's JSON. Returns the id.
        """
        config = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": image, "user_specified_image": image},
            "envs": [{"key": key, "value": value} for key, value in (env or {}).items()],
            "labels": labels,
            "annotations": annotations,
            "log_path": f"{name}/{attempt}.log",
            **more,
        }
        container = self.node.create(pod_id, plain_container(config), lambda _image: self.load_image(image))
        if running:
            self.node.begin_start(container)
            self.node.finish_start(container)
        return container.id

    def load_image(self, reference: str) -> str:
        """Let an image be there, as if it had been pulled; make one up when no registry has it. Returns its id."""
        name = Reference.parse(reference)
        assert name is not None, reference
        record = self.store.records.get(str(name))
        manifest = self._machine.manifest_of(record.target.digest) if record is not None else None
        if manifest is not None:
            return str(manifest["config"]["digest"])
        return install(self._machine, self.remote.image(name) or self.remote.add_image(reference), name)

    def conduct(
        self,
        conduct: Conduct,
        *,
        image: str = "",
        name: str = "",
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        times: int = 1 << 30,
    ) -> None:
        """Say how containers behave that are started from now on: of an image (as it is asked for), a name, with a
        command that begins so, with some environment, the next *times* of them. Of several that fit, the one said last
        holds."""
        self.node.conducts.add(conduct, image=image, name=name, command=command, env=env, times=times)

    def on_exec(
        self,
        outcome: ExecResult | StokerError | str | Answer,
        *,
        argv: Sequence[str] = (),
        image: str = "",
        name: str = "",
        takes: float = 0.0,
        times: int = 1 << 30,
    ) -> None:
        """Say how commands that begin with *argv* end: a result, an error or its text, or a function of the whole argv.
        Others end with 0 at once. ``node.execs`` tells which were run, and where."""
        self.node.conducts.add_command(outcome, argv=argv, image=image, name=name, takes=takes, times=times)

    def end(self, container_id: str, exit_code: int = 0, reason: str = "") -> None:
        """Let the main process of a container end now."""
        self.node.end(self.node.containers[container_id], exit_code, reason)

    def lose_pod(self, pod_id: str) -> None:
        """Let the pause process of a sandbox die."""
        self.node.lose_pod(self.node.pods[pod_id])

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
        cri = MemoryCri(session, lambda: frozenset({*self.used, *self.node.used_images()}))
        self.node.recover()
        self._services = _Services(
            session,
            cri,
            MemoryPods(session, self.node),
            MemoryContainers(session, self.node, lambda ref: cri.find(ref, "cri.CreateContainer")),
            MemoryContent(session),
            MemoryImages(session),
            MemorySnapshots(session),
            MemoryLeases(session),
            MemoryRecords(session, self.native),
            MemoryTasks(session, self.native),
            MemoryDiffs(session),
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

    def _publish_container(self, event: ContainerEvent) -> None:
        if self._services is not None:
            self._services.session.publish_container(event)

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
