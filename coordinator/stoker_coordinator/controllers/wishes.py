"""What objects mean to the link: a NodeImage's tags as wishes to warm images, and results as their status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from stoker.objects.cluster_images import (
    ImageStatus,
    ImageTag,
    NodeImage,
    NodeImageStatus,
    SecretAuth,
    SecretReference,
    TagPhase,
    TagStatus,
)
from stoker.objects.images import InlineAuth, JobStatus, WarmRequest
from stoker.objects.link import Result, Wish
from stoker_coordinator.controllers.tags import join

Credentials = Mapping[tuple[str, str], tuple[SecretAuth, ...]]
"""What PullSecrets hold, by namespace and name."""

IMAGE = "image"
_PHASES: dict[str, TagPhase] = {"Pending": "Waiting", "Running": "Pulling", "Succeeded": "Succeeded"}
_encode = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(JobStatus)


def image_wishes(node: NodeImage, credentials: Credentials) -> list[Wish]:
    """Return the pulls that the node has before it. Those that it is through with are no wishes any more."""
    wishes: list[Wish] = []
    for repository, entry in node.spec.images.items():
        done = {
            each.tag: each.version
            for each in node.status.image_statuses.get(repository, ImageStatus()).tags
            if each.phase in {"Succeeded", "Failed"}
        }
        auths: list[InlineAuth] | None = None
        for tag in entry.tags:
            if done.get(tag.tag, -1) >= tag.version:
                continue
            if auths is None:
                auths = _auths(entry.pull_secrets, credentials)
            wishes.append(_warm(node, join(repository, tag.tag), tag, auths))
    return wishes


def _warm(node: NodeImage, image: str, tag: ImageTag, auths: list[InlineAuth]) -> Wish:
    attempts = tag.pull_policy.backoff_limit + 1
    owners = [f"{owner.namespace}/{owner.name}" for owner in tag.owner_references]
    request = WarmRequest(
        images=[image],
        name=", ".join(owners)[:200],
        policy=tag.image_pull_policy,
        priority=tag.priority,
        attempts=attempts,
        timeout_seconds=float(tag.pull_policy.timeout_seconds * attempts),
        auths=auths,
    )
    return Wish(
        uid=image_uid(node, image),
        generation=tag.version,
        kind="warm",
        name=image,
        spec=msgspec.Raw(_encode(request)),
    )


def _auths(secrets: tuple[SecretReference, ...], credentials: Credentials) -> list[InlineAuth]:
    return inline_auths(auth for each in secrets for auth in credentials.get((each.namespace, each.name), ()))


def inline_auths(auths: Iterable[SecretAuth]) -> list[InlineAuth]:
    """Return credentials as a node takes them."""
    return [
        InlineAuth(
            registry=auth.registry,
            username=auth.username,
            password=auth.password,
            identity_token=auth.identity_token,
            registry_token=auth.registry_token,
        )
        for auth in auths
    ]


def image_uid(node: NodeImage, image: str) -> str:
    """Return the uid of the wish to warm *image*: another one when the NodeImage was made anew."""
    return f"{IMAGE}/{node.metadata.uid}/{image}"


def image_of(uid: str) -> tuple[str, str] | None:
    """Return the NodeImage's uid and the image that a wish was about; None when it was about something else."""
    kind, _, rest = uid.partition("/")
    owner, _, image = rest.partition("/")
    return (owner, image) if kind == IMAGE and image else None


# ---------------------------------------------------------------------------------------------- results


def with_result(node: NodeImage, repository: str, name: str, result: Result, now: datetime) -> NodeImage:
    """Return the NodeImage with what a node says of one tag. What is older than what is known changes nothing, and
    neither does a node that takes its own last word back."""
    tags = node.status.image_statuses.get(repository, ImageStatus()).tags
    old = next((each for each in tags if each.tag == name), None)
    if old is not None and (
        result.generation < old.version or (result.generation == old.version and old.phase in {"Succeeded", "Failed"})
    ):
        return node
    if old is not None and result.generation > old.version:
        old = None
    fresh = _tag_status(name, result, old, now)
    statuses = dict(node.status.image_statuses)
    statuses[repository] = ImageStatus((*(each for each in tags if each.tag != name), fresh))
    return replace(node, status=_counted(node, statuses))


def _tag_status(name: str, result: Result, old: TagStatus | None, now: datetime) -> TagStatus:
    job = decode_job(result)
    item = job.items[0] if job is not None and job.items else None
    phase = _PHASES.get(result.phase, "Failed")
    final = phase in {"Succeeded", "Failed"}
    progress = item.progress if item is not None else None
    percent = 100 if phase == "Succeeded" else int(progress.percent) if progress is not None else 0
    return TagStatus(
        tag=name,
        phase=phase,
        progress=max(percent, old.progress if old is not None else 0),
        start_time=(old.start_time if old is not None else None) or now,
        completion_time=now if final else None,
        version=result.generation,
        image_id=item.digest if item is not None else "",
        message=(result.message or (item.message if item is not None else ""))[:500],
        reason=result.reason or (item.reason if item is not None else ""),
        bytes_total=progress.bytes_total if progress is not None else 0,
        bytes_done=progress.bytes_done if progress is not None else 0,
    )


def decode_job(result: Result) -> JobStatus | None:
    """Return the job that a result tells of, None when it tells of none that can be read."""
    if not bytes(result.detail):
        return None
    try:
        return _job.decode(result.detail)
    except msgspec.DecodeError:
        return None


def _counted(node: NodeImage, statuses: dict[str, ImageStatus]) -> NodeImageStatus:
    """Return the status, without tags that nobody asks for any more."""
    kept: dict[str, ImageStatus] = {}
    counts = dict.fromkeys(("Waiting", "Pulling", "Succeeded", "Failed"), 0)
    desired = 0
    for repository, entry in node.spec.images.items():
        names = {tag.tag for tag in entry.tags}
        desired += len(names)
        tags = tuple(each for each in statuses.get(repository, ImageStatus()).tags if each.tag in names)
        for each in tags:
            counts[each.phase] += 1
        if tags:
            kept[repository] = ImageStatus(tags)
    return NodeImageStatus(
        desired=desired,
        succeeded=counts["Succeeded"],
        failed=counts["Failed"],
        pulling=counts["Pulling"],
        waiting=desired - counts["Succeeded"] - counts["Failed"] - counts["Pulling"],
        image_statuses=kept,
        first_sync_status=node.status.first_sync_status,
        observed_generation=node.metadata.generation,
    )
