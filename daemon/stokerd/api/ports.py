"""What the HTTP layer needs from the rest of the daemon; main.py hands in the implementations.

All methods raise StokerError subclasses; ``api.errors`` maps these to HTTP. No rule of the product lives in api/.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

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


class NodePort(Protocol):
    """The daemon and its node."""

    async def info(self) -> NodeInfo: ...

    async def health(self) -> Health:
        """Alive and the runtime answers."""
        ...

    async def readiness(self) -> Health:
        """Start-up reconciliation is done."""
        ...
