"""Which kinds of objects a coordinator has, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import AdvancedCronJob, ImageListPullJob, ImagePullJob, NodeImage, PullSecret
from stoker.objects.cluster_nodes import HyperNode, Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.meta import Object

AnyObject: TypeAlias = (
    ImagePullJob
    | ImageListPullJob
    | AdvancedCronJob
    | NodeImage
    | PullSecret
    | ContainerRecreateRequest
    | Checkpoint
    | Clone
    | Commit
    | Node
    | HyperNode
)
"""Decodes by ``kind``."""

_KRUISE = ("apps.kruise.io/v1beta1", "apps.kruise.io/v1alpha1")
_OURS = ("stoker.dev/v1",)


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of objects."""

    type: type[Object]
    plural: str
    short: tuple[str, ...] = ()
    versions: tuple[str, ...]
    """The apiVersions that are taken and given; the first is the one that is kept."""
    namespaced: bool = True
    selectable: tuple[str, ...] = ()
    """What can be selected by beside metadata.name and metadata.namespace."""

    @property
    def name(self) -> str:
        return str(self.type.__struct_config__.tag)

    @property
    def version(self) -> str:
        """The apiVersion that objects are kept in."""
        return self.versions[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that people may call it, in lower case."""
        return (self.plural, self.name.lower(), *self.short)


ALL: tuple[Kind, ...] = (
    Kind(type=Node, plural="nodes", short=("no",), versions=_OURS, namespaced=False),
    Kind(type=ImagePullJob, plural="imagepulljobs", short=("ipj",), versions=_KRUISE, selectable=("spec.image",)),
    Kind(type=ImageListPullJob, plural="imagelistpulljobs", short=("ilpj",), versions=_KRUISE),
    Kind(type=AdvancedCronJob, plural="advancedcronjobs", short=("acj",), versions=_KRUISE),
    Kind(type=NodeImage, plural="nodeimages", short=("ni",), versions=_KRUISE, namespaced=False),
    Kind(
        type=ContainerRecreateRequest,
        plural="containerrecreaterequests",
        short=("crr",),
        versions=(*_OURS, *_KRUISE),
        selectable=("spec.podName", "status.phase", "status.nodeName"),
    ),
    Kind(
        type=Checkpoint,
        plural="checkpoints",
        short=("cp",),
        versions=(*_OURS, "agents.kruise.io/v1alpha1"),
        selectable=("spec.podName", "status.phase", "status.nodeName"),
    ),
    Kind(
        type=Clone,
        plural="clones",
        short=("cl",),
        versions=_OURS,
        selectable=("spec.checkpoint", "status.phase", "status.nodeName"),
    ),
    Kind(
        type=Commit,
        plural="commits",
        short=("cmt",),
        versions=(*_OURS, "agents.kruise.io/v1alpha1"),
        selectable=("spec.podName", "status.phase", "status.nodeName"),
    ),
    Kind(
        type=HyperNode,
        plural="hypernodes",
        short=("hn",),
        versions=("topology.volcano.sh/v1alpha1",),
        namespaced=False,
        selectable=("spec.tier",),
    ),
    Kind(type=PullSecret, plural="pullsecrets", short=("ps",), versions=_OURS),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in ALL}
BY_ROUTE: Mapping[tuple[str, str], Kind] = {(version, kind.plural): kind for kind in ALL for version in kind.versions}
"""By apiVersion and plural."""


def find(word: str) -> Kind | None:
    """Return the kind that people mean by *word*: its kind, plural, or short name, in any case."""
    lower = word.lower()
    return next((kind for kind in ALL if lower in kind.names), None)


def kind_of(obj: Object | type[Any]) -> Kind:
    """Return the kind of an object, or of its type."""
    return KINDS[str(obj.__struct_config__.tag)]
