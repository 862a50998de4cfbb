"""Objects about checkpoints, clones and commits, as the local API of stokerd speaks them.

What takes long is an operation: asked for with a POST, which answers at once, and followed to its end. Times are RFC
3339 in UTC, durations seconds, sizes bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import field

from stoker.objects.containers import EnvVar
from stoker.objects.images import InlineAuth, Request, Wire

OperationKind = Literal["Checkpoint", "Clone", "Restore", "Commit", "Verify", "Export", "Import", "Push", "Pull"]
OperationPhase = Literal["Pending", "Running", "Succeeded", "Failed"]
Tcp = Literal["refuse", "close", "established"]
"""Established connections: a reason to refuse, left out of the checkpoint, or kept with their state."""
Mode = Literal["eager", "lazy", "auto"]
"""How memory comes back: before the clone runs, after it, or the one that suits its size."""
Memory = Literal["eager", "loading", "loaded", "lost"]
ClonePhase = Literal["Running", "Paused", "Stopped"]
Compression = Literal["gzip", "zstd"]


# ---------------------------------------------------------------------------------------------- what is asked for


class CheckpointRequest(Request):
    """``POST /v1/checkpoints``: keep memory and root filesystem of containers as they are at one instant."""

    pod: str
    """A pod, a container, or a clone: a name, ``namespace/name``, an id, or a unique beginning of an id."""
    containers: list[str] = field(default_factory=list)
    """Of the pod, by name; empty: all that run. Several are frozen together."""
    name: str = ""
    """A name for people, under which the checkpoint can be found again."""
    request: str = ""
    """The same again with the same content is the same operation, as long as that is known; with another content it is
    a Conflict. Empty: stokerd makes one."""
    stop: bool = False
    """End the containers, instead of letting them run on."""
    tcp: Tcp | None = None
    """None: the daemon's setting."""
    file_locks: bool = True
    external_unix_sockets: bool = False
    timeout_seconds: float | None = None
    """For the dump: so long the containers may stand. None: the daemon's setting."""
    labels: dict[str, str] = field(default_factory=dict)


class CloneFile(Request):
    """A file that a clone gets, before it runs."""

    path: str
    content: bytes
    """Base64 in JSON."""

    def __repr__(self) -> str:
        return f"CloneFile(path={self.path!r}, {len(self.content)} bytes)"


class CloneRequest(Request):
    """``POST /v1/clones``: bring the container of a checkpoint back, with a network of its own, as often as asked."""

    checkpoint: str
    """Its id, or the name that only one has."""
    count: int = 1
    request: str = ""
    """As in CheckpointRequest."""
    hostname: str = ""
    mode: Mode = "auto"
    env: list[EnvVar] = field(default_factory=list)
    """Handed to the hook, and written where programs of the clone can read them. They are in no log, no journal and
    no answer."""
    files: list[CloneFile] = field(default_factory=list)
    hook: list[str] = field(default_factory=list)
    """A command that is run in each clone once it runs."""
    labels: dict[str, str] = field(default_factory=dict)
    """Of each clone."""


class RestoreRequest(Request):
    """``POST /v1/checkpoints/{id}/restore``: bring the container back in the place where it was."""

    mode: Mode = "auto"
    request: str = ""
    """As in CheckpointRequest."""


class CommitRequest(Request):
    """``POST /v1/commits``: make an image of a container's root filesystem."""

    container: str
    """A pod with one container, a container, or a clone, as in CheckpointRequest."""
    image: str
    """The name that it gets."""
    request: str = ""
    """As in CheckpointRequest."""
    changes: list[str] = field(default_factory=list)
    """As lines of a Dockerfile: ``ENV A=B``, ``CMD ["serve"]``."""
    author: str = ""
    message: str = ""
    squash: bool = False
    """One layer, instead of one on those of the base."""
    compression: Compression = "gzip"
    push: bool = False
    """Push it to the registry that its name says, once it is made."""
    auths: list[InlineAuth] = field(default_factory=list)
    """For the push; kept in memory only."""


class PauseRequest(Request):
    """``POST /v1/pause`` and ``/v1/resume``."""

    pod: str
    """As in CheckpointRequest."""
    containers: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------- what there is


class CheckpointInfo(Wire):
    """``GET /v1/checkpoints``: one container at one instant."""

    id: str
    name: str = ""
    group: str = ""
    """What those that were made in one freeze have in common."""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    container_id: str = ""
    image: str = ""
    image_digest: str = ""
    created_at: datetime | None = None
    bytes: int = 0
    """On the disks, root filesystem included."""
    memory_bytes: int = 0
    frozen_seconds: float = 0.0
    """How long the container stood still."""
    stopped: bool = False
    """The container was ended by it."""
    tcp: Tcp = "refuse"
    clones: int = 0
    """That stand on it; with any it cannot be removed."""
    labels: dict[str, str] = field(default_factory=dict)


class CheckpointPart(Wire):
    path: str
    size: int
    digest: str


class CheckpointNode(Wire):
    """The machine and the programs that a checkpoint was made with."""

    kernel: str = ""
    architecture: str = ""
    criu: str = ""
    runc: str = ""
    containerd: str = ""


class CheckpointDetail(Wire):
    """``GET /v1/checkpoints/{id}``: one checkpoint looked at alone."""

    info: CheckpointInfo
    node: CheckpointNode
    snapshot: str = ""
    root_bytes: int = 0
    root_entries: int = 0
    root_digest: str = ""
    parts: list[CheckpointPart] = field(default_factory=list)
    clones: list[str] = field(default_factory=list)
    directory: str = ""


class CloneInfo(Wire):
    """``GET /v1/clones``: a container that goes on where a checkpoint was taken."""

    id: str
    checkpoint: str
    phase: ClonePhase
    memory: Memory = "eager"
    memory_bytes: int = 0
    memory_missing_bytes: int = 0
    """How much of it is not in yet, about; 0 where nothing is missing."""
    addresses: list[str] = field(default_factory=list)
    pid: int = 0
    pod_id: str = ""
    """Of one that was restored in place: the pod that it is in, whose address it has."""
    created_at: datetime | None = None
    message: str = ""
    """Why it lost its memory."""
    labels: dict[str, str] = field(default_factory=dict)


class CommittedImage(Wire):
    """An image that was made of a container."""

    image: str
    id: str = ""
    """Digest of its configuration."""
    digest: str = ""
    """Of its manifest."""
    layer_digest: str = ""
    layer_bytes: int = 0
    frozen_seconds: float = 0.0
    skipped: list[str] = field(default_factory=list)
    """Sockets, which no layer can hold."""


class PushedTo(Wire):
    """What a push has brought to a registry. Bytes."""

    reference: str
    digest: str = ""
    server: str = ""
    sent_bytes: int = 0
    existing_bytes: int = 0
    """That were there already."""
    mounted_bytes: int = 0
    """That another repository there had."""
    transferred_bytes: int = 0
    """What went over the network, what had to be sent again included."""
    partial: bool = False
    """Of an index only the manifest that is on this node was pushed."""


class PausedContainer(Wire):
    id: str
    state: Literal["Paused", "Running"]
    namespace: str = ""
    pod: str = ""
    container: str = ""


class PauseResult(Wire):
    """What was paused or resumed, in its order."""

    containers: list[PausedContainer] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------- operations


class OperationStep(Wire):
    name: str
    started_at: datetime


class Operation(Wire):
    """Something that takes long, and what has become of it. It ends as Failed with the reason Interrupted when stokerd
    ends in the middle: what was begun is undone then, and nothing is begun anew by itself."""

    id: str
    kind: OperationKind
    phase: OperationPhase
    request: str = ""
    """The name that it was asked for by."""
    subject: str = ""
    """What it is done to, for people: ``default/web/app``."""
    reason: str = ""
    """Machine-readable, CamelCase; of an operation that failed: ``Cancelled``, ``Interrupted``, ``CheckpointRefused``
    ..."""
    message: str = ""
    hint: str = ""
    causes: list[str] = field(default_factory=list)
    """Each obstacle or difference, where there are several."""
    cancelled: bool = False
    """Somebody wants it to end."""
    desired: int = 1
    succeeded: int = 0
    steps: list[OperationStep] = field(default_factory=list)
    """In their order; the last one is being done while the phase is Running. With several clones there are none."""
    checkpoints: list[CheckpointInfo] = field(default_factory=list)
    """That were made, or were looked at."""
    clones: list[CloneInfo] = field(default_factory=list)
    """That were made; those that run stay when others failed."""
    image: CommittedImage | None = None
    pushed: PushedTo | None = None
    done_bytes: int = 0
    """Of ``total_bytes``, where something is moved; what is not known yet is in neither."""
    total_bytes: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class OperationEvent(Wire, tag="operation", tag_field="type"):
    """Server-sent: the whole state of one operation, first as it is and then whenever it changes."""

    operation: Operation
