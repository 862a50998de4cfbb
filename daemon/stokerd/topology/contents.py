"""What is on the node already: images and pods, as other rooms tell them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from stokerd.topology.facts import Contents, ImageFacts, PodFacts

if TYPE_CHECKING:
    from stoker.objects.containers import PodInfo
    from stoker.objects.images import ImageStatus


class NodeContents(Protocol):
    """Who knows the images and pods of this node. StokerError: not now."""

    async def images(self) -> Sequence[ImageStatus]: ...

    async def pods(self) -> Sequence[PodInfo]: ...


async def read_contents(told: NodeContents, timeout: float) -> Contents:
    """Return images and pods."""
    async with asyncio.timeout(timeout):
        images, pods = await told.images(), await told.pods()
    return Contents(tuple(map(_image, images)), tuple(map(_pod, pods)))


def _image(image: ImageStatus) -> ImageFacts:
    """Return an image; its digest is that of its manifest, or else that of its configuration (its id)."""
    digest = next((name.rpartition("@")[2] for name in image.digests if "@" in name), image.id)
    return ImageFacts((image.references or image.digests or [image.id])[0], digest, image.size)


def _pod(pod: PodInfo) -> PodFacts:
    return PodFacts(pod.namespace, pod.name, pod.uid, pod.phase, len(pod.containers))
