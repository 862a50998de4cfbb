"""What the rest of the daemon may ask of a container runtime.

Two implementations pass one conformance suite (tests/conformance): real containerd (`runtime.containerd`) and the
in-memory one (`runtime.memory`). All calls raise the errors of `stokerd.errors` (RuntimeFailure and its subclasses)
and nothing else; every call has a deadline of its own. Objects are those of containerd's namespace ``k8s.io``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol

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
from stokerd.runtime.types import (
    ContentInfo,
    CriImage,
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

    async def ingests(self) -> tuple[Ingest, ...]: ...

    async def abort(self, ref: str) -> None:
        """Throw an unfinished ingest away; one that is not there is no error."""
        ...

    async def delete(self, digest: str) -> None: ...


class ImageStore(Protocol):
    """containerd's own image records, beneath CRI."""

    async def get(self, name: str) -> ImageRecord | None: ...

    async def list(self) -> tuple[ImageRecord, ...]: ...

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> ImageRecord:
        """Set (str) or clear (None) the labels named; others stay."""
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


class Events(Protocol):
    """containerd's event stream."""

    def images(self) -> AsyncGenerator[ImageEvent, None]:
        """Yield image events from now on, until the stream breaks (RuntimeUnavailable) or the caller stops."""
        ...

    def containers(self) -> AsyncGenerator[ContainerEvent, None]:
        """Yield what happens to containers and pod sandboxes from now on, likewise."""
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
