"""Objects to keep, and ways to look at what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from stoker.objects.cluster_images import ImagePullJob, ImagePullJobSpec
from stoker.objects.cluster_nodes import Node
from stoker.objects.meta import Object, ObjectMeta, OwnerReference
from stoker_coordinator.store.protocol import Event


def job(
    name: str, image: str = "docker.io/library/nginx:1", *, namespace: str = "default", **meta: Any
) -> ImagePullJob:
    return ImagePullJob(metadata=ObjectMeta(name=name, namespace=namespace, **meta), spec=ImagePullJobSpec(image=image))


def node(name: str, **meta: Any) -> Node:
    return Node(metadata=ObjectMeta(name=name, **meta))


def owned_by(owner: Object) -> tuple[OwnerReference, ...]:
    meta = owner.metadata
    return (OwnerReference(api_version=owner.api_version, kind=owner.kind, name=meta.name, uid=meta.uid),)


def with_image(obj: ImagePullJob, image: str) -> ImagePullJob:
    return replace(obj, spec=replace(obj.spec, image=image))


def with_meta(obj: Any, **meta: Any) -> Any:
    return replace(obj, metadata=replace(obj.metadata, **meta))


async def take(events: AsyncIterator[Event[Any]], count: int) -> list[Event[Any]]:
    """The next *count* events."""
    async with asyncio.timeout(10):
        return [await anext(events) for _ in range(count)]


def told(events: list[Event[Any]]) -> list[tuple[str, str]]:
    """What events say, in short."""
    return [(event.type, event.object.metadata.name if event.object is not None else "") for event in events]
