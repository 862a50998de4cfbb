"""What is known of a request, of its containers, and of the pod that they are in. Plain values. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from stoker.objects.containers import FailurePolicy, Owner, Probe
from stokerd.journal.rows import TargetRow
from stokerd.runtime.pod_types import ContainerState

REQUEST_LABEL = "stoker.dev/recreate"
"""On containers that Stoker made: the id of the request."""
ROLE_LABEL = "stoker.dev/recreate-role"
Role = Literal["", "new", "back"]
"""What a container of ours was made for: to take the old one's place, or to bring the old one back."""
ROLES: tuple[Role, ...] = ("new", "back")
SandboxState = Literal["ready", "notready", "gone"]
Halt = Literal["", "Cancelled", "DeadlineExceeded"]
NEVER = float("-inf")


class TargetSpec(msgspec.Struct, frozen=True):
    """One container of a request as it is remembered: of the environment the names alone."""

    name: str
    image: str = ""
    """The new image as CRI is asked for it; empty: it stays."""
    env_set: tuple[str, ...] = ()
    env_removed: tuple[str, ...] = ()
    probe: Probe | None = None

    @property
    def changed(self) -> bool:
        """The new container is not to be what the old one was."""
        return bool(self.image or self.env_set or self.env_removed)


class Spec(msgspec.Struct, frozen=True):
    """A request as it is remembered."""

    targets: tuple[TargetSpec, ...]
    failure_policy: FailurePolicy = "Fail"
    ordered: bool = False
    force: bool = False
    grace: float | None = None
    unready_grace: float = 0.0
    min_started: float = 0.0
    ttl: float = 3600.0


class Ask(msgspec.Struct, frozen=True):
    """A request at this moment.

    ``since``: from then on neither stokerd nor the runtime was away. ``up``: the runtime answers. ``parking``: stokerd
    is on its way down, and touches nothing new. ``heirs``: containers that earlier requests on this pod have brought
    about.
    """

    id: str
    pod_id: str
    owner: Owner
    spec: Spec
    started_at: float
    deadline_at: float
    cancelled: bool = False
    up: bool = True
    parking: bool = False
    heirs: frozenset[str] = frozenset()
    since: float = 0.0


class Seen(msgspec.Struct, frozen=True):
    """A container as it was last seen. ``started_at`` is None where nobody has looked."""

    id: str
    name: str
    attempt: int
    state: ContainerState
    created_at: float = 0.0
    request: str = ""
    role: Role = ""
    started_at: float | None = None
    exit_code: int | None = None
    reason: str = ""

    @property
    def alive(self) -> bool:
        """It runs, or may: a container in an unknown state is stopped before another takes its place."""
        return self.state in {"running", "unknown"}


class Sight(msgspec.Struct, frozen=True):
    """The pod as it was last seen, at the time ``at``; NEVER: look again before anything is decided."""

    sandbox: SandboxState = "ready"
    containers: tuple[Seen, ...] = ()
    at: float = NEVER
    tries: int = 0
    """How often looking has failed in a row; there is no other look before ``not_before``."""
    not_before: float = 0.0

    def find(self, container_id: str) -> Seen | None:
        return next((each for each in self.containers if each.id == container_id), None)

    def named(self, name: str) -> list[Seen]:
        return [each for each in self.containers if each.name == name]


class Effort(msgspec.Struct, frozen=True):
    """What of a target is known in memory only; after a restart it is found out again.

    ``known``: the old container's configuration has been read. ``hook``: it has a preStop hook to be run. ``spent``:
    part of the grace is gone, to a hook or to a crash of ours. ``lost``: values of its environment were lost with the
    stokerd that took the request up. ``refused``: why nothing can be made for it, as reason, message and hint.
    ``stuck``: what has to be stopped cannot be. ``remark``: the last failure. ``note``: what became of the hook.
    """

    known: bool = False
    grace: float = 30.0
    hook: bool = False
    spent: bool = False
    lost: bool = False
    warmed: bool = False
    image_missing: bool = False
    image_restored: bool = False
    tries: int = 0
    """Failures in a row; they make the pauses longer."""
    failures: int = 0
    """Failures that count against what is being tried."""
    not_before: float = 0.0
    probed: bool = False
    probe_failures: int = 0
    probe_at: float = 0.0
    remark: str = ""
    note: str = ""
    stuck: bool = False
    refused: tuple[str, str, str] | None = None
    returns: int = 0
    """How often bringing the old one back was tried."""


class Target(msgspec.Struct, frozen=True):
    """One container of a request at this moment."""

    row: TargetRow
    spec: TargetSpec
    effort: Effort = Effort()

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def final(self) -> bool:
        return self.row.phase in {"Succeeded", "Failed"}

    @property
    def committed(self) -> bool:
        return self.row.committed_at is not None


def ours(sight: Sight, target: Target, role: Role) -> Seen | None:
    """Return the container that this request has made for *target*: one that runs before others, then the newest."""
    rank = {"running": 3, "unknown": 2, "created": 1, "exited": 0}
    mine = [each for each in sight.named(target.name) if each.request == target.row.request and each.role == role]
    return max(mine, key=lambda each: (rank[each.state], each.attempt), default=None)


def next_attempt(sight: Sight, target: Target) -> int:
    return max((each.attempt for each in sight.named(target.name)), default=target.row.old_attempt) + 1
