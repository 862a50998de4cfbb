"""The manifest of a checkpoint: what it consists of. Pure.

It is written last, so its presence means that all else is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from stokerd.checkpoints.errors import CheckpointDamaged

VERSION = 1
IDENTITY = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""What an id of a checkpoint may be: it becomes a directory and a part of names in containerd."""


class Part(msgspec.Struct, frozen=True):
    """One file of the checkpoint, by its path in the checkpoint's directory."""

    path: str
    size: int
    digest: str


class Root(msgspec.Struct, frozen=True):
    """The root filesystem: a committed snapshot of containerd's on the image's own; ``digest`` is of its tree."""

    snapshot: str
    parent: str
    snapshotter: str
    digest: str
    bytes: int
    entries: int


class Source(msgspec.Struct, frozen=True):
    """What was checkpointed; ``image_digest`` is the image's id, so that its name may change."""

    container_id: str
    container_name: str
    pod_id: str
    pod_name: str
    pod_namespace: str
    image: str
    image_digest: str
    runtime: str


class Node(msgspec.Struct, frozen=True):
    """The machine and the programs that it was made with; a restore wants the like."""

    kernel: str
    architecture: str
    cpu_features: str
    criu: str
    runc: str
    containerd: str


class Manifest(msgspec.Struct, frozen=True):
    """Everything about a complete checkpoint. ``frozen_ms`` is how long the container stood still; ``shm`` says that
    the pod's /dev/shm is kept below ``shm/``. With a ``group`` it is complete only when that is."""

    version: int
    id: str
    name: str
    created_at: datetime
    source: Source
    node: Node
    root: Root
    parts: tuple[Part, ...]
    shm_digest: str = ""
    frozen_ms: float = 0.0
    left_running: bool = True
    tcp: str = "refuse"
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    group: str = ""
    external_unix_sockets: bool = False

    @property
    def bytes(self) -> int:
        """What it takes on the disks, snapshot included."""
        return sum(part.size for part in self.parts) + self.root.bytes


class Together(msgspec.Struct, frozen=True):
    """The file that makes all members of a group complete: it is written after the last of their manifests."""

    id: str
    name: str
    created_at: datetime
    members: tuple[str, ...]


class Group(msgspec.Struct, frozen=True):
    """Checkpoints taken in one freeze: the containers of a pod. They are complete together, and go together."""

    id: str
    name: str
    members: tuple[Manifest, ...]


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(text: bytes, source: str) -> Manifest:
    """Read a manifest; CheckpointDamaged when it is none, or one of a version that is not known."""
    try:
        about = msgspec.json.decode(text, type=_Versioned)
        if about.version != VERSION:
            raise CheckpointDamaged(
                f"{source}: version {about.version} of the format is not known",
                hint="it was written by a newer stokerd; use that one",
            )
        found = msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise CheckpointDamaged(f"{source}: no manifest of a checkpoint: {error}") from None
    bad = [part.path for part in found.parts if not _inside(part.path)]
    if bad or not IDENTITY.fullmatch(found.id) or (found.group and not IDENTITY.fullmatch(found.group)):
        raise CheckpointDamaged(f"{source}: names what is not in it", problems=tuple(bad))
    return found


def decode_group(text: bytes, source: str) -> Together:
    """Read the file of a group; CheckpointDamaged when it is none."""
    try:
        found = msgspec.json.decode(text, type=Together)
    except msgspec.MsgspecError as error:
        raise CheckpointDamaged(f"{source}: no group of checkpoints: {error}") from None
    if not all(IDENTITY.fullmatch(each) for each in (found.id, *found.members)):
        raise CheckpointDamaged(f"{source}: names what is no checkpoint")
    return found


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def _inside(path: str) -> bool:
    return bool(path) and not path.startswith("/") and all(step not in {"", ".", ".."} for step in path.split("/"))


def differences(manifest: Manifest, found: Mapping[str, tuple[int, str]]) -> tuple[str, ...]:
    """Compare the parts with what is there (size and digest by path; the digest may be "" when the size differs)."""
    problems: list[str] = []
    for part in manifest.parts:
        there = found.get(part.path)
        if there is None:
            problems.append(f"{part.path} is missing")
        elif there[0] != part.size:
            problems.append(f"{part.path} has {there[0]} bytes instead of {part.size}")
        elif there[1] != part.digest:
            problems.append(f"{part.path} has other content than was written")
    known = {part.path for part in manifest.parts}
    problems += [f"{path} does not belong to it" for path in sorted(found.keys() - known)]
    return tuple(problems)
