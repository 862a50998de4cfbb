"""Clones as objects of a cluster: containers that go on from a checkpoint, on its node or on another one. Ours."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import field

from stoker.objects.checkpoints import Memory, Mode
from stoker.objects.cluster_images import NodeSelector
from stoker.objects.cluster_requests import OURS, RegistryAuth
from stoker.objects.meta import Condition, Object, ObjectMeta, Part, Secret

ClonePhase = Literal["Pending", "Creating", "Succeeded", "Failed"]


class CloneEnv(Part, frozen=True):
    """One new variable: written where programs of the clones can read it."""

    name: str
    value: Annotated[str, Secret()] = ""
    """It goes in and never comes out again."""

    def __repr__(self) -> str:
        return f"CloneEnv(name={self.name!r}, [redacted])"


class CloneSpec(Part, frozen=True):
    """What goes on, how often and where. It cannot be changed."""

    checkpoint: str = ""
    """A Checkpoint in the object's namespace; it is waited for. Exactly one of this and reference."""
    reference: str = ""
    """What a checkpoint was pushed as."""
    count: int = 1
    node_name: str = ""
    """The node; empty: where the checkpoint is."""
    selector: NodeSelector | None = None
    """Or one of these nodes: that of the checkpoint if it is among them, else the one with the fewest clones."""
    like: str = ""
    """On another node than the checkpoint's the clones may do as much as this container there:
    `NAMESPACE/POD/CONTAINER`."""
    trust: bool = False
    """Or as much as a plain container, and who made the checkpoint is trusted as root is. Exactly one of this and like
    where the checkpoint comes from a registry."""
    hostname: str = ""
    """Of several clones each has its number behind it."""
    mode: Mode = "auto"
    """How memory comes back: before a clone runs, after it, or as suits its size."""
    env: tuple[CloneEnv, ...] = ()
    registry_auth: RegistryAuth = field(default_factory=RegistryAuth)
    """With which credentials to pull."""


class CloneState(Part, frozen=True):
    """One clone, as it was when it began to run."""

    id: str
    addresses: tuple[str, ...] = ()
    memory: Memory = "eager"


class CloneStatus(Part, frozen=True):
    phase: ClonePhase = "Pending"
    """Failed, when not all could be made: those that run stay until the object goes."""
    node_name: str = ""
    checkpoint_id: str = ""
    """The checkpoint on the node that made it."""
    reference: str = ""
    """Where another node gets it from."""
    ready: int = 0
    """So many were made."""
    clones: tuple[CloneState, ...] = ()
    message: str = ""
    reason: str = ""
    start_time: datetime | None = None
    """When a node was found."""
    completion_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class Clone(Object, tag="Clone", kw_only=True, frozen=True):
    """Containers that go on from a checkpoint, each with an address of its own. They go when the object does."""

    api_version: str = OURS
    metadata: ObjectMeta
    spec: CloneSpec
    status: CloneStatus = field(default_factory=CloneStatus)
