"""What all objects of a cluster have in common: metadata, conditions, selectors (Kubernetes' own names and forms).

Objects are frozen: the store hands the same one to everybody who asks. `msgspec.structs.replace` makes a changed copy.
Maps inside are never changed in place.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

ConditionStatus = Literal["True", "False", "Unknown"]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class NotHonoured(NamedTuple):
    """Marks a field that is taken and kept, and has no effect: whoever sends it is told why."""

    why: str


class Only(NamedTuple):
    """Marks a field that objects of one apiVersion have; it is refused in others."""

    version: str


class Secret(NamedTuple):
    """Marks a text that is sealed before it is kept, and never shown."""


class Part(Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """Base of everything inside an object. What is as it would be anyway is left out of JSON.

    ``frozen`` is said again in every subclass, since type checkers ask for it.
    """


class OwnerReference(Part, frozen=True):
    """Another object, without which this one is removed."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectReference(Part, frozen=True):
    """Another object, by name."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    api_version: str = ""


class ObjectMeta(Part, frozen=True):
    """Which object it is, and what the coordinator knows about its life."""

    name: str = ""
    generate_name: str = ""
    """The beginning of a name; the coordinator adds five characters."""
    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    uid: str = ""
    """Made by the coordinator; another object of the same name has another one."""
    resource_version: str = ""
    """Changes with every change of the object. An update that carries one is refused when the object has another."""
    generation: int = 0
    """Grows with every change of the spec."""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """Since when the object is to go; it goes when its last finalizer is taken away."""
    finalizers: tuple[str, ...] = ()
    """Who has something to do before the object may go."""
    owner_references: tuple[OwnerReference, ...] = ()
    """The object is removed when none of these is there any more."""


class Condition(Part, frozen=True):
    """One thing that is so, or is not, and since when."""

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class Requirement(Part, frozen=True):
    """One condition on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class LabelSelector(Part, frozen=True):
    """Which objects, by their labels; an empty selector means all."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class Object(Struct, rename="camel", kw_only=True, frozen=True, tag_field="kind"):
    """Base of all objects. Subclasses add ``spec`` and ``status``, and have their kind as their tag."""

    api_version: str
    metadata: ObjectMeta
    spec: Any
    status: Any

    @property
    def kind(self) -> str:
        """The object's kind, as in YAML."""
        return str(self.__struct_config__.tag)

    @property
    def key(self) -> Key:
        """Which object it is."""
        return Key(self.kind, self.metadata.namespace, self.metadata.name)

    @property
    def revision(self) -> int:
        """The resource version as a number; 0 when the object comes from no store."""
        return int(self.metadata.resource_version or 0)

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def deleting(self) -> bool:
        """Whether the object is on its way out, held by finalizers."""
        return self.metadata.deletion_timestamp is not None


class Key(Struct, frozen=True, order=True):
    """An object's address. ``namespace`` is empty for kinds that have none."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"
