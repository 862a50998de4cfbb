"""Objects about images, as the local API of stokerd speaks them (JSON, camelCase).

Sizes are bytes, times RFC 3339 in UTC, durations seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct, field

PullPolicy = Literal["IfNotPresent", "Always"]
Phase = Literal["Waiting", "Pulling", "Succeeded", "Failed", "Cancelled"]
ChangeKind = Literal["create", "update", "delete", "pinned", "unpinned", "rewarm"]
LayerState = Literal["waiting", "downloading", "downloaded", "unpacking", "done", "present"]


class Wire(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Base of what we send. What says how something is doing has no default, so that it never is left out."""


class Request(Struct, rename="camel", omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what we accept: unknown fields are refused, so that a typing error is not silently ignored."""


class InlineAuth(Request):
    """Credentials that travel with a request. They are kept in memory only and never shown again."""

    registry: str
    """Host, host:port or host/path that they are for; ``*.`` wildcards as in a docker config file."""
    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""

    def __repr__(self) -> str:
        return f"InlineAuth(registry={self.registry!r}, [redacted])"


class WarmRequest(Request):
    """``POST /v1/images/warm``: make these images present, unpacked and checked."""

    images: list[str]
    """References; the same one twice is one."""
    name: str = ""
    """A name for people; the job's id is made by stokerd."""
    policy: PullPolicy = "IfNotPresent"
    priority: int = 0
    """Higher goes first; -1000 to 1000."""
    attempts: int | None = None
    """Tries for each image before it counts as failed; None: the daemon's setting."""
    timeout_seconds: float | None = None
    """Deadline of one image's pulling, all attempts together, waiting in the queue not counted; None: no limit."""
    pin_seconds: float | None = None
    """Pin each image for so long once it is there; 0: until it is unpinned; None: do not pin."""
    auths: list[InlineAuth] = field(default_factory=list)


class LayerProgress(Wire):
    digest: str
    size: int
    state: LayerState
    offset: int = 0


class Progress(Wire):
    """How far one image is. Every number only ever grows during one job."""

    bytes_total: int = 0
    """Compressed bytes of all layers, 0 while the manifest is not known."""
    bytes_done: int = 0
    bytes_present: int = 0
    """Part of bytesDone that was on the node before."""
    layers_total: int = 0
    layers_unpacked: int = 0
    percent: float = 0.0
    """0 to 100, downloading and unpacking together."""
    layers: list[LayerProgress] = field(default_factory=list)


class ItemStatus(Wire):
    """One image of a job."""

    image: str
    """As it was asked for."""
    reference: str
    """Normalised."""
    phase: Phase
    reason: str = ""
    """Machine-readable, CamelCase: ``AlreadyPresent``, ``Pulled``, ``NotFound``, ``DiskTooSmall`` ..."""
    message: str = ""
    hint: str = ""
    attempt: int = 0
    digest: str = ""
    """Digest of the manifest or index that the reference was resolved to."""
    previous_digest: str = ""
    """Digest that the tag had on this node before, when it moved."""
    next_attempt_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    pulled_bytes: int = 0
    """Bytes that this job fetched over the network, as far as the content store shows them."""
    progress: Progress = field(default_factory=Progress)


class JobCounts(Wire):
    desired: int = 0
    waiting: int = 0
    pulling: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class JobStatus(Wire):
    """A warm request and what became of it."""

    id: str
    state: Literal["Active", "Succeeded", "Failed", "Cancelled"]
    """Failed when any image failed; the counts tell partial success."""
    name: str = ""
    policy: PullPolicy = "IfNotPresent"
    priority: int = 0
    created_at: datetime | None = None
    finished_at: datetime | None = None
    counts: JobCounts = field(default_factory=JobCounts)
    items: list[ItemStatus] = field(default_factory=list)


class ItemEvent(Wire, tag="item", tag_field="type"):
    """Server-sent: one image of a job changed."""

    job: str
    item: ItemStatus
    counts: JobCounts


class JobEvent(Wire, tag="job", tag_field="type"):
    """Server-sent: first event of a stream (the job as it is) and the last one (the job as it ended)."""

    job: JobStatus


class ImageChange(Wire, tag="image", tag_field="type"):
    """Server-sent on ``/v1/watch``: an image appeared, changed or went away in the runtime, or a pin ended."""

    kind: ChangeKind
    reference: str
    message: str = ""


Event = ItemEvent | JobEvent | ImageChange


class PinStatus(Wire):
    reference: str
    digest: str = ""
    size: int = 0
    created_at: datetime | None = None
    expires_at: datetime | None = None
    """None: until it is unpinned."""
    verified: bool = False
    """The runtime itself reports the image as pinned."""
    message: str = ""


class PinRequest(Request):
    image: str
    seconds: float = 0
    """0: until it is unpinned."""


class PinList(Wire):
    pins: list[PinStatus] = field(default_factory=list)
    total_bytes: int = 0
    limit_bytes: int = 0


class KeepRequest(Request):
    """Warm the image again whenever something removes it."""

    image: str
    policy: PullPolicy = "IfNotPresent"
    priority: int = 0


class KeepStatus(Wire):
    reference: str
    policy: PullPolicy = "IfNotPresent"
    priority: int = 0
    created_at: datetime | None = None
    present: bool = False
    rewarmed: int = 0
    """How often it had to be warmed again."""
    message: str = ""


class ImageStatus(Wire):
    """An image on the node."""

    id: str
    references: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    size: int = 0
    """As CRI counts it."""
    pinned: bool = False
    pin_expires_at: datetime | None = None
    kept: bool = False
    last_warmed_at: datetime | None = None


class RemoveResult(Wire):
    reference: str
    removed: list[str] = field(default_factory=list)
    """Names that went away."""
    freed_bytes: int = 0


class SpaceNeed(Wire):
    """What one file system would have to give."""

    needed_bytes: int = 0
    free_bytes: int = 0
    reserve_bytes: int = 0
    needed_inodes: int = 0
    free_inodes: int = 0
    reserve_inodes: int = 0
    path: str = ""
    fits: bool = True


class PlanRequest(Request):
    images: list[str]
    auths: list[InlineAuth] = field(default_factory=list)


class ImagePlan(Wire):
    """What warming an image would take."""

    image: str
    reference: str
    digest: str = ""
    platform: str = ""
    present: bool = False
    layers_total: int = 0
    layers_missing: int = 0
    download_bytes: int = 0
    unpack_bytes: int = 0
    unpack_inodes: int = 0
    unpack_estimated: bool = True
    reason: str = ""
    """Empty when the plan could be made."""
    message: str = ""
    hint: str = ""


class Plan(Wire):
    images: list[ImagePlan] = field(default_factory=list)
    space: SpaceNeed = field(default_factory=SpaceNeed)
    """All images together, shared layers counted once."""


class Attempt(Wire):
    """One line of the history."""

    reference: str
    result: Literal["Succeeded", "Failed", "Cancelled", "Interrupted"]
    job: str = ""
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    reason: str = ""
    message: str = ""
    digest: str = ""
    pulled_bytes: int = 0
