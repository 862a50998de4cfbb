"""Plain values that the runtime room hands out. None of them knows gRPC."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Literal

import msgspec

SnapshotKind = Literal["view", "active", "committed", "unknown"]

PIN_LABEL = "io.cri-containerd.pinned"
PIN_VALUE = "pinned"
GC_EXPIRE_LABEL = "containerd.io/gc.expire"
UNCOMPRESSED_LABEL = "containerd.io/uncompressed"


class Descriptor(msgspec.Struct, frozen=True):
    """An OCI descriptor; ``size`` in bytes."""

    media_type: str
    digest: str
    size: int


class ImageRecord(msgspec.Struct, frozen=True):
    """An image of containerd's metadata store (one name, one target)."""

    name: str
    target: Descriptor
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def pinned(self) -> bool:
        return self.labels.get(PIN_LABEL) == PIN_VALUE


class CriImage(msgspec.Struct, frozen=True):
    """What CRI says of an image: ``id`` is the config digest, ``size`` in bytes as CRI counts them."""

    id: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    pinned: bool


class RegistryAuth(msgspec.Struct, frozen=True):
    """Credentials for one pull. Its repr shows no secret."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""
    server_address: str = ""

    def __repr__(self) -> str:
        return f"RegistryAuth(server_address={self.server_address!r}, [redacted])"


class Ingest(msgspec.Struct, frozen=True):
    """A write into the content store that is not finished: bytes at ``offset`` of ``total`` (0: unknown)."""

    ref: str
    offset: int
    total: int
    expected: str = ""
    started_at: datetime | None = None
    updated_at: datetime | None = None


class ContentInfo(msgspec.Struct, frozen=True):
    """A blob of the content store; ``size`` in bytes."""

    digest: str
    size: int
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    created_at: datetime | None = None


class SnapshotInfo(msgspec.Struct, frozen=True):
    """A snapshot: committed ones of images are named by their chain id."""

    name: str
    parent: str
    kind: SnapshotKind
    created_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Usage(msgspec.Struct, frozen=True):
    """Space taken: bytes and inodes."""

    bytes: int
    inodes: int


class Lease(msgspec.Struct, frozen=True):
    """A lease protects what it names from containerd's garbage collector."""

    id: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    created_at: datetime | None = None


class LeaseResource(msgspec.Struct, frozen=True):
    """One thing that a lease holds: ``type`` is ``content``, ``ingests`` or ``snapshots/<snapshotter>``."""

    type: str
    id: str


class ImageFs(msgspec.Struct, frozen=True):
    """Where CRI says that images live, and what they take (bytes, inodes)."""

    mountpoint: str
    used_bytes: int
    used_inodes: int


class ImageEvent(msgspec.Struct, frozen=True):
    """An image record was created, updated or deleted in containerd."""

    kind: Literal["create", "update", "delete"]
    name: str


class CgroupMode(enum.StrEnum):
    """How the machine's cgroup file systems are mounted."""

    V1 = "v1"
    HYBRID = "hybrid"
    UNIFIED = "unified"
    UNKNOWN = "unknown"


class Capability(msgspec.Struct, frozen=True):
    """Whether the node can do something, and why not when it cannot."""

    name: str
    available: bool
    detail: str = ""


class RuntimeInfo(msgspec.Struct, frozen=True):
    """What was found out about the runtime behind the socket.

    ``host_root`` is the prefix under which the runtime's own paths are reached from this process: empty when both
    share a mount namespace, ``/proc/<pid>/root`` otherwise.
    """

    endpoint: str
    name: str
    version: str
    api_version: str
    pid: int
    root: str
    state: str
    host_root: str
    snapshotter: str
    storage_fs: str
    criu_version: str
    runc_version: str
    cgroup_mode: CgroupMode
    registry_config_path: str = ""
    decompressors: tuple[str, ...] = ()
    sandbox_image: str = ""
    cni_conf_dir: str = "/etc/cni/net.d"
    cni_bin_dirs: tuple[str, ...] = ("/opt/cni/bin",)
    capabilities: tuple[Capability, ...] = ()

    def version_tuple(self) -> tuple[int, int]:
        """Return (major, minor), (0, 0) when the version is not a number."""
        parts = self.version.lstrip("v").split(".")
        try:
            return int(parts[0]), int(parts[1])
        except (ValueError, IndexError):
            return 0, 0

    def capability(self, name: str) -> Capability:
        """Return the capability *name*; an unknown one is not available."""
        for entry in self.capabilities:
            if entry.name == name:
                return entry
        return Capability(name, available=False, detail="not known to this version of stokerd")
