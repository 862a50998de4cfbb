"""What the uplink needs of the rest of the daemon; wiring.py hands in the rooms. All methods raise StokerError."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from stoker.objects.checkpoints import (
    CheckpointInfo,
    CheckpointRequest,
    CloneInfo,
    CloneRequest,
    CommitRequest,
    Operation,
    OperationEvent,
)
from stoker.objects.containers import PodInfo, RecreateEvent, RecreateRequest, RecreateStatus
from stoker.objects.images import Event, ImageStatus, JobStatus, WarmRequest
from stoker.objects.node import NodeInfo

if TYPE_CHECKING:  # loaded when the topology is
    from stoker.objects.topology import TopologyEvent, TopologyLoad, TopologyReport


class Images(Protocol):
    """Warm images, as `api.ports.ImagesPort` has them."""

    async def warm(self, request: WarmRequest) -> JobStatus: ...
    def jobs(self) -> list[JobStatus]: ...
    def follow(self, job_id: str) -> AsyncIterator[Event]: ...
    async def cancel(self, job_id: str) -> JobStatus: ...
    def watch(self) -> AsyncIterator[Event]: ...

    # Last, because in the class body it hides the built-in that the annotations above mean.
    async def list(self) -> list[ImageStatus]: ...


class Containers(Protocol):
    """Pods, and containers recreated in place, as `api.ports.ContainersPort` has them."""

    async def pods(self) -> list[PodInfo]: ...
    async def recreate(self, request: RecreateRequest) -> RecreateStatus: ...
    def recreates(self) -> list[RecreateStatus]: ...
    def follow_recreate(self, request_id: str) -> AsyncIterator[RecreateEvent]: ...
    async def cancel_recreate(self, request_id: str) -> RecreateStatus: ...


class Checkpoints(Protocol):
    """Checkpoints, clones and commits, as `api.ports.CheckpointsPort` has them."""

    @property
    def in_use(self) -> bool:
        """Whether there may be any; the rest is loaded when it is called."""
        ...

    async def checkpoints(self) -> list[CheckpointInfo]: ...
    async def clones(self) -> list[CloneInfo]: ...
    async def operations(self) -> list[Operation]: ...
    def follow_operation(self, identity: str) -> AsyncIterator[OperationEvent]: ...
    async def cancel_operation(self, name: str) -> Operation: ...
    async def create_checkpoint(self, request: CheckpointRequest) -> Operation: ...
    async def clone(self, request: CloneRequest) -> Operation: ...
    async def commit(self, request: CommitRequest) -> Operation: ...


class Topology(Protocol):
    """The topology, as `api.ports.TopologyPort` has it."""

    async def report(self) -> TopologyReport: ...
    async def load_of_ports(self) -> TopologyLoad: ...
    def follow(self) -> AsyncIterator[TopologyEvent]: ...


class Ports(msgspec.Struct, frozen=True):
    """What the coordinator's wishes are done by, and what it is told of."""

    images: Images
    containers: Containers
    checkpoints: Checkpoints
    topology: Topology
    info: Callable[[], Awaitable[NodeInfo]]
