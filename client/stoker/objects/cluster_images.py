"""Objects of a cluster about images: what to pull where, when to do so again, and what each node is to have.

Names, defaults and meaning of the fields are OpenKruise's, so that its users' YAML holds; what it lacks is marked as
ours.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import field

from stoker.objects.images import PullPolicy
from stoker.objects.meta import (
    Condition,
    LabelSelector,
    NotHonoured,
    Object,
    ObjectMeta,
    ObjectReference,
    Part,
    Requirement,
    Secret,
)

KRUISE = "apps.kruise.io/v1beta1"
OURS = "stoker.dev/v1"

CompletionType = Literal["Always", "Never"]
ConcurrencyPolicy = Literal["Allow", "Forbid", "Replace"]
TagPhase = Literal["Waiting", "Pulling", "Succeeded", "Failed"]


class NodeSelector(Part, frozen=True):
    """Nodes by name, or by their labels; not both."""

    names: tuple[str, ...] = ()
    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class PullRules(Part, frozen=True):
    """How one node pulls one image."""

    timeout_seconds: int = 600
    """Deadline of one attempt."""
    backoff_limit: int = 3
    """Attempts after the first."""


class CompletionPolicy(Part, frozen=True):
    """When a job is over, and what becomes of it then."""

    type: CompletionType = "Always"
    """Always: when all nodes are through. Never: it lasts; nodes that come later get the images, too, and images that
    are lost are pulled again."""
    active_deadline_seconds: int | None = None
    """The job fails when it has worked for so long; time in which nothing of it could run does not count."""
    ttl_seconds_after_finished: int | None = None
    """The job is removed so long after it is over; null: it stays."""


class SandboxConfig(Part, frozen=True):
    """What OpenKruise hands to the runtime with each pull."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class PullTemplate(Part, frozen=True):
    """What the two kinds of pull jobs have in common."""

    selector: NodeSelector | None = None
    """On which nodes; without this and podSelector on all."""
    pod_selector: LabelSelector | None = None
    """On the nodes of these pods, in the job's namespace."""
    parallelism: int | str | None = None
    """How many nodes may pull at one time, as a number or as a share of the nodes ("10%"), over all images; null: 1.
    0 pauses the job."""
    pull_secrets: tuple[str, ...] = ()
    """Names of PullSecrets in the job's namespace. They cannot be changed later."""
    pull_policy: PullRules = field(default_factory=PullRules)
    completion_policy: CompletionPolicy = field(default_factory=CompletionPolicy)
    image_pull_policy: PullPolicy = "IfNotPresent"
    sandbox_config: Annotated[
        SandboxConfig | None, NotHonoured("stokerd chooses the labels and annotations of its pulls")
    ] = None
    priority: int = 0
    """Ours: higher goes first on each node; -1000 to 1000."""


class ImagePullJobSpec(PullTemplate, kw_only=True, frozen=True):
    """One image on many nodes."""

    image: str


class ImageListPullJobSpec(PullTemplate, kw_only=True, frozen=True):
    """Some images on many nodes."""

    images: tuple[str, ...]


class JobProgress(Part, frozen=True):
    """Ours: how far a job is, over all of its nodes."""

    bytes_total: int = 0
    bytes_done: int = 0
    nodes_waiting: int = 0
    nodes_silent: int = 0
    """Nodes that have not answered for a while; they do not hold the job up."""


class NodeTrouble(Part, frozen=True):
    """Ours: what went wrong on one node."""

    node: str
    image: str = ""
    reason: str = ""
    message: str = ""


class PullJobStatus(Part, frozen=True):
    """How a pull job is doing. Nodes are counted, not images."""

    desired: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    message: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    failed_nodes: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    progress: JobProgress = field(default_factory=JobProgress)
    troubles: tuple[NodeTrouble, ...] = ()
    """Ours: the first of the nodes that failed or are silent, and why."""
    worked_seconds: float = 0.0
    """Ours: how long some node of it was pulling, which is what its deadline counts."""


class FailedImage(Part, frozen=True):
    """An image that is not on all nodes, and why."""

    name: str
    message: str = ""
    image_pull_job: str = ""


class ListPullJobStatus(Part, frozen=True):
    """How a job of several images is doing. Images are counted here, nodes under progress."""

    desired: int = 0
    active: int = 0
    completed: int = 0
    succeeded: int = 0
    start_time: datetime | None = None
    completion_time: datetime | None = None
    failed_image_statuses: tuple[FailedImage, ...] = ()
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    progress: JobProgress = field(default_factory=JobProgress)
    troubles: tuple[NodeTrouble, ...] = ()
    """Ours: the first of the nodes that failed or are silent, and why."""
    worked_seconds: float = 0.0
    """Ours: how long some node of it was pulling, which is what its deadline counts."""


class ImagePullJob(Object, tag="ImagePullJob", kw_only=True, frozen=True):
    """Have one image on many nodes."""

    api_version: str = KRUISE
    metadata: ObjectMeta
    spec: ImagePullJobSpec
    status: PullJobStatus = field(default_factory=PullJobStatus)


class ImageListPullJob(Object, tag="ImageListPullJob", kw_only=True, frozen=True):
    """Have some images on many nodes."""

    api_version: str = KRUISE
    metadata: ObjectMeta
    spec: ImageListPullJobSpec
    status: ListPullJobStatus = field(default_factory=ListPullJobStatus)


class ListPullJobTemplate(Part, frozen=True):
    """The job that is made each time."""

    spec: ImageListPullJobSpec
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    """Labels and annotations of the jobs; nothing else of it is used."""


class CronTemplate(Part, frozen=True):
    """What is made each time. Other templates of OpenKruise are refused: they make pods, which Stoker does not."""

    image_list_pull_job_template: ListPullJobTemplate


class AdvancedCronJobSpec(Part, frozen=True):
    """When, and what."""

    schedule: str
    """Five fields as in crontab(5), or @hourly, @daily, @weekly, @monthly, @yearly."""
    template: CronTemplate
    time_zone: str = ""
    """A name such as Europe/Berlin; empty: UTC."""
    starting_deadline_seconds: int | None = None
    """A start that is late by more is missed; null: however late, the last one is made up for."""
    concurrency_policy: ConcurrencyPolicy = "Replace"
    """When the former job still runs: start beside it, leave the new one out, or end the former."""
    paused: bool = False
    successful_jobs_history_limit: int = 3
    failed_jobs_history_limit: int = 1


class AdvancedCronJobStatus(Part, frozen=True):
    type: str = ""
    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: datetime | None = None
    next_schedule_time: datetime | None = None
    """Ours."""
    missed: int = 0
    """Ours: starts that were missed since the object was made."""
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class AdvancedCronJob(Object, tag="AdvancedCronJob", kw_only=True, frozen=True):
    """Pull images again and again, at set times."""

    api_version: str = KRUISE
    metadata: ObjectMeta
    spec: AdvancedCronJobSpec
    status: AdvancedCronJobStatus = field(default_factory=AdvancedCronJobStatus)


# ---------------------------------------------------------------------------------------------- of one node


class SecretReference(Part, frozen=True):
    """A PullSecret."""

    name: str
    namespace: str = ""
    mode: Annotated[str, NotHonoured("Stoker keeps secrets itself and sends them to the nodes that need them")] = ""


class TagPullPolicy(PullRules, frozen=True):
    """How long a node tries, and how long it is remembered."""

    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None


class ImageTag(Part, frozen=True):
    """One tag, or one digest (sha256:...), of an image."""

    tag: str
    created_at: datetime | None = None
    version: int = 0
    """Another number asks for another round."""
    image_pull_policy: PullPolicy = "IfNotPresent"
    owner_references: tuple[ObjectReference, ...] = ()
    pull_policy: TagPullPolicy = field(default_factory=TagPullPolicy)
    priority: int = 0
    """Ours."""


class NodeImageEntry(Part, frozen=True):
    """What a node is to have of one repository."""

    tags: tuple[ImageTag, ...] = ()
    pull_secrets: tuple[SecretReference, ...] = ()
    sandbox_config: Annotated[
        SandboxConfig | None, NotHonoured("stokerd chooses the labels and annotations of its pulls")
    ] = None


class NodeImageSpec(Part, frozen=True):
    images: dict[str, NodeImageEntry] = field(default_factory=dict)
    """By repository, without tag and digest."""


class TagStatus(Part, frozen=True):
    tag: str
    phase: TagPhase = "Waiting"
    progress: int = 0
    """Percent; it only ever grows during one round."""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    version: int = 0
    image_id: str = field(default="", name="imageID")
    message: str = ""
    reason: str = ""
    """Ours."""
    bytes_total: int = 0
    """Ours."""
    bytes_done: int = 0
    """Ours."""


class ImageStatus(Part, frozen=True):
    tags: tuple[TagStatus, ...] = ()


class FirstSyncStatus(Part, frozen=True):
    sync_at: datetime | None = None
    status: str = ""
    message: str = ""


class NodeImageStatus(Part, frozen=True):
    desired: int = 0
    succeeded: int = 0
    failed: int = 0
    pulling: int = 0
    waiting: int = 0
    image_statuses: dict[str, ImageStatus] = field(default_factory=dict)
    first_sync_status: FirstSyncStatus | None = None
    observed_generation: int = 0


class NodeImage(Object, tag="NodeImage", kw_only=True, frozen=True):
    """The images that one node is to have, and how far it is. Its name is the node's."""

    api_version: str = KRUISE
    metadata: ObjectMeta
    spec: NodeImageSpec = field(default_factory=NodeImageSpec)
    status: NodeImageStatus = field(default_factory=NodeImageStatus)


# ---------------------------------------------------------------------------------------------- credentials


class SecretAuth(Part, frozen=True):
    """Credentials for one registry."""

    registry: str
    """Host, host:port or host/path; ``*.`` wildcards as in a docker config file."""
    username: Annotated[str, Secret()] = ""
    password: Annotated[str, Secret()] = ""
    identity_token: Annotated[str, Secret()] = ""
    registry_token: Annotated[str, Secret()] = ""

    def __repr__(self) -> str:
        return f"SecretAuth(registry={self.registry!r}, [redacted])"


class PullSecretSpec(Part, frozen=True):
    """Credentials. What they hold goes in and never comes out again; the nodes that need them get it."""

    auths: tuple[SecretAuth, ...] = ()


class PullSecretStatus(Part, frozen=True):
    conditions: tuple[Condition, ...] = ()


class PullSecret(Object, tag="PullSecret", kw_only=True, frozen=True):
    """Credentials for registries. A Secret of type kubernetes.io/dockerconfigjson is taken for one."""

    api_version: str = OURS
    metadata: ObjectMeta
    spec: PullSecretSpec = field(default_factory=PullSecretSpec)
    status: PullSecretStatus = field(default_factory=PullSecretStatus)
