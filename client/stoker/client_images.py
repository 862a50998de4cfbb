"""The client's methods about images."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from stoker.objects.images import (
    Attempt,
    Event,
    ImageStatus,
    JobEvent,
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
from stoker.sse import Message
from stoker.transport import OnRetry, Transport, part

_EVENTS = frozenset({"item", "job", "image"})
_decode = msgspec.json.Decoder[Event](Event).decode


class ImageCalls(Transport):
    """Warm images, pins and keeps."""

    async def warm(self, request: WarmRequest) -> JobStatus:
        """Ask for images to be made present; returns at once, with the job."""
        return await self._call("POST", "/v1/images/warm", JobStatus, body=request)

    async def plan(self, request: PlanRequest) -> Plan:
        """Return what warming would download and need on disk; nothing is pulled."""
        return await self._call("POST", "/v1/images/plan", Plan, body=request)

    async def jobs(self) -> list[JobStatus]:
        """Return the jobs stokerd knows, newest first, without their items."""
        return await self._call("GET", "/v1/jobs", list[JobStatus])

    async def job(self, job_id: str) -> JobStatus:
        """Return one job, by its id or the unique start of it."""
        return await self._call("GET", f"/v1/jobs/{part(job_id)}", JobStatus)

    async def cancel(self, job_id: str) -> JobStatus:
        """Cancel a job: pulls that no other job wants are stopped."""
        return await self._call("DELETE", f"/v1/jobs/{part(job_id)}", JobStatus)

    async def follow(
        self, job_id: str, *, patience: float = 120.0, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield a JobEvent, then ItemEvents, and a JobEvent with the end of the job as the last.

        The job goes on in stokerd when the connection breaks or stokerd restarts, so this connects again, with growing
        pauses, until nothing was heard for *patience* seconds; then it raises DaemonUnreachable. After each break a
        JobEvent brings the whole state again. *on_retry* is told the cause and the pause in seconds.
        """
        path = f"/v1/jobs/{part(job_id)}/events"
        following: AsyncGenerator[Event, None] = self._follow(
            path, _read, _is_end, patience=patience, on_retry=on_retry
        )
        async with aclosing(following) as events:
            async for event in events:
                yield event

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Yield what happens to images on the node, until the caller stops or the connection breaks."""
        watching: AsyncGenerator[Event, None] = self._events("/v1/watch", _read)
        async with aclosing(watching) as events:
            async for event in events:
                yield event

    async def images(self) -> list[ImageStatus]:
        """Return the images on the node."""
        return await self._call("GET", "/v1/images", list[ImageStatus])

    async def remove(self, image: str, *, force: bool = False) -> RemoveResult:
        """Remove an image; ClientError with reason Conflict when it is pinned, kept or in use, and not *force*."""
        query = {"image": image, "force": "1"} if force else {"image": image}
        return await self._call("DELETE", "/v1/images", RemoveResult, query=query)

    async def history(self, image: str | None = None, *, limit: int = 100) -> list[Attempt]:
        """Return the latest *limit* pulls of *image*, or of all images; newest first."""
        query = {"limit": str(limit)}
        if image:
            query["image"] = image
        return await self._call("GET", "/v1/history", list[Attempt], query=query)

    async def pins(self) -> PinList:
        """Return all pins."""
        return await self._call("GET", "/v1/pins", PinList)

    async def pin(self, request: PinRequest) -> PinStatus:
        """Protect an image from the kubelet's garbage collection."""
        return await self._call("PUT", "/v1/pins", PinStatus, body=request)

    async def unpin(self, image: str) -> PinStatus:
        """End a pin."""
        return await self._call("DELETE", "/v1/pins", PinStatus, query={"image": image})

    async def keeps(self) -> list[KeepStatus]:
        """Return the images that are warmed again whenever they go away."""
        return await self._call("GET", "/v1/keeps", list[KeepStatus])

    async def keep(self, request: KeepRequest) -> KeepStatus:
        """Warm an image again whenever something removes it."""
        return await self._call("PUT", "/v1/keeps", KeepStatus, body=request)

    async def unkeep(self, image: str) -> KeepStatus:
        """End that; the image stays as it is."""
        return await self._call("DELETE", "/v1/keeps", KeepStatus, query={"image": image})


def _read(message: Message) -> Event | None:
    return _decode(message.data) if message.event in _EVENTS else None


def _is_end(event: Event) -> bool:
    return isinstance(event, JobEvent) and event.job.state != "Active"
