"""containerd's stores in memory: content, ingests, image records, snapshots, leases, and what collects garbage.

No asyncio in here: every method is one transaction. The garbage collector follows the same labels as containerd's.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from stokerd.errors import RuntimeAlreadyExists, RuntimeFailure, RuntimeInvalid, RuntimeNoSpace, RuntimeNotFound
from stokerd.runtime.task_types import Mount
from stokerd.runtime.types import (
    GC_EXPIRE_LABEL,
    ContentInfo,
    Descriptor,
    ImageEvent,
    ImageRecord,
    Ingest,
    Lease,
    LeaseResource,
    SnapshotInfo,
    SnapshotKind,
    Usage,
)

GC_ROOT_LABEL = "containerd.io/gc.root"
_GC_CONTENT = "containerd.io/gc.ref.content"
_GC_SNAPSHOT = "containerd.io/gc.ref.snapshot."
_TEMPORARY_LEASE = timedelta(hours=24)


class DiskState(NamedTuple):
    """State of the file system under containerd's root; the fields are those of the image room's ``FileSystem``."""

    path: str
    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int


@dataclass(slots=True)
class Disk:
    """The file system that holds everything; ``other_bytes`` and ``other_inodes`` are what somebody else took."""

    path: str
    total_bytes: int
    total_inodes: int
    used_bytes: int = 0
    used_inodes: int = 0
    other_bytes: int = 0
    other_inodes: int = 0

    def state(self) -> DiskState:
        return DiskState(
            self.path,
            self.total_bytes,
            max(self.total_bytes - self.used_bytes - self.other_bytes, 0),
            self.total_inodes,
            max(self.total_inodes - self.used_inodes - self.other_inodes, 0),
        )

    def take(self, size: int, inodes: int, path: str) -> None:
        """Write to *path*; RuntimeNoSpace when there is not so much left."""
        free = self.state()
        if size > free.free_bytes or (self.total_inodes and inodes > free.free_inodes):
            raise RuntimeNoSpace(f"write {self.path}/{path}: no space left on device", status="UNKNOWN")
        self.used_bytes += size
        self.used_inodes += inodes

    def give(self, size: int, inodes: int) -> None:
        self.used_bytes -= size
        self.used_inodes -= inodes


@dataclass(slots=True)
class Blob:
    digest: str
    size: int
    labels: dict[str, str]
    created_at: datetime
    body: bytes | None
    """None for layers, of which only the size is known."""

    def info(self) -> ContentInfo:
        return ContentInfo(self.digest, self.size, dict(self.labels), self.created_at)


@dataclass(slots=True, eq=False)
class Writing:
    """An ingest."""

    ref: str
    total: int
    started_at: datetime
    updated_at: datetime
    offset: int = 0

    def status(self) -> Ingest:
        return Ingest(self.ref, self.offset, self.total, "", self.started_at, self.updated_at)


@dataclass(slots=True)
class Snapshot:
    """``directory`` holds what containerd's overlay keeps of it: ``fs`` and ``work``."""

    info: SnapshotInfo
    usage: Usage
    directory: str


@dataclass(slots=True)
class LeaseState:
    lease: Lease
    resources: set[LeaseResource] = field(default_factory=set)


class Store:
    """Everything that survives a crash of containerd."""

    def __init__(self, disk: Disk, clock: Callable[[], datetime], snapshotter: str, snapshot_dir: str = "") -> None:
        """With *snapshot_dir*, snapshots that are written to have real directories below it."""
        self.disk = disk
        self.real = bool(snapshot_dir)
        self.snapshot_dir = snapshot_dir or f"{disk.path}/io.containerd.snapshotter.v1.{snapshotter}/snapshots"
        self.clock = clock
        self.snapshotter = snapshotter
        self.blobs: dict[str, Blob] = {}
        self.ingests: dict[str, Writing] = {}
        self.records: dict[str, ImageRecord] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.leases: dict[str, LeaseState] = {}
        self.on_event: Callable[[ImageEvent], None] = lambda _event: None
        self.held_snapshots: Callable[[], Iterable[str]] = tuple
        """Which snapshots containers are made on; the collector leaves those alone."""
        self._numbers = itertools.count(1)
        self._directories = itertools.count(1)

    # ------------------------------------------------------------------------------------------ content

    def open_ingest(self, ref: str, total: int, lease: str) -> Writing:
        """Begin an ingest, or go on with the one that is there."""
        self.hold(lease, "ingests", ref)
        now = self.clock()
        return self.ingests.setdefault(ref, Writing(ref, total, now, now))

    def write(self, ingest: Writing, size: int) -> None:
        """Append *size* bytes. An ingest that was thrown away meanwhile is noticed when it is committed."""
        if self.ingests.get(ingest.ref) is ingest:
            self.disk.take(size, 0, f"io.containerd.content.v1.content/ingest/{ingest.ref}/data")
        ingest.offset += size
        ingest.updated_at = self.clock()

    def commit(self, ingest: Writing, digest: str, labels: Mapping[str, str], body: bytes | None, lease: str) -> None:
        """Turn an ingest into a blob."""
        if self.ingests.get(ingest.ref) is not ingest:
            raise RuntimeFailure(
                f'failed commit on ref "{ingest.ref}": rename {self.disk.path}/io.containerd.content.v1.content/ingest/'
                f"{ingest.ref}/data: no such file or directory",
                status="UNKNOWN",
            )
        self.hold(lease, "content", digest)
        self.leases[lease].resources.discard(LeaseResource("ingests", ingest.ref))
        del self.ingests[ingest.ref]
        self.disk.used_inodes += 1
        self.blobs[digest] = Blob(digest, ingest.offset, dict(labels), self.clock(), body)

    def put_blob(self, ref: str, digest: str, body: bytes, labels: Mapping[str, str], lease: str | None) -> ContentInfo:
        """Turn an ingest that was written by hand into a blob, or add the labels to the one that is there."""
        self.abort(ref)
        if lease:
            self.hold(lease, "content", digest)
        if digest in self.blobs:
            self.label(digest, labels)
            return self.blobs[digest].info()
        self.disk.take(len(body), 1, f"io.containerd.content.v1.content/ingest/{ref}/data")
        blob = self.blobs[digest] = Blob(digest, len(body), dict(labels), self.clock(), body)
        return blob.info()

    def abort(self, ref: str) -> None:
        ingest = self.ingests.pop(ref, None)
        if ingest is not None:
            self.disk.give(ingest.offset, 0)

    def delete_blob(self, digest: str) -> None:
        blob = self.blobs.pop(digest, None)
        if blob is not None:
            self.disk.give(blob.size, 1)

    def label(self, digest: str, labels: Mapping[str, str]) -> None:
        """Add labels to a blob."""
        if digest not in self.blobs:
            raise RuntimeNotFound(f"content {digest}: not found", status="NOT_FOUND")
        self.blobs[digest].labels.update(labels)

    def body(self, digest: str) -> bytes | None:
        """Return the content of a document, None for what is not there."""
        blob = self.blobs.get(digest)
        return blob.body if blob is not None else None

    # ------------------------------------------------------------------------------------------ images

    def put_record(self, name: str, target: Descriptor, labels: Mapping[str, str]) -> ImageRecord:
        """Create the record, or give the one that is there this target and exactly these labels."""
        now, old = self.clock(), self.records.get(name)
        created = old.created_at if old is not None else now
        record = ImageRecord(name, target, dict(labels), created, now)
        self.records[name] = record
        self.on_event(ImageEvent("create" if old is None else "update", name))
        return record

    def set_labels(self, name: str, labels: Mapping[str, str | None]) -> ImageRecord:
        record = self.records.get(name)
        if record is None:
            raise RuntimeNotFound(f"containerd has no image {name!r}", call="images.Update")
        merged = {**record.labels, **{key: value for key, value in labels.items() if value is not None}}
        for key in labels:
            if labels[key] is None:
                merged.pop(key, None)
        return self.put_record(name, record.target, merged)

    def delete_record(self, name: str) -> None:
        if self.records.pop(name, None) is not None:
            self.on_event(ImageEvent("delete", name))

    # ------------------------------------------------------------------------------------------ snapshots

    def prepare(self, chain_id: str, parent: str, lease: str) -> str:
        """Begin to unpack into an active snapshot; return its key."""
        key = f"extract-{next(self._numbers):09d}-mem {chain_id}"
        self.hold(lease, f"snapshots/{self.snapshotter}", key)
        labels = {"containerd.io/snapshot.ref": chain_id}
        self._add_snapshot(key, parent, "active", labels)
        return key

    def make_snapshot(
        self, key: str, parent: str, kind: SnapshotKind, labels: Mapping[str, str], lease: str | None
    ) -> tuple[Mount, ...]:
        """Make a snapshot that somebody writes to, or a view; return how to mount it."""
        if key in self.snapshots:
            raise RuntimeAlreadyExists(f"snapshot {key}: already exists", status="ALREADY_EXISTS")
        if parent and self.snapshots.get(parent) is None:
            raise RuntimeNotFound(f"parent snapshot {parent} does not exist: not found", status="NOT_FOUND")
        if parent and self.snapshots[parent].info.kind != "committed":
            raise RuntimeInvalid(f"parent {parent} is not committed: invalid argument", status="INVALID_ARGUMENT")
        if lease:
            self.hold(lease, f"snapshots/{self.snapshotter}", key)
        snapshot = self._add_snapshot(key, parent, kind, labels)
        if self.real:
            for name in ("fs", "work"):
                Path(snapshot.directory, name).mkdir(parents=True)
        return self.mounts(key)

    def _add_snapshot(self, key: str, parent: str, kind: SnapshotKind, labels: Mapping[str, str]) -> Snapshot:
        info = SnapshotInfo(key, parent, kind, self.clock(), dict(labels))
        self.snapshots[key] = Snapshot(info, Usage(4096, 1), f"{self.snapshot_dir}/{next(self._directories)}")
        self.disk.used_bytes += 4096
        self.disk.used_inodes += 1
        return self.snapshots[key]

    def mounts(self, key: str) -> tuple[Mount, ...]:
        """Return how containerd's overlay would mount it."""
        snapshot = self._active(key)
        if snapshot.info.kind == "committed":
            raise RuntimeInvalid(f"snapshot {key} is committed: failed precondition", status="FAILED_PRECONDITION")
        lowers = [f"{self.snapshots[name].directory}/fs" for name in self._lineage(snapshot.info.parent)]
        active = snapshot.info.kind == "active"
        if not lowers or (not active and len(lowers) == 1):
            source = lowers[0] if lowers else f"{snapshot.directory}/fs"
            return (Mount("bind", source, ("rw" if active else "ro", "rbind")),)
        own = (f"workdir={snapshot.directory}/work", f"upperdir={snapshot.directory}/fs") if active else ()
        return (Mount("overlay", "overlay", ("index=off", *own, f"lowerdir={':'.join(lowers)}")),)

    def finish_snapshot(self, key: str, name: str, labels: Mapping[str, str], lease: str | None) -> None:
        """Commit what `make_snapshot` made."""
        snapshot = self._active(key)
        if snapshot.info.kind != "active":
            raise RuntimeInvalid(f"snapshot {key} is not active: failed precondition", status="FAILED_PRECONDITION")
        if name in self.snapshots:
            raise RuntimeAlreadyExists(f"snapshot {name}: already exists", status="ALREADY_EXISTS")
        if lease:
            self.hold(lease, f"snapshots/{self.snapshotter}", name)
        del self.snapshots[key]
        self._release(key)
        snapshot.info = replace(snapshot.info, name=name, kind="committed", labels=dict(labels))
        self.snapshots[name] = snapshot

    def discard_snapshot(self, name: str) -> None:
        """Remove one that nothing is made on; absent is no error."""
        if any(other.info.parent == name for other in self.snapshots.values()):
            raise RuntimeInvalid(
                f"cannot remove snapshot with child: {name}: failed precondition", status="FAILED_PRECONDITION"
            )
        self.remove_snapshot(name)

    def label_snapshot(self, name: str, labels: Mapping[str, str | None]) -> SnapshotInfo:
        snapshot = self._active(name)
        merged = {key: value for key, value in {**snapshot.info.labels, **labels}.items() if value is not None}
        snapshot.info = replace(snapshot.info, labels=merged)
        return snapshot.info

    def grow(self, key: str, size: int, inodes: int) -> None:
        snapshot = self._active(key)
        self.disk.take(size, inodes, f"io.containerd.snapshotter.v1.{self.snapshotter}/snapshots/{key}/fs")
        snapshot.usage = Usage(snapshot.usage.bytes + size, snapshot.usage.inodes + inodes)

    def commit_snapshot(self, key: str, name: str, lease: str) -> None:
        snapshot = self._active(key)
        self.hold(lease, f"snapshots/{self.snapshotter}", name)
        self.leases[lease].resources.discard(LeaseResource(f"snapshots/{self.snapshotter}", key))
        del self.snapshots[key]
        snapshot.info = replace(snapshot.info, name=name, kind="committed")
        self.snapshots[name] = snapshot

    def remove_snapshot(self, key: str) -> None:
        snapshot = self.snapshots.pop(key, None)
        if snapshot is not None:
            self.disk.give(snapshot.usage.bytes, snapshot.usage.inodes)
            if self.real:
                shutil.rmtree(snapshot.directory, ignore_errors=True)
        self._release(key)

    def _release(self, key: str) -> None:
        for state in self.leases.values():
            state.resources.discard(LeaseResource(f"snapshots/{self.snapshotter}", key))

    def _active(self, key: str) -> Snapshot:
        if key not in self.snapshots:
            raise RuntimeNotFound(f"snapshot {key}: not found", status="NOT_FOUND")
        return self.snapshots[key]

    # ------------------------------------------------------------------------------------------ leases

    def create_lease(self, lease_id: str, labels: Mapping[str, str]) -> Lease:
        if not lease_id:
            raise RuntimeInvalid("lease id must not be empty", status="INVALID_ARGUMENT", call="leases.Create")
        if lease_id in self.leases:
            raise RuntimeAlreadyExists(
                f'lease "{lease_id}": already exists', status="ALREADY_EXISTS", call="leases.Create"
            )
        lease = Lease(lease_id, dict(labels), self.clock())
        self.leases[lease_id] = LeaseState(lease)
        return lease

    def temporary_lease(self) -> str:
        """Create a lease as a pull takes it when it was given none."""
        expires = (self.clock() + _TEMPORARY_LEASE).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.create_lease(f"{next(self._numbers):09d}-mem", {GC_EXPIRE_LABEL: expires}).id

    def hold(self, lease: str, kind: str, name: str) -> None:
        """Let the lease hold a thing; RuntimeNotFound when the lease is gone."""
        if lease not in self.leases:
            raise RuntimeNotFound("lease does not exist: not found", status="NOT_FOUND")
        self.leases[lease].resources.add(LeaseResource(kind, name))

    def held_by(self, lease_id: str) -> tuple[LeaseResource, ...]:
        state = self.leases.get(lease_id)
        if state is None:
            raise RuntimeNotFound(f'lease "{lease_id}": not found', status="NOT_FOUND", call="leases.ListResources")
        return tuple(sorted(state.resources, key=lambda entry: (entry.type, entry.id)))

    # ------------------------------------------------------------------------------------------ garbage

    def collect(self) -> None:
        """Remove everything that neither a record nor a lease holds."""
        for lease_id in [name for name, state in self.leases.items() if self._expired(state.lease)]:
            del self.leases[lease_id]
        blobs, snapshots = self._reachable()
        held = {entry.id for state in self.leases.values() for entry in state.resources if entry.type == "ingests"}
        for digest in [digest for digest in self.blobs if digest not in blobs]:
            self.delete_blob(digest)
        for name in [name for name in self.snapshots if name not in snapshots]:
            self.remove_snapshot(name)
        for ref in [ref for ref in self.ingests if ref not in held]:
            self.abort(ref)

    def _expired(self, lease: Lease) -> bool:
        text = lease.labels.get(GC_EXPIRE_LABEL)
        return text is not None and datetime.fromisoformat(text) <= self.clock()

    def _reachable(self) -> tuple[set[str], set[str]]:
        resources = [entry for state in self.leases.values() for entry in state.resources]
        roots = [record.target.digest for record in self.records.values()]
        roots += [entry.id for entry in resources if entry.type == "content"]
        roots += [digest for digest, blob in self.blobs.items() if GC_ROOT_LABEL in blob.labels]
        tops = [entry.id for entry in resources if entry.type.startswith("snapshots/")]
        tops += self.held_snapshots()
        tops += [name for name, snapshot in self.snapshots.items() if GC_ROOT_LABEL in snapshot.info.labels]
        blobs: set[str] = set()
        while roots:
            blob = self.blobs.get(roots.pop())
            if blob is None or blob.digest in blobs:
                continue
            blobs.add(blob.digest)
            roots += _references(blob.labels, _GC_CONTENT)
            tops += _references(blob.labels, _GC_SNAPSHOT + self.snapshotter)
        return blobs, self._with_parents(tops)

    def _with_parents(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for name in names:
            found.update(self._lineage(name))
        return found

    def _lineage(self, name: str) -> list[str]:
        """Return a snapshot and what it is made on, the topmost first."""
        found: list[str] = []
        while name and name in self.snapshots:
            found.append(name)
            name = self.snapshots[name].info.parent
        return found


def _references(labels: Mapping[str, str], prefix: str) -> list[str]:
    return [value for key, value in labels.items() if key == prefix or key.startswith(f"{prefix}.")]
