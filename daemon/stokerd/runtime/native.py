"""containerd's own API: content, images, snapshots, leases, events."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing

from cri_stubs.containerd.events import image_pb2
from cri_stubs.containerd.services.content.v1 import content_pb2
from cri_stubs.containerd.services.content.v1.content_pb2_grpc import ContentStub
from cri_stubs.containerd.services.events.v1 import events_pb2
from cri_stubs.containerd.services.events.v1.events_pb2_grpc import EventsStub
from cri_stubs.containerd.services.images.v1 import images_pb2
from cri_stubs.containerd.services.images.v1.images_pb2_grpc import ImagesStub
from cri_stubs.containerd.services.leases.v1 import leases_pb2
from cri_stubs.containerd.services.leases.v1.leases_pb2_grpc import LeasesStub
from cri_stubs.containerd.services.snapshots.v1 import snapshots_pb2
from cri_stubs.containerd.services.snapshots.v1.snapshots_pb2_grpc import SnapshotsStub
from cri_stubs.containerd.types import descriptor_pb2
from stokerd.errors import RuntimeAlreadyExists, RuntimeInvalid, RuntimeNotFound, RuntimeUnavailable
from stokerd.runtime import convert, convert_tasks
from stokerd.runtime.channel import NAMESPACE, Wire
from stokerd.runtime.cri_events import ContainerEvents
from stokerd.runtime.pod_types import ContainerEvent
from stokerd.runtime.task_types import Mount
from stokerd.runtime.types import (
    ContentInfo,
    Descriptor,
    ImageEvent,
    ImageRecord,
    Ingest,
    Lease,
    LeaseResource,
    SnapshotInfo,
    Usage,
)

_CHUNK = 1 << 20
"""gRPC servers take messages of up to 4 MiB unless told otherwise; containerd takes 16."""


class NativeContent:
    """`protocol.ContentStore` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = ContentStub(wire.channel)

    async def info(self, digest: str) -> ContentInfo | None:
        try:
            answer = await self._wire.unary("content.Info", self._stub.Info, content_pb2.InfoRequest(digest=digest))
        except RuntimeNotFound:
            return None
        return convert.content_info(answer.info)

    async def list(self) -> tuple[ContentInfo, ...]:
        found: list[ContentInfo] = []
        async for answer in self._wire.stream("content.List", self._stub.List, content_pb2.ListContentRequest()):
            found += map(convert.content_info, answer.info)
        return tuple(found)

    async def read(self, digest: str, *, limit: int = 8 << 20) -> bytes:
        body = bytearray()
        request = content_pb2.ReadContentRequest(digest=digest)
        async with aclosing(self._wire.stream("content.Read", self._stub.Read, request)) as answers:
            async for answer in answers:
                body += answer.data
                if len(body) > limit:
                    raise RuntimeInvalid(
                        f"{digest} is larger than the {limit} bytes that are read", call="content.Read"
                    )
        return bytes(body)

    async def read_at(self, digest: str, offset: int, size: int) -> bytes:
        body = bytearray()
        request = content_pb2.ReadContentRequest(digest=digest, offset=offset, size=size)
        async with aclosing(self._wire.stream("content.Read", self._stub.Read, request)) as answers:
            async for answer in answers:
                body += answer.data
        return bytes(body)

    async def ingests(self) -> tuple[Ingest, ...]:
        answer = await self._wire.unary(
            "content.ListStatuses", self._stub.ListStatuses, content_pb2.ListStatusesRequest()
        )
        return tuple(map(convert.ingest, answer.statuses))

    async def abort(self, ref: str) -> None:
        try:
            await self._wire.unary("content.Abort", self._stub.Abort, content_pb2.AbortRequest(ref=ref))
        except RuntimeNotFound:
            return

    async def delete(self, digest: str) -> None:
        try:
            await self._wire.unary("content.Delete", self._stub.Delete, content_pb2.DeleteContentRequest(digest=digest))
        except RuntimeNotFound:
            return

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
        if digest:
            there = await self._label(digest, labels or {}, lease)
            if there is not None:
                return there
        found = hashlib.sha256()
        requests = _write_requests(ref, chunks, size, digest, labels or {}, found)
        try:
            written = await self._wire.exchange("content.Write", self._stub.Write, requests, lease=lease)
        except RuntimeAlreadyExists:
            there = await self._label(digest or f"sha256:{found.hexdigest()}", labels or {}, lease)
            if there is None:
                raise
            await self.abort(ref)
            return there
        info = await self.info(written.digest) if written is not None else None
        if info is None:
            raise RuntimeUnavailable(f"containerd ended the write of {ref} before its end", call="content.Write")
        return info

    async def _label(self, digest: str, labels: Mapping[str, str], lease: str | None) -> ContentInfo | None:
        """Return a blob that is there, with these labels added; None when it is not. A lease holds what it labels."""
        info = await self.info(digest)
        if info is None:
            return None
        request = content_pb2.UpdateRequest(info=content_pb2.Info(digest=digest, labels={**info.labels, **labels}))
        request.update_mask.paths.extend(f"labels.{key}" for key in labels)
        if not labels:
            return info
        try:
            answer = await self._wire.unary("content.Update", self._stub.Update, request, lease=lease)
        except RuntimeNotFound:
            return None
        return convert.content_info(answer.info)


async def _write_requests(
    ref: str, chunks: AsyncIterable[bytes], size: int, digest: str, labels: Mapping[str, str], found: hashlib._Hash
) -> AsyncIterator[content_pb2.WriteContentRequest]:
    """One message for each MiB, and the one that ends the write. The first offset, 0, begins an old ingest anew."""
    offset = 0
    async for chunk in chunks:
        for start in range(0, len(chunk), _CHUNK):
            data = chunk[start : start + _CHUNK]
            yield content_pb2.WriteContentRequest(
                action=content_pb2.WRITE, ref=ref, total=size, expected=digest, offset=offset, data=data
            )
            offset += len(data)
            found.update(data)
    yield content_pb2.WriteContentRequest(
        action=content_pb2.COMMIT, ref=ref, total=size or offset, expected=digest, offset=offset, labels=labels
    )


class NativeImages:
    """`protocol.ImageStore` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = ImagesStub(wire.channel)

    async def get(self, name: str) -> ImageRecord | None:
        wire = await self._get(name)
        return convert.image_record(wire) if wire is not None else None

    async def list(self) -> tuple[ImageRecord, ...]:
        answer = await self._wire.unary("images.List", self._stub.List, images_pb2.ListImagesRequest())
        return tuple(map(convert.image_record, answer.images))

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> ImageRecord:
        # The record is sent back whole although the mask names labels alone: containerd 1.7 to 2.1 follow the target's
        # pointer without looking and die, with every client's calls, when it is missing.
        image = await self._get(name)
        if image is None:
            raise RuntimeNotFound(f"containerd has no image {name!r}", call="images.Update")
        request = images_pb2.UpdateImageRequest(image=image)
        for key, value in labels.items():
            request.update_mask.paths.append(f"labels.{key}")
            if value is None:
                request.image.labels.pop(key, None)
            else:
                request.image.labels[key] = value
        answer = await self._wire.unary("images.Update", self._stub.Update, request)
        return convert.image_record(answer.image)

    async def put(self, name: str, target: Descriptor, labels: Mapping[str, str]) -> ImageRecord:
        wire = descriptor_pb2.Descriptor(media_type=target.media_type, digest=target.digest, size=target.size)
        image = images_pb2.Image(name=name, target=wire, labels=labels)
        try:
            made = await self._wire.unary(
                "images.Create", self._stub.Create, images_pb2.CreateImageRequest(image=image)
            )
        except RuntimeAlreadyExists:
            request = images_pb2.UpdateImageRequest(image=image)  # without a mask: as a whole
            changed = await self._wire.unary("images.Update", self._stub.Update, request)
            return convert.image_record(changed.image)
        return convert.image_record(made.image)

    async def delete(self, name: str, *, sync: bool = True) -> None:
        try:
            await self._wire.unary(
                "images.Delete",
                self._stub.Delete,
                images_pb2.DeleteImageRequest(name=name, sync=sync),
                timeout=self._wire.gc_timeout,
            )
        except RuntimeNotFound:
            return

    async def _get(self, name: str) -> images_pb2.Image | None:
        try:
            answer = await self._wire.unary("images.Get", self._stub.Get, images_pb2.GetImageRequest(name=name))
        except RuntimeNotFound:
            return None
        return answer.image


class NativeSnapshots:
    """`protocol.Snapshots` over one of containerd's snapshotters."""

    def __init__(self, wire: Wire, snapshotter: str) -> None:
        self._wire = wire
        self._stub = SnapshotsStub(wire.channel)
        self.snapshotter = snapshotter

    async def stat(self, name: str) -> SnapshotInfo | None:
        request = snapshots_pb2.StatSnapshotRequest(snapshotter=self.snapshotter, key=name)
        try:
            answer = await self._wire.unary("snapshots.Stat", self._stub.Stat, request)
        except RuntimeNotFound:
            return None
        return convert.snapshot_info(answer.info)

    async def list(self) -> tuple[SnapshotInfo, ...]:
        found: list[SnapshotInfo] = []
        request = snapshots_pb2.ListSnapshotsRequest(snapshotter=self.snapshotter)
        async for answer in self._wire.stream("snapshots.List", self._stub.List, request):
            found += map(convert.snapshot_info, answer.info)
        return tuple(found)

    async def usage(self, name: str) -> Usage | None:
        request = snapshots_pb2.UsageRequest(snapshotter=self.snapshotter, key=name)
        try:
            answer = await self._wire.unary("snapshots.Usage", self._stub.Usage, request, timeout=self._wire.gc_timeout)
        except RuntimeNotFound:
            return None
        return Usage(answer.size, answer.inodes)

    async def prepare(
        self, key: str, parent: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> tuple[Mount, ...]:
        request = snapshots_pb2.PrepareSnapshotRequest(
            snapshotter=self.snapshotter, key=key, parent=parent, labels=labels or {}
        )
        answer = await self._wire.unary("snapshots.Prepare", self._stub.Prepare, request, lease=lease)
        return tuple(map(convert_tasks.mount, answer.mounts))

    async def view(
        self, key: str, parent: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> tuple[Mount, ...]:
        request = snapshots_pb2.ViewSnapshotRequest(
            snapshotter=self.snapshotter, key=key, parent=parent, labels=labels or {}
        )
        answer = await self._wire.unary("snapshots.View", self._stub.View, request, lease=lease)
        return tuple(map(convert_tasks.mount, answer.mounts))

    async def mounts(self, key: str) -> tuple[Mount, ...]:
        request = snapshots_pb2.MountsRequest(snapshotter=self.snapshotter, key=key)
        answer = await self._wire.unary("snapshots.Mounts", self._stub.Mounts, request)
        return tuple(map(convert_tasks.mount, answer.mounts))

    async def commit(
        self, key: str, name: str, *, labels: Mapping[str, str] | None = None, lease: str | None = None
    ) -> None:
        request = snapshots_pb2.CommitSnapshotRequest(
            snapshotter=self.snapshotter, name=name, key=key, labels=labels or {}
        )
        await self._wire.unary("snapshots.Commit", self._stub.Commit, request, lease=lease)

    async def remove(self, name: str) -> None:
        request = snapshots_pb2.RemoveSnapshotRequest(snapshotter=self.snapshotter, key=name)
        try:
            await self._wire.unary("snapshots.Remove", self._stub.Remove, request, timeout=self._wire.gc_timeout)
        except RuntimeNotFound:
            return

    async def set_labels(self, name: str, labels: Mapping[str, str | None]) -> SnapshotInfo:
        stat = snapshots_pb2.StatSnapshotRequest(snapshotter=self.snapshotter, key=name)
        info = (await self._wire.unary("snapshots.Stat", self._stub.Stat, stat)).info
        request = snapshots_pb2.UpdateSnapshotRequest(snapshotter=self.snapshotter, info=info)
        for key, value in labels.items():
            request.update_mask.paths.append(f"labels.{key}")
            if value is None:
                request.info.labels.pop(key, None)
            else:
                request.info.labels[key] = value
        answer = await self._wire.unary("snapshots.Update", self._stub.Update, request)
        return convert.snapshot_info(answer.info)


class NativeLeases:
    """`protocol.Leases` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = LeasesStub(wire.channel)

    async def create(self, lease_id: str, labels: Mapping[str, str]) -> Lease:
        request = leases_pb2.CreateRequest(id=lease_id, labels=dict(labels))
        answer = await self._wire.unary("leases.Create", self._stub.Create, request)
        return convert.lease(answer.lease)

    async def list(self) -> tuple[Lease, ...]:
        answer = await self._wire.unary("leases.List", self._stub.List, leases_pb2.ListRequest())
        return tuple(map(convert.lease, answer.leases))

    async def resources(self, lease_id: str) -> tuple[LeaseResource, ...]:
        request = leases_pb2.ListResourcesRequest(id=lease_id)
        answer = await self._wire.unary("leases.ListResources", self._stub.ListResources, request)
        return tuple(map(convert.lease_resource, answer.resources))

    async def delete(self, lease_id: str, *, sync: bool = True) -> None:
        request = leases_pb2.DeleteRequest(id=lease_id, sync=sync)
        try:
            await self._wire.unary("leases.Delete", self._stub.Delete, request, timeout=self._wire.gc_timeout)
        except RuntimeNotFound:
            return


class NativeEvents:
    """`protocol.Events` over containerd."""

    def __init__(self, wire: Wire, version: tuple[int, int] = (0, 0)) -> None:
        self._wire = wire
        self._stub = EventsStub(wire.channel)
        self._containers = ContainerEvents(wire, version)

    def containers(self) -> AsyncGenerator[ContainerEvent, None]:
        return self._containers.stream()

    async def images(self) -> AsyncGenerator[ImageEvent, None]:
        request = events_pb2.SubscribeRequest(filters=[f'namespace=={NAMESPACE},topic~="^/images/"'])
        stream = self._wire.stream("events.Subscribe", self._stub.Subscribe, request, unlimited=True)
        async with aclosing(stream) as envelopes:
            async for envelope in envelopes:
                event = _image_event(envelope.topic, envelope.event.value)
                if event is not None:
                    yield event
        raise RuntimeUnavailable("containerd ended the event stream", call="events.Subscribe")


def _image_event(topic: str, body: bytes) -> ImageEvent | None:
    """Decode one event; the type's URL is left aside, since Go writes it without the usual prefix."""
    if topic == "/images/create":
        return ImageEvent("create", image_pb2.ImageCreate.FromString(body).name)
    if topic == "/images/update":
        return ImageEvent("update", image_pb2.ImageUpdate.FromString(body).name)
    if topic == "/images/delete":
        return ImageEvent("delete", image_pb2.ImageDelete.FromString(body).name)
    return None
