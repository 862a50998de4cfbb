"""Objects about pods, containers and their recreation in place, as the local API of stokerd speaks them.

Names and meaning of the fields of a request follow OpenKruise's ContainerRecreateRequest where it has them. Times are
RFC 3339 in UTC, durations seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType, field

from stoker.objects.images import InlineAuth, Request, Wire

Owner = Literal["kubelet", "stoker", "other"]
"""Who made a pod and looks after it: a kubelet, Stoker, or somebody else over CRI."""
PodPhase = Literal["Ready", "NotReady"]
ContainerPhase = Literal["Created", "Running", "Exited", "Unknown"]
FailurePolicy = Literal["Fail", "Ignore"]
RecreatePhase = Literal["Pending", "Recreating", "Completed"]
RecreateResult = Literal["", "Succeeded", "Failed", "Cancelled"]
TargetPhase = Literal["Pending", "Recreating", "Succeeded", "Failed"]
Step = Literal[
    "", "Waiting", "Warming", "Creating", "PreStop", "Stopping", "Starting", "Verifying", "RollingBack", "Removing"
]


class EnvVar(Request):
    """One environment variable. Values may be secrets: they are in no log, in no journal and in no answer."""

    name: str
    value: str | None = None
    """None takes the variable away."""

    def __repr__(self) -> str:
        return f"EnvVar(name={self.name!r}, [redacted])"


class Probe(Request):
    """When a new container counts as ready. Exactly one of ``exec`` and ``tcpPort``."""

    exec: list[str] = field(default_factory=list)
    """Command run inside the container; exit status 0 is ready."""
    tcp_port: int = 0
    """Port on the pod's address that accepts a connection."""
    period_seconds: float = 1.0
    timeout_seconds: float = 1.0
    failure_threshold: int = 30
    """So many failures in a row, and the container counts as failed."""


class RecreateTarget(Request):
    """One container to recreate, by its name in the pod."""

    name: str
    image: str = ""
    """A new image, warmed first; empty: the one it has."""
    env: list[EnvVar] = field(default_factory=list)
    """Changes to the environment."""
    probe: Probe | None = None


class RecreateStrategy(Request):
    failure_policy: FailurePolicy = "Fail"
    """Fail: after the first container that fails the rest is not touched. Ignore: the others go on."""
    ordered_recreate: bool = False
    """The next container is stopped only when the one before has succeeded; otherwise they go side by side."""
    force_recreate: bool = False
    """Recreate even a container that something else has restarted since the request was made."""
    termination_grace_period_seconds: float | None = None
    """Between the stop signal and the kill, preStop hook included; None: the pod's own, else 30."""
    unready_grace_period_seconds: float = 0.0
    """Wait so long before anything is stopped, so that load balancers can take the pod out."""
    min_started_seconds: float = 0.0
    """A new container must stay up for so long to count as succeeded."""


class RecreateRequest(Request):
    """``POST /v1/recreates``, and with ``POST /v1/recreates/plan`` what would be done."""

    pod: str
    """Name, ``namespace/name``, uid, sandbox id, or a unique beginning of an id."""
    name: str = ""
    """The same name again with the same content is the same request; with another content it is a Conflict. Empty:
    stokerd makes one."""
    namespace: str = ""
    """Of the request and of the pod; empty: the pod's."""
    containers: list[RecreateTarget] = field(default_factory=list)
    """In the order they are to be recreated in; empty together with ``all``."""
    all: bool = False
    """All containers of the pod that run, in the order in which they were started."""
    strategy: RecreateStrategy = field(default_factory=RecreateStrategy)
    active_deadline_seconds: float | None = None
    """From the moment the request is made; what is not done by then has failed. None: the daemon's setting."""
    ttl_seconds_after_finished: float | None = None
    """How long the finished request can be asked for; None: the daemon's setting."""
    auths: list[InlineAuth] = field(default_factory=list)
    """Credentials for new images; kept in memory only."""


class TargetStatus(Wire):
    """What has become of one container of a request."""

    name: str
    phase: TargetPhase
    step: Step = ""
    """What is being done now."""
    reason: str = ""
    """Machine-readable, CamelCase: ``Recreated``, ``RestartedBySomethingElse``, ``RolledBack`` ..."""
    message: str = ""
    hint: str = ""
    is_killed: bool = False
    """The old container was stopped by this request."""
    rolled_back: bool = False
    image: str = ""
    """The new image; empty when it stays."""
    old_id: str = ""
    old_attempt: int = 0
    new_id: str = ""
    new_attempt: int = 0
    downtime_seconds: float = 0.0
    """Between the end of the old container and the start of the new one."""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class RecreateStatus(Wire):
    """A request to recreate containers in place, and what has become of it."""

    id: str
    name: str
    phase: RecreatePhase
    result: RecreateResult = ""
    """Empty until the phase is Completed. Failed when any container failed, even where others were recreated."""
    message: str = ""
    namespace: str = ""
    pod: str = ""
    pod_id: str = ""
    pod_uid: str = ""
    owner: Owner = "other"
    waiting_for: str = ""
    """Id of the request on the same pod that goes first."""
    containers: list[TargetStatus] = field(default_factory=list)
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline_at: datetime | None = None


class RecreateEvent(Wire, tag="recreate", tag_field="type"):
    """Server-sent: the whole state of one request, first as it is and then whenever it changes."""

    recreate: RecreateStatus


class PlannedStep(Wire):
    """One thing that would be done, in order."""

    container: str
    action: str
    """``warm``, ``create``, ``prestop``, ``stop``, ``start``, ``wait``, ``verify``, ``remove``."""
    detail: str = ""


class RecreatePlan(Wire):
    """``POST /v1/recreates/plan``: what would be done; nothing is."""

    pod: str
    namespace: str = ""
    pod_id: str = ""
    owner: Owner = "other"
    steps: list[PlannedStep] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class ContainerInfo(Wire):
    """``GET /v1/containers``."""

    id: str
    name: str
    pod_id: str
    phase: ContainerPhase
    pod: str = ""
    namespace: str = ""
    attempt: int = 0
    image: str = ""
    image_ref: str = ""
    created_at: datetime | None = None
    owner: Owner = "other"
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class PodInfo(Wire):
    """``GET /v1/pods``."""

    id: str
    name: str
    phase: PodPhase
    namespace: str = ""
    uid: str = ""
    attempt: int = 0
    owner: Owner = "other"
    created_at: datetime | None = None
    runtime_handler: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    containers: list[ContainerInfo] = field(default_factory=list)


class MountInfo(Wire):
    container_path: str
    host_path: str = ""
    readonly: bool = False


class ContainerDetail(Wire):
    """``GET /v1/containers/{id}``: one container looked at alone. Environment is shown by name only."""

    info: ContainerInfo
    pid: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | UnsetType = UNSET
    """Of a container that has exited."""
    reason: str = ""
    message: str = ""
    log_path: str = ""
    command: list[str] = field(default_factory=list)
    env_names: list[str] = field(default_factory=list)
    mounts: list[MountInfo] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)


class PodDetail(Wire):
    """``GET /v1/pods/{id}``: one pod looked at alone."""

    info: PodInfo
    ips: list[str] = field(default_factory=list)
    pid: int = 0
    netns: str = ""
    hostname: str = ""
    log_directory: str = ""


class ReloadResult(Wire):
    """``POST /v1/reload``: what of the configuration file that was read again holds now."""

    applied: list[str] = field(default_factory=list)
    """Settings that changed and hold, as ``table.key``."""
    restart_needed: list[str] = field(default_factory=list)
    """Settings that changed in the file and need a restart of stokerd."""
