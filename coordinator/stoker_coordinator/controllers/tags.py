"""What jobs ask of one node, as its NodeImage says it. Pure.

A NodeImage is the truth about who wants what: each tag has the jobs that want it as owners, and a version that grows
when it is to be looked at again. So a coordinator that was killed finds in the store where every job stood.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from stoker.objects.cluster_images import (
    ImageTag,
    NodeImage,
    NodeImageEntry,
    NodeTrouble,
    SecretReference,
    TagPullPolicy,
    TagStatus,
)
from stoker.objects.images import PullPolicy
from stoker.objects.meta import ObjectReference

NodeState = Literal["waiting", "active", "succeeded", "failed"]
_LATEST = "latest"


class Order(Struct, frozen=True):
    """What a job wants on each of its nodes. ``round`` grows when finished nodes are to be looked at again."""

    owner: ObjectReference
    images: tuple[str, ...]
    secrets: tuple[SecretReference, ...] = ()
    pull_policy: TagPullPolicy = TagPullPolicy()
    image_pull_policy: PullPolicy = "IfNotPresent"
    priority: int = 0


class Found(Struct, frozen=True):
    """How far a node is with one job. ``succeeded`` and ``failed`` are images, the rest of them are on their way."""

    state: NodeState
    succeeded: tuple[str, ...] = ()
    failed: tuple[NodeTrouble, ...] = ()
    bytes_total: int = 0
    bytes_done: int = 0


WAITING = Found("waiting")


def split(image: str) -> tuple[str, str]:
    """Return repository and tag, or repository and digest where there is one: it says more than the tag."""
    name, _, digest = image.partition("@")
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{head}{slash}{last}", digest or tag or _LATEST


def join(repository: str, tag: str) -> str:
    """Return the reference that *tag* of *repository* means."""
    return f"{repository}@{tag}" if ":" in tag else f"{repository}:{tag}"


def _owned(tag: ImageTag, uid: str) -> bool:
    return any(owner.uid == uid for owner in tag.owner_references)


def _status(node: NodeImage, repository: str, tag: str) -> TagStatus | None:
    entry = node.status.image_statuses.get(repository)
    return next((each for each in entry.tags if each.tag == tag), None) if entry is not None else None


def assign(node: NodeImage, order: Order, now: datetime, *, again: bool = False) -> NodeImage:
    """Have the node want all that *order* says, and nothing else of that job.

    A tag that others want as well, and that is on its way, is joined; one that is through is looked at again, since
    the image may be gone meanwhile. *again*: what is through for this very job is looked at again, too.
    """
    wanted: dict[str, list[str]] = {}
    for image in order.images:
        repository, tag = split(image)
        tags = wanted.setdefault(repository, [])
        if tag not in tags:
            tags.append(tag)
    entries = dict(release(node, order.owner.uid, keep=wanted).spec.images)
    for repository, tags in wanted.items():
        entry = entries.get(repository, NodeImageEntry())
        kept = {tag.tag: tag for tag in entry.tags}
        for name in tags:
            kept[name] = _ask(kept.get(name), _status(node, repository, name), order, name, now, again=again)
        known = set(entry.pull_secrets)
        secrets = (*entry.pull_secrets, *(each for each in order.secrets if each not in known))
        entries[repository] = replace(entry, tags=tuple(kept.values()), pull_secrets=secrets)
    return _with(node, entries)


def _ask(
    tag: ImageTag | None, status: TagStatus | None, order: Order, name: str, now: datetime, *, again: bool
) -> ImageTag:
    if tag is None:
        return ImageTag(
            tag=name,
            created_at=now,
            version=status.version + 1 if status is not None else 1,
            image_pull_policy=order.image_pull_policy,
            owner_references=(order.owner,),
            pull_policy=order.pull_policy,
            priority=order.priority,
        )
    through = status is not None and status.version >= tag.version and status.phase in {"Succeeded", "Failed"}
    ours = _owned(tag, order.owner.uid)
    alone = all(owner.uid == order.owner.uid for owner in tag.owner_references)
    return replace(
        tag,
        version=tag.version + 1 if through and (again or not ours) else tag.version,
        owner_references=tag.owner_references if ours else (*tag.owner_references, order.owner),
        priority=order.priority if alone else max(tag.priority, order.priority),
        pull_policy=order.pull_policy if alone else tag.pull_policy,
        image_pull_policy=order.image_pull_policy if alone else tag.image_pull_policy,
    )


def release(node: NodeImage, uid: str, *, keep: dict[str, list[str]] | None = None) -> NodeImage:
    """Have the node forget what the job *uid* wanted, but what *keep* has (tags by repository).

    What nobody else wants is no longer asked for; a pull of it is broken off, and an image that is there stays there.
    """
    entries: dict[str, NodeImageEntry] = {}
    for repository, entry in node.spec.images.items():
        kept = keep.get(repository, []) if keep is not None else []
        tags = tuple(filter(None, (tag if tag.tag in kept else _disown(tag, uid) for tag in entry.tags)))
        if tags:
            entries[repository] = replace(entry, tags=tags)
    return _with(node, entries)


def _disown(tag: ImageTag, uid: str) -> ImageTag | None:
    if not _owned(tag, uid):
        return tag
    left = tuple(owner for owner in tag.owner_references if owner.uid != uid)
    return replace(tag, owner_references=left) if left else None


def _with(node: NodeImage, entries: dict[str, NodeImageEntry]) -> NodeImage:
    return node if entries == node.spec.images else replace(node, spec=replace(node.spec, images=entries))


def found(node: NodeImage | None, order: Order) -> Found:
    """Return how far the node is with what *order* says. It waits until it is asked for every image of it."""
    if node is None:
        return WAITING
    succeeded: list[str] = []
    failed: list[NodeTrouble] = []
    total = done = 0
    for image in order.images:
        repository, name = split(image)
        entry = node.spec.images.get(repository)
        tag = next((each for each in entry.tags if each.tag == name), None) if entry is not None else None
        if tag is None or not _owned(tag, order.owner.uid):
            return WAITING
        status = _status(node, repository, name)
        if status is None or status.version < tag.version:
            continue
        total, done = total + status.bytes_total, done + status.bytes_done
        if status.phase == "Succeeded":
            succeeded.append(image)
        elif status.phase == "Failed":
            failed.append(NodeTrouble(node.metadata.name, image, status.reason, status.message))
    state: NodeState = "active"
    if len(succeeded) + len(failed) == len(order.images):
        state = "failed" if failed else "succeeded"
    return Found(state, tuple(succeeded), tuple(failed), total, done)


def owners(node: NodeImage) -> Iterable[str]:
    """Yield the uids of all jobs that want something of the node; one may come more than once."""
    for entry in node.spec.images.values():
        for tag in entry.tags:
            for owner in tag.owner_references:
                yield owner.uid
