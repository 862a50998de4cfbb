"""The image half of CRI v1, over containerd."""

from __future__ import annotations

from cri_stubs.cri.v1 import runtime_pb2
from cri_stubs.cri.v1.runtime_pb2_grpc import ImageServiceStub, RuntimeServiceStub
from stokerd.errors import RuntimeFailure, RuntimeInvalid, RuntimeUnavailable
from stokerd.runtime import convert
from stokerd.runtime.channel import Wire
from stokerd.runtime.types import CriImage, ImageFs, RegistryAuth


class CriImageService:
    """`protocol.CriImages` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._images = ImageServiceStub(wire.channel)
        self._runtime = RuntimeServiceStub(wire.channel)

    async def pull(self, ref: str, *, auth: RegistryAuth | None = None, lease: str | None = None) -> str:
        request = runtime_pb2.PullImageRequest(image=_spec(ref), auth=convert.auth_config(auth))
        # No deadline: a big image may take hours as long as it moves, which the caller's stall detector watches.
        answer = await self._wire.unary("cri.PullImage", self._images.PullImage, request, unlimited=True, lease=lease)
        return answer.image_ref

    async def status(self, ref: str) -> CriImage | None:
        request = runtime_pb2.ImageStatusRequest(image=_spec(ref))
        answer = await self._wire.unary("cri.ImageStatus", self._images.ImageStatus, request)
        return convert.cri_image(answer.image) if answer.HasField("image") else None

    async def list(self) -> tuple[CriImage, ...]:
        answer = await self._wire.unary("cri.ListImages", self._images.ListImages, runtime_pb2.ListImagesRequest())
        return tuple(map(convert.cri_image, answer.images))

    async def remove(self, ref: str) -> None:
        request = runtime_pb2.RemoveImageRequest(image=_spec(ref))
        await self._wire.unary("cri.RemoveImage", self._images.RemoveImage, request, timeout=self._wire.gc_timeout)

    async def fs_info(self) -> ImageFs:
        answer = await self._wire.unary("cri.ImageFsInfo", self._images.ImageFsInfo, runtime_pb2.ImageFsInfoRequest())
        if not answer.image_filesystems:
            raise RuntimeFailure("containerd does not say where images are kept", call="cri.ImageFsInfo")
        first = answer.image_filesystems[0]
        return ImageFs(first.fs_id.mountpoint, first.used_bytes.value, first.inodes_used.value)

    async def in_use(self) -> frozenset[str]:
        request = runtime_pb2.ListContainersRequest()
        answer = await self._wire.unary("cri.ListContainers", self._runtime.ListContainers, request)
        return frozenset(
            name for container in answer.containers for name in (container.image_ref, container.image.image) if name
        )

    async def version(self) -> tuple[str, str, str]:
        """Return the runtime's name, its version, and the version of CRI that it speaks."""
        request = runtime_pb2.VersionRequest(version="v1")
        answer = await self._wire.unary("cri.Version", self._runtime.Version, request)
        return answer.runtime_name, answer.runtime_version, answer.runtime_api_version

    async def verbose_status(self) -> dict[str, str]:
        """Return what CRI tells of itself: JSON documents by name."""
        request = runtime_pb2.StatusRequest(verbose=True)
        answer = await self._wire.unary("cri.Status", self._runtime.Status, request)
        if not answer.HasField("status"):
            raise RuntimeUnavailable("CRI answers without a status", call="cri.Status")
        return dict(answer.info)


def _spec(ref: str) -> runtime_pb2.ImageSpec:
    if not ref:  # to CRI it is the beginning of every image's id, and it would remove the only one there is
        raise RuntimeInvalid("the name of an image must not be empty")
    return runtime_pb2.ImageSpec(image=ref)
