"""What the HTTP layer needs from the rest of the daemon; main.py hands in the implementations.

All methods raise StokerError subclasses; ``api.errors`` maps these to HTTP. No rule of the product lives in api/.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Protocol

from stoker.objects.containers import (
    ContainerDetail,
    ContainerInfo,
    PodDetail,
    PodInfo,
    RecreateEvent,
    RecreatePlan,
    RecreateRequest,
    RecreateStatus,
    ReloadResult,
)
from stoker.objects.images import (
    Attempt,
    Event,
    ImageStatus,
    JobStatus,
    KeepRequest,
    KeepStatus,
    PinList,
    PinRequest,
    PinStatus,
    Plan,
    PlanRequest,
    RemoveResult,
    WarmRequest,
)
from stoker.objects.node import Health, NodeInfo

if TYPE_CHECKING:  # loaded when checkpoints and the topology are
    from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
    from stoker.objects.checkpoints import (
        CheckpointDetail,
        CheckpointInfo,
        CheckpointRequest,
        CloneInfo,
        CloneRequest,
        CommitRequest,
        Operation,
        OperationEvent,
        PauseRequest,
        PauseResult,
        RestoreRequest,
    )
    from stoker.objects.topology import TopologyEvent, TopologyLoad, TopologyReport


class ImagesPort(Protocol):
    """Warm images."""

    async def warm(self, request: WarmRequest) -> JobStatus: ...

    def jobs(self) -> list[JobStatus]:
        """Return all jobs known, newest first, without their items."""
        ...

    def job(self, job_id: str) -> JobStatus:
        """Return one job by id or unique id prefix; NotFound."""
        ...

    async def cancel(self, job_id: str) -> JobStatus: ...

    def follow(self, job_id: str) -> AsyncIterator[Event]:
        """Yield a JobEvent, then ItemEvents, and a last JobEvent when the job has ended. A slow reader gets the
        newest state of each item, not every step."""
        ...

    def watch(self) -> AsyncIterator[Event]:
        """Yield everything that happens to images on this node, until the caller stops."""
        ...

    async def plan(self, request: PlanRequest) -> Plan: ...

    async def remove(self, image: str, *, force: bool = False) -> RemoveResult:
        """Remove an image; Conflict when it is pinned, kept or used by a container and *force* is not given."""
        ...

    async def pin(self, request: PinRequest) -> PinStatus: ...

    async def unpin(self, image: str) -> PinStatus: ...

    async def pins(self) -> PinList: ...

    async def keep(self, request: KeepRequest) -> KeepStatus: ...

    async def unkeep(self, image: str) -> KeepStatus: ...

    async def keeps(self) -> list[KeepStatus]: ...

    async def history(self, image: str | None = None, *, limit: int = 100) -> list[Attempt]: ...

    # Last, because in the class body it hides the built-in that the annotations above mean.
    async def list(self) -> list[ImageStatus]: ...


class ContainersPort(Protocol):
    """Pods and containers of the node, and containers recreated in place.

    Where a method takes a name it may be a name (``namespace/name`` for a pod, ``pod/name`` or
    ``namespace/pod/name`` for a container), an id, or a unique beginning of an id; NotFound when there is none, and
    Conflict, naming the candidates, when there are several.
    """

    async def pods(self) -> list[PodInfo]:
        """Return all pods with their containers, by namespace and name."""
        ...

    async def pod(self, name: str) -> PodDetail: ...

    async def containers(self) -> list[ContainerInfo]: ...

    async def container(self, name: str) -> ContainerDetail: ...

    async def recreate(self, request: RecreateRequest) -> RecreateStatus:
        """Take a request up and return at once; the same request again returns the state it is in."""
        ...

    async def plan(self, request: RecreateRequest) -> RecreatePlan: ...

    def recreates(self) -> list[RecreateStatus]:
        """Return all requests known, newest first."""
        ...

    def recreate_status(self, request_id: str) -> RecreateStatus:
        """Return one request by its id, its name, or a unique beginning of the id."""
        ...

    async def cancel_recreate(self, request_id: str) -> RecreateStatus:
        """Stop at the next point at which every container is whole; what was recreated stays."""
        ...

    def follow_recreate(self, request_id: str) -> AsyncIterator[RecreateEvent]:
        """Yield the request as it is, then every change, the last one being its end."""
        ...


class CheckpointsPort(Protocol):
    """Checkpoints, clones, and images made of containers.

    What takes long is an operation: it is in the journal when the method returns, and goes on by itself. Pods and
    containers may be named as in `ContainersPort`, checkpoints and clones by id, a unique beginning of it, or the
    checkpoint's name.
    """

    async def operations(self) -> list[Operation]:
        """Return all operations known, newest first."""
        ...

    async def operation(self, name: str) -> Operation: ...

    async def cancel_operation(self, name: str) -> Operation:
        """End an operation; what it has begun is undone. One that has ended stays as it is."""
        ...

    def follow_operation(self, identity: str) -> AsyncIterator[OperationEvent]:
        """Yield the operation as it is, then every change, the last one being its end."""
        ...

    async def create_checkpoint(self, request: CheckpointRequest) -> Operation: ...

    async def checkpoints(self) -> list[CheckpointInfo]: ...

    async def checkpoint(self, name: str) -> CheckpointDetail: ...

    async def verify_checkpoint(self, name: str) -> Operation: ...

    async def remove_checkpoint(self, name: str) -> list[CheckpointInfo]:
        """Remove a checkpoint, or all that were taken in one freeze; Conflict while clones stand on them."""
        ...

    async def restore(self, name: str, request: RestoreRequest) -> Operation: ...

    async def clone(self, request: CloneRequest) -> Operation: ...

    async def clones(self) -> list[CloneInfo]: ...

    async def clone_status(self, name: str) -> CloneInfo: ...

    async def remove_clone(self, name: str) -> CloneInfo: ...

    async def commit(self, request: CommitRequest) -> Operation: ...

    async def pause(self, request: PauseRequest) -> PauseResult:
        """Freeze containers until `resume`, all or none; those that are frozen stay so."""
        ...

    async def resume(self, request: PauseRequest) -> PauseResult: ...


class ArchivesPort(Protocol):
    """What leaves the node and what enters it. Operations as in `CheckpointsPort`."""

    async def push_image(self, request: ImagePushRequest) -> Operation: ...

    async def push_checkpoint(self, name: str, request: CheckpointPushRequest) -> Operation: ...

    async def pull_checkpoint(self, request: CheckpointPullRequest) -> Operation: ...

    def export_checkpoint(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield a checkpoint as one archive; a refusal comes before the first piece."""
        ...

    async def import_checkpoint(
        self, pieces: AsyncIterator[bytes], like: str, name: str, *, trust: bool
    ) -> CheckpointInfo:
        """Take an archive in. Whatever fails, and when the caller goes away, nothing of it is left."""
        ...


class TopologyPort(Protocol):
    """What the node is made of, and what it hangs on. The first call has it loaded; the reason SwitchedOff refuses."""

    async def report(self) -> TopologyReport:
        """Return the report; it is equal as long as nothing changed."""
        ...

    async def load_of_ports(self) -> TopologyLoad: ...

    def follow(self) -> AsyncIterator[TopologyEvent]:
        """Yield the report as it is, then its changes until the caller stops. A slow reader gets the difference to what
        it knows."""
        ...


class NodePort(Protocol):
    """The daemon and its node."""

    async def info(self) -> NodeInfo: ...

    async def health(self) -> Health:
        """Alive and the runtime answers."""
        ...

    async def readiness(self) -> Health:
        """Start-up reconciliation is done."""
        ...

    async def reload(self) -> ReloadResult:
        """Read the configuration file again; ConfigError leaves everything as it was."""
        ...

    def settings(self) -> dict[str, dict[str, object]]:
        """Return the settings that hold, as plain values by table and key; they hold no secret."""
        ...

    def recent_logs(self) -> list[str]:
        """Return the last log lines as JSON, oldest first."""
        ...
