"""What the rest of the daemon may ask of a container runtime.

Two implementations pass one conformance suite (tests/conformance): real containerd (`runtime.containerd`) and the
in-memory one (`runtime.memory`). All calls raise the errors of `stokerd.errors` (RuntimeFailure and its subclasses)
and nothing else; every call has a deadline of its own. Objects are those of containerd's namespace ``k8s.io``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from typing import Any, Protocol

from stokerd.runtime.pod_types import (
    Blueprint,
    Container,
    ContainerEvent,
    ContainerStatus,
    ExecResult,
    Pod,
    PodBlueprint,
    PodStatus,
)
from stokerd.runtime.task_types import (
    AnyValue,
    ContainerRecord,
    DumpOptions,
    Exit,
    Mount,
    Restore,
    Stdio,
    Task,
)
from stokerd.runtime.types import (
    ContentInfo,
    CriImage,
    Descriptor,
    ImageEvent,
    ImageFs,
    ImageRecord,
    Ingest,
    Lease,
    LeaseResource,
    RegistryAuth,
    RuntimeInfo,
    SnapshotInfo,
    Usage,
)


class CriImages(Protocol):
    """The image half of CRI v1."""

    async def pull(self, ref: str, *, auth: RegistryAuth | None = None, lease: str | None = None) -> str:
        """Pull *ref* and return the image id. Runs until the pull ends; cancelling the task cancels the pull.

        With *lease*, all content, ingests and snapshots of the pull are held by that lease, so that they outlive a
        broken pull and can be found, resumed and removed again.
        """
        ...

    async def status(self, ref: str) -> CriImage | None:
        """Return what CRI knows of *ref* (name, digest reference or id), None when it knows nothing."""
        ...

    async def list(self) -> tuple[CriImage, ...]: ...

    async def remove(self, ref: str) -> None:
        """Remove the image and all its names; removing what is not there succeeds."""
        ...

    async def fs_info(self) -> ImageFs: ...

    async def in_use(self) -> frozenset[str]:
        """Return the image ids and names that containers, running or not, were made from."""
        ...


class CriPods(Protocol):
    """The pod half of CRI v1's runtime service."""

    async def list(self) -> tuple[Pod, ...]: ...

    async def status(self, pod_id: str) -> PodStatus | None:
        """Return what CRI knows of the pod sandbox, its configuration included; None when it knows nothing."""
        ...

    async def run(self, pod: PodBlueprint) -> str:
        """Make and start a pod sandbox; return its id."""
        ...

    async def stop(self, pod_id: str) -> None:
        """Stop the sandbox and all of its containers; one that has stopped, or is gone, is no error."""
        ...

    async def remove(self, pod_id: str) -> None:
        """Remove the sandbox and all of its containers; one that is gone is no error."""
        ...


class CriContainers(Protocol):
    """The container half of CRI v1's runtime service."""

    async def list(self, *, pod_id: str | None = None) -> tuple[Container, ...]: ...

    async def status(self, container_id: str) -> ContainerStatus | None:
        """Return what CRI knows of the container, its configuration included; None when it knows nothing."""
        ...

    async def create(self, pod_id: str, container: Blueprint, pod: PodBlueprint) -> str:
        """Create a container in the sandbox and return its id.

        RuntimeAlreadyExists when the sandbox has one of that name and attempt; RuntimeNotFound when sandbox or image
        are not there; RuntimeUnsupported when the blueprint holds fields that this version of Stoker does not know,
        since leaving one out could drop a restriction.
        """
        ...

    async def start(self, container_id: str) -> None:
        """Start a created container; RuntimeInvalid when it is in another state."""
        ...

    async def stop(self, container_id: str, grace: float) -> None:
        """Send the stop signal, and SIGKILL after *grace* seconds; returns when it has exited. One that has exited, or
        is gone, is no error."""
        ...

    async def remove(self, container_id: str) -> None:
        """Remove a container that does not run; one that is gone is no error."""
        ...

    async def exec(self, container_id: str, argv: Sequence[str], *, timeout: float) -> ExecResult:
        """Run a command in the container to its end. RuntimeTimeout when it takes longer than *timeout* seconds; it is
        killed then. RuntimeFailure when it cannot be started."""
        ...


class ContentStore(Protocol):
    """containerd's content store."""

    async def info(self, digest: str) -> ContentInfo | None: ...

    async def list(self) -> tuple[ContentInfo, ...]: ...

    async def read(self, digest: str, *, limit: int = 8 << 20) -> bytes:
        """Return a whole small blob; RuntimeInvalid when it is larger than *limit* bytes."""
        ...

    async def read_at(self, digest: str, offset: int, size: int) -> bytes:
        """Return *size* bytes of a blob from *offset* on, fewer only at its end. RuntimeNotFound without the blob,
        RuntimeFailure beyond its end."""
        ...

    async def ingests(self) -> tuple[Ingest, ...]: ...

    async def abort(self, ref: str) -> None:
        """Throw an unfinished ingest away; one that is not there is no error."""
        ...

    async def delete(self, digest: str) -> None: ...

    async def write(
        self,
        ref: str,
        chunks: AsyncIterable[bytes],
        *,
        size: int = 0,
        digest: str = "",
        labels: Mapping[str, str] | None = None,
        lease: str | None = None,
    ) -> ContentInfo:
        """Store a blob, chunk by chunk, and return it. An ingest *ref* that is there already is begun anew.

        A blob that the store has already is no error; the labels are added to it then. RuntimeInvalid when what was
        written has another *size* or *digest* than was said. Without a lease, and without a label that keeps it, the
        garbage collector takes it soon. A write that is broken off leaves its ingest; `abort` removes that.
        """
        ...


class ImageStore(Protocol):
    """containerd's own image records, beneath CRI."""

    async def get(self, name: str) -> ImageRecord | None: ...

    async def list(self) -> tuple[ImageRecord, ...]: ...

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> ImageRecord:
        """Set (str) or clear (None) the labels named; others stay."""
        ...

    async def put(self, name: str, target: Descriptor, labels: Mapping[str, str]) -> ImageRecord:
        """Create the record, or give the one that is there this target and exactly these labels."""
        ...

    async def delete(self, name: str, *, sync: bool = True) -> None:
        """Delete the record; with *sync*, return when the garbage collector has run. Absent is no error."""
        ...


class Snapshots(Protocol):
    """The node's snapshotter (`RuntimeInfo.snapshotter`)."""

    async def stat(self, name: str) -> SnapshotInfo | None: ...

    async def list(self) -> tuple[SnapshotInfo, ...]: ...

    async def usage(self, name: str) -> Usage | None:
        """Space of one snapshot itself. For an active one this walks its files: not for tight loops."""
        ...

    async def prepare(
        self, key: str, parent: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> tuple[Mount, ...]:
        """Make a writable snapshot on the committed *parent* ("" for none); return how to mount it.

        RuntimeAlreadyExists when the name is taken, RuntimeNotFound when there is no such parent. Without a lease, and
        without the label ``containerd.io/gc.root``, the garbage collector takes it within seconds.
        """
        ...

    async def view(
        self, key: str, parent: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> tuple[Mount, ...]:
        """The same, read-only."""
        ...

    async def mounts(self, key: str) -> tuple[Mount, ...]:
        """Return how to mount an active snapshot or a view; RuntimeNotFound when there is none."""
        ...

    async def commit(
        self, key: str, name: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> None:
        """Turn the active snapshot *key* into the committed one *name*, which has these labels and no others."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a snapshot; one that is not there is no error. RuntimeInvalid while others are made on it."""
        ...

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> SnapshotInfo:
        """Set (str) or clear (None) the labels named; others stay."""
        ...


class Diffs(Protocol):
    """Layers and file systems turned into each other, by containerd itself."""

    async def create(
        self, lower: Sequence[Mount], upper: Sequence[Mount], *, media_type: str, ref: str, lease: str
    ) -> Descriptor:
        """Pack what *upper* has over *lower* as a layer into the content store; when it is compressed, its content has
        the label ``containerd.io/uncompressed``. It reads all of both, which takes as long as they are large."""
        ...

    async def apply(self, layer: Descriptor, mounts: Sequence[Mount]) -> str:
        """Unpack a layer of the content store onto *mounts*; return the digest of what it is uncompressed."""
        ...


class Leases(Protocol):
    """containerd's leases."""

    async def create(self, lease_id: str, labels: Mapping[str, str]) -> Lease:
        """Create the lease; RuntimeAlreadyExists when the id is taken."""
        ...

    async def list(self) -> tuple[Lease, ...]: ...

    async def resources(self, lease_id: str) -> tuple[LeaseResource, ...]:
        """Return what the lease holds; RuntimeNotFound when there is no such lease."""
        ...

    async def delete(self, lease_id: str, *, sync: bool = True) -> None:
        """Delete the lease; with *sync*, return when what it alone held is gone. Absent is no error."""
        ...


class ContainerRecords(Protocol):
    """containerd's own container records, beneath CRI: those of CRI's containers and sandboxes are among them."""

    async def get(self, container_id: str) -> ContainerRecord | None: ...

    async def list(self, *, labels: Mapping[str, str] | None = None) -> tuple[ContainerRecord, ...]:
        """Return all records, or those that have all of these labels."""
        ...

    async def create(self, record: ContainerRecord) -> ContainerRecord:
        """Create a record, with spec and options just as they are given; RuntimeAlreadyExists when the id is taken."""
        ...

    async def delete(self, container_id: str) -> None:
        """Delete a record; its snapshot stays. Absent is no error."""
        ...


class Tasks(Protocol):
    """containerd's tasks: container records brought to life. Those of CRI's containers are among them."""

    async def get(self, container_id: str) -> Task | None: ...

    async def pids(self, container_id: str) -> tuple[int, ...]:
        """Return the ids of all processes of a task, as the machine counts them; RuntimeNotFound without a task."""
        ...

    async def pause(self, container_id: str) -> None:
        """Freeze all processes; returns when they stand. RuntimeFailure when the task does not run."""
        ...

    async def resume(self, container_id: str) -> None:
        """Thaw all processes. RuntimeFailure when they are not frozen."""
        ...

    async def checkpoint(
        self, container_id: str, image_path: str, work_path: str, options: DumpOptions, *, timeout: float
    ) -> None:
        """Let CRIU write the memory of the processes to *image_path*, and its log to ``dump.log`` in *work_path*.

        Both are directories as the node sees them. Whether the task is frozen is left as it was. Cancelling breaks the
        dump off; the processes go on.
        """
        ...

    async def create(
        self,
        container_id: str,
        rootfs: Sequence[Mount],
        *,
        options: AnyValue | None = None,
        restore: Restore | None = None,
        stdio: Stdio | None = None,
    ) -> int:
        """Make a task of a container record and return its process id, 0 for one that is to be restored.

        *options* are the runtime's; given ones replace those of the record as a whole, and *restore* is added to them.
        """
        ...

    async def start(self, container_id: str, *, timeout: float = ...) -> int:
        """Start what was created, or restore it; return its process id."""
        ...

    async def wait(self, container_id: str) -> Exit:
        """Return when the task has ended, however long that takes; RuntimeNotFound without a task."""
        ...

    async def execute(
        self,
        container_id: str,
        exec_id: str,
        process: Mapping[str, Any],
        *,
        stdio: Stdio | None = None,
        timeout: float,
    ) -> Exit:
        """Run one more process in the task, to its end. *process* is one of the OCI runtime spec.

        RuntimeTimeout when it takes longer than *timeout* seconds; it is killed then. RuntimeFailure when it cannot be
        started, RuntimeNotFound without a task.
        """
        ...

    async def kill(self, container_id: str, signal: int, *, everyone: bool = False) -> None:
        """Send a signal to the first process, or to all of them; one that is gone is no error."""
        ...

    async def delete(self, container_id: str) -> Exit | None:
        """Delete a task that has ended or was never started; RuntimeFailure while it runs. Absent is no error."""
        ...


class Events(Protocol):
    """containerd's event stream."""

    def images(self) -> AsyncGenerator[ImageEvent, None]:
        """Yield image events from now on, until the stream breaks (RuntimeUnavailable) or the caller stops."""
        ...

    def containers(self) -> AsyncGenerator[ContainerEvent, None]:
        """Yield what happens to containers and pod sandboxes from now on, likewise. That one has stopped may be told
        after it was deleted."""
        ...


class Runtime(Protocol):
    """Everything together, over one connection."""

    @property
    def cri(self) -> CriImages: ...
    @property
    def pods(self) -> CriPods: ...
    @property
    def containers(self) -> CriContainers: ...
    @property
    def content(self) -> ContentStore: ...
    @property
    def images(self) -> ImageStore: ...
    @property
    def snapshots(self) -> Snapshots: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def events(self) -> Events: ...

    @property
    def info(self) -> RuntimeInfo:
        """What was found out when the connection was made."""
        ...

    @property
    def ready(self) -> bool: ...

    async def wait_ready(self) -> None:
        """Return as soon as the runtime answers."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call *listener*, on the event loop, whenever readiness changes."""
        ...

    async def probe(self) -> RuntimeInfo:
        """Find out afresh what is behind the socket."""
        ...

    async def ping(self) -> None:
        """Return when CRI answers; raise RuntimeUnavailable or RuntimeTimeout otherwise."""
        ...

    async def close(self) -> None: ...


class NativeRuntime(Runtime, Protocol):
    """A runtime whose containers can also be handled beneath CRI: frozen, dumped, restored, made without it."""

    @property
    def records(self) -> ContainerRecords: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def diffs(self) -> Diffs: ...
