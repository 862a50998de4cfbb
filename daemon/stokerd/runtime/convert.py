"""From messages to values. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from cri_stubs.containerd.services.content.v1 import content_pb2
from cri_stubs.containerd.services.images.v1 import images_pb2
from cri_stubs.containerd.services.leases.v1 import leases_pb2
from cri_stubs.containerd.services.snapshots.v1 import snapshots_pb2
from cri_stubs.containerd.types import descriptor_pb2
from cri_stubs.cri.v1 import runtime_pb2
from stokerd.runtime.types import (
    ContentInfo,
    CriImage,
    Descriptor,
    ImageRecord,
    Ingest,
    Lease,
    LeaseResource,
    RegistryAuth,
    SnapshotInfo,
    SnapshotKind,
)

_KINDS: dict[int, SnapshotKind] = {
    snapshots_pb2.Kind.VIEW: "view",
    snapshots_pb2.Kind.ACTIVE: "active",
    snapshots_pb2.Kind.COMMITTED: "committed",
}


def time_of(stamp: Timestamp) -> datetime | None:
    """Return the time in UTC; None for a stamp that was never set."""
    return stamp.ToDatetime(UTC) if stamp.seconds or stamp.nanos else None


def descriptor(wire: descriptor_pb2.Descriptor) -> Descriptor:
    return Descriptor(wire.media_type, wire.digest, wire.size)


def image_record(wire: images_pb2.Image) -> ImageRecord:
    return ImageRecord(
        wire.name, descriptor(wire.target), dict(wire.labels), time_of(wire.created_at), time_of(wire.updated_at)
    )


def cri_image(wire: runtime_pb2.Image) -> CriImage:
    return CriImage(wire.id, tuple(wire.repo_tags), tuple(wire.repo_digests), wire.size, wire.pinned)


def content_info(wire: content_pb2.Info) -> ContentInfo:
    return ContentInfo(wire.digest, wire.size, dict(wire.labels), time_of(wire.created_at))


def ingest(wire: content_pb2.Status) -> Ingest:
    return Ingest(wire.ref, wire.offset, wire.total, wire.expected, time_of(wire.started_at), time_of(wire.updated_at))


def snapshot_info(wire: snapshots_pb2.Info) -> SnapshotInfo:
    return SnapshotInfo(
        wire.name, wire.parent, _KINDS.get(wire.kind, "unknown"), time_of(wire.created_at), dict(wire.labels)
    )


def lease(wire: leases_pb2.Lease) -> Lease:
    return Lease(wire.id, dict(wire.labels), time_of(wire.created_at))


def lease_resource(wire: leases_pb2.Resource) -> LeaseResource:
    return LeaseResource(wire.type, wire.id)


def auth_config(auth: RegistryAuth | None) -> runtime_pb2.AuthConfig | None:
    """Return CRI's form of credentials."""
    if auth is None:
        return None
    return runtime_pb2.AuthConfig(
        username=auth.username,
        password=auth.password,
        identity_token=auth.identity_token,
        registry_token=auth.registry_token,
        server_address=auth.server_address,
    )
