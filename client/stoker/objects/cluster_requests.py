"""Objects of a cluster that ask for one thing to be done to one pod: recreate, checkpoint, commit.

Names, defaults and meaning of the fields are OpenKruise's; what it lacks is marked as ours.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import field

from stoker.objects.checkpoints import Compression, Tcp
from stoker.objects.containers import FailurePolicy
from stoker.objects.meta import Condition, NotHonoured, Object, ObjectMeta, Only, Part, Secret

OURS = "stoker.dev/v1"

RequestPhase = Literal["Pending", "Recreating", "Completed"]
ContainerRecreatePhase = Literal["Pending", "Recreating", "Succeeded", "Failed"]
CheckpointPhase = Literal["Pending", "Creating", "Succeeded", "Failed", "Terminating"]
CommitPhase = Literal["Pending", "Running", "Succeeded", "Failed"]
Content = Literal["podInfo", "memory", "filesystem"]
_INJECTED = "OpenKruise's webhook puts it there; stokerd looks itself"


class RecreateEnv(Part, frozen=True):
    """Ours: one change of a container's environment, value or unset."""

    name: str
    value: Annotated[str | None, Secret()] = None
    """It goes in and never comes out again."""
    unset: bool = False

    def __repr__(self) -> str:
        return f"RecreateEnv(name={self.name!r}, [redacted])"


class ReadyProbe(Part, frozen=True):
    """Ours: when a new container counts as ready. Exactly one of exec and tcpPort."""

    exec: tuple[str, ...] = ()
    tcp_port: int = 0
    period_seconds: float = 1.0
    timeout_seconds: float = 1.0
    failure_threshold: int = 30


class RecreateContainer(Part, frozen=True):
    """One container, by its name in the pod."""

    name: str
    pre_stop: Annotated[Any, NotHonoured(_INJECTED)] = None
    ports: Annotated[Any, NotHonoured(_INJECTED)] = None
    status_context: Annotated[Any, NotHonoured(_INJECTED)] = None
    image: Annotated[str, Only(OURS)] = ""
    """Ours: a new image."""
    env: Annotated[tuple[RecreateEnv, ...], Only(OURS)] = ()
    probe: Annotated[ReadyProbe | None, Only(OURS)] = None


class RecreateRules(Part, frozen=True):
    """How containers are recreated."""

    failure_policy: FailurePolicy = "Fail"
    """Fail: after the first container that fails the rest is not touched. Ignore: the others go on."""
    ordered_recreate: bool = False
    force_recreate: bool = False
    termination_grace_period_seconds: float | None = None
    unready_grace_period_seconds: float = 0.0
    min_started_seconds: float = 0.0


class ContainerRecreateRequestSpec(Part, frozen=True):
    """Which containers of which pod. It cannot be changed."""

    pod_name: str
    containers: tuple[RecreateContainer, ...] = ()
    all: Annotated[bool, Only(OURS)] = False
    """Ours: all containers of the pod."""
    strategy: RecreateRules = field(default_factory=RecreateRules)
    active_deadline_seconds: float | None = None
    """At least 3 with OpenKruise's versions."""
    ttl_seconds_after_finished: float | None = None


class ContainerRecreateState(Part, frozen=True):
    name: str
    phase: ContainerRecreatePhase = "Pending"
    message: str = ""
    is_killed: bool = False
    reason: str = ""
    """Ours."""


class ContainerRecreateRequestStatus(Part, frozen=True):
    phase: RequestPhase = "Pending"
    """Completed means that it is over; the states of the containers, and result, say how."""
    result: Literal["", "Succeeded", "Failed", "Cancelled"] = ""
    """Ours."""
    node_name: str = ""
    """Ours: the node that has the pod."""
    message: str = ""
    completion_time: datetime | None = None
    container_recreate_states: tuple[ContainerRecreateState, ...] = ()
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class ContainerRecreateRequest(Object, tag="ContainerRecreateRequest", kw_only=True, frozen=True):
    """Make containers of a running pod anew, in place."""

    api_version: str = OURS
    metadata: ObjectMeta
    spec: ContainerRecreateRequestSpec
    status: ContainerRecreateRequestStatus = field(default_factory=ContainerRecreateRequestStatus)


class NameReference(Part, frozen=True):
    name: str


class RegistryAuth(Part, frozen=True):
    """With which credentials to push and to pull."""

    secrets: tuple[NameReference, ...] = ()
    """PullSecrets in the object's namespace; the first that fits the registry is used."""
    credentials: Annotated[Any, NotHonoured("make a PullSecret and name it in registryAuth.secrets")] = None


class CheckpointSpec(Part, frozen=True):
    """What to dump. It cannot be changed but for ttlAfterFinished."""

    pod_name: str = ""
    sandbox_name: Annotated[str, NotHonoured("there are no sandboxes yet; name the pod")] = ""
    containers: Annotated[tuple[NameReference, ...], Only(OURS)] = ()
    """Ours: which containers, by name; none: all that run. Several are frozen together."""
    keep_running: bool = True
    """False: the container is stopped when its checkpoint is complete."""
    persistent_contents: tuple[Content, ...] = ("memory", "filesystem")
    ttl_after_finished: str = ""
    """The checkpoint is removed so long after it was made ("24h"); empty: it stays."""
    tcp: Annotated[Tcp | None, Only(OURS)] = None
    """Ours: established connections are a reason to refuse, left out, or kept; null: as the node's settings say."""
    timeout_seconds: Annotated[float | None, Only(OURS)] = None
    """Ours: so long the containers may stand; null: as the node's settings say."""
    file_locks: Annotated[bool, Only(OURS)] = True
    """Ours."""
    external_unix_sockets: Annotated[bool, Only(OURS)] = False
    """Ours."""
    destination: Annotated[str, Only(OURS)] = ""
    """Ours: an image reference that it is pushed to once it is made, so that other nodes can clone it. It is for one
    container. When the push fails, so does the object; the checkpoint stays."""
    registry_auth: Annotated[RegistryAuth, Only(OURS)] = field(default_factory=RegistryAuth)
    """Ours."""


class CheckpointStatus(Part, frozen=True):
    phase: CheckpointPhase = "Pending"
    checkpoint_id: str = ""
    """Of several containers: what their checkpoints have in common."""
    message: str = ""
    reason: str = ""
    """Ours."""
    node_name: str = ""
    """Ours: the node that has it."""
    reference: str = ""
    """Ours: what it was pushed as, with its digest."""
    size_bytes: int = 0
    """Ours."""
    frozen_milliseconds: float = 0.0
    """Ours: for how long the container stood still."""
    completion_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class Checkpoint(Object, tag="Checkpoint", kw_only=True, frozen=True):
    """Memory and root filesystem of running containers, at one instant."""

    api_version: str = OURS
    metadata: ObjectMeta
    spec: CheckpointSpec
    status: CheckpointStatus = field(default_factory=CheckpointStatus)


class CommitSpec(Part, frozen=True):
    """What to make an image of. It cannot be changed."""

    pod_name: str
    image: str
    """What it is pushed as."""
    container_name: str = ""
    """Empty: the only one."""
    squash_layer: bool = False
    """One layer, instead of one on those of the image."""
    timeout_seconds: int = 0
    """0: no limit."""
    ttl: str = ""
    """The object is removed so long after it is over ("1h"); empty: it stays."""
    registry_auth: RegistryAuth = field(default_factory=RegistryAuth)
    changes: Annotated[tuple[str, ...], Only(OURS)] = ()
    """Ours: as lines of a Dockerfile, such as ENV A=B."""
    author: Annotated[str, Only(OURS)] = ""
    """Ours."""
    message: Annotated[str, Only(OURS)] = ""
    """Ours."""
    compression: Annotated[Compression, Only(OURS)] = "gzip"
    """Ours."""


class CommitStatus(Part, frozen=True):
    phase: CommitPhase = "Pending"
    message: str = ""
    reason: str = ""
    """Ours."""
    node_name: str = ""
    """Ours."""
    digest: str = ""
    """Ours: of the image's manifest."""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class Commit(Object, tag="Commit", kw_only=True, frozen=True):
    """The root filesystem of a running container as an image."""

    api_version: str = OURS
    metadata: ObjectMeta
    spec: CommitSpec
    status: CommitStatus = field(default_factory=CommitStatus)
