"""What the journal keeps, as plain values. Times are seconds since the epoch (UTC), sizes bytes."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["Waiting", "Pulling", "Succeeded", "Failed", "Cancelled"]
JobState = Literal["Active", "Succeeded", "Failed", "Cancelled"]
Policy = Literal["IfNotPresent", "Always"]
AttemptResult = Literal["Succeeded", "Failed", "Cancelled", "Interrupted"]


class JobRow(msgspec.Struct, frozen=True):
    """A warm request that was accepted."""

    id: str
    name: str
    policy: Policy
    priority: int
    attempts: int
    timeout: float | None
    pin_seconds: float | None
    state: JobState
    created_at: float
    finished_at: float | None = None
    had_auths: bool = False
    """Credentials came with the request; they are kept in memory only."""


class ItemRow(msgspec.Struct, frozen=True):
    """One image of a job."""

    job: str
    position: int
    image: str
    reference: str
    phase: Phase = "Waiting"
    reason: str = ""
    message: str = ""
    hint: str = ""
    attempt: int = 0
    digest: str = ""
    previous_digest: str = ""
    pulled_bytes: int = 0
    started_at: float | None = None
    finished_at: float | None = None


class PinRow(msgspec.Struct, frozen=True):
    """A pin; ``releasing`` until every record of the image has lost its label."""

    reference: str
    digest: str
    size: int
    created_at: float
    expires_at: float | None
    releasing: bool = False


class KeepRow(msgspec.Struct, frozen=True):
    """An image that should stay warm."""

    reference: str
    policy: Policy
    priority: int
    created_at: float
    rewarmed: int = 0
    last_rewarm_at: float | None = None


class AttemptRow(msgspec.Struct, frozen=True):
    """One attempt to pull an image."""

    reference: str
    job: str
    attempt: int
    started_at: float
    finished_at: float
    result: AttemptResult
    reason: str
    message: str
    digest: str
    pulled_bytes: int


class LayerRow(msgspec.Struct, frozen=True):
    """How a layer grew when it was unpacked on this node."""

    digest: str
    compression: str
    compressed: int
    unpacked: int
    inodes: int


class RatioRow(msgspec.Struct, frozen=True):
    """Sums over the layers of one compression, old ones faded."""

    compression: str
    compressed: int
    unpacked: int
    inodes: int


RecreatePhase = Literal["Pending", "Recreating", "Completed"]
RecreateResult = Literal["", "Succeeded", "Failed", "Cancelled"]
TargetPhase = Literal["Pending", "Recreating", "Succeeded", "Failed"]
PodOwner = Literal["kubelet", "stoker", "other"]


class RecreateRow(msgspec.Struct, frozen=True):
    """A request to recreate containers in place. ``spec`` is JSON without the values of environment variables;
    ``digest`` is keyed, over all of the request, and only says whether another one is the same."""

    id: str
    name: str
    namespace: str
    pod: str
    pod_id: str
    pod_uid: str
    owner: PodOwner
    spec: str
    digest: str
    created_at: float
    deadline_at: float
    phase: RecreatePhase = "Pending"
    result: RecreateResult = ""
    message: str = ""
    cancelled: bool = False
    started_at: float | None = None
    finished_at: float | None = None


class TargetRow(msgspec.Struct, frozen=True):
    """One container of such a request.

    ``old_id`` and ``old_attempt`` were found when the request was made. From ``committed_at`` on the old container is
    being stopped and the target is seen through to a container that runs. ``verdict`` is why the new one will not do:
    what is left is to roll back. ``clean``: nothing of ours is left to be removed.
    """

    request: str
    position: int
    name: str
    old_id: str
    old_attempt: int
    phase: TargetPhase = "Pending"
    reason: str = ""
    message: str = ""
    hint: str = ""
    forced: bool = False
    committed_at: float | None = None
    killed: bool = False
    stopped_at: float | None = None
    new_id: str = ""
    new_attempt: int = 0
    running_at: float | None = None
    verdict: str = ""
    rolled_back: bool = False
    clean: bool = False
    started_at: float | None = None
    finished_at: float | None = None


class OperationRow(msgspec.Struct, frozen=True):
    """A checkpoint, clone or commit that was asked for. ``operation`` is JSON, as the API tells it: no value of the
    environment and no content of a file is in it. ``digest`` is keyed, over all of the request."""

    id: str
    request: str
    digest: str
    created_at: float
    finished_at: float | None
    operation: str


WishPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Cancelled"]


class WishRow(msgspec.Struct, frozen=True):
    """Something that the coordinator wished for. ``local``: what it became here, a job's or a request's id; empty while
    that was not begun. ``result`` is the last word on it, in msgpack, kept until it is ``acknowledged``. What the wish
    asked for is not here: it may hold secrets, and the coordinator says it again."""

    uid: str
    generation: int
    kind: str
    local: str
    created_at: float
    phase: WishPhase = "Pending"
    result: bytes = b""
    acknowledged: bool = False
