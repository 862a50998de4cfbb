"""What a node tells its coordinator it has: images, pods, checkpoints. Documents of `stoker.link_documents`."""

from __future__ import annotations

from msgspec import field

from stoker.objects.checkpoints import CheckpointInfo, CloneInfo
from stoker.objects.containers import PodInfo
from stoker.objects.images import ImageStatus, Wire


class ImageInventory(Wire):
    images: list[ImageStatus] = field(default_factory=list)


class PodInventory(Wire):
    """Pods with their containers; without annotations, which may be long and hold anything."""

    pods: list[PodInfo] = field(default_factory=list)


class CheckpointInventory(Wire):
    checkpoints: list[CheckpointInfo] = field(default_factory=list)
    clones: list[CloneInfo] = field(default_factory=list)
