"""containerd's diff service: what packs and unpacks layers in its own process."""

from __future__ import annotations

from collections.abc import Sequence

from cri_stubs.containerd.services.diff.v1 import diff_pb2
from cri_stubs.containerd.services.diff.v1.diff_pb2_grpc import DiffStub
from cri_stubs.containerd.types import descriptor_pb2
from stokerd.runtime import convert_tasks
from stokerd.runtime.channel import Wire
from stokerd.runtime.task_types import Mount
from stokerd.runtime.types import Descriptor

_TIMEOUT = 3600.0
"""Seconds for a whole root filesystem; it tells of no progress meanwhile."""


class NativeDiffs:
    """`protocol.Diffs` over containerd."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stub = DiffStub(wire.channel)

    async def create(
        self, lower: Sequence[Mount], upper: Sequence[Mount], *, media_type: str, ref: str, lease: str
    ) -> Descriptor:
        request = diff_pb2.DiffRequest(
            left=map(convert_tasks.mount_message, lower),
            right=map(convert_tasks.mount_message, upper),
            media_type=media_type,
            ref=ref,
        )
        answer = await self._wire.unary("diff.Diff", self._stub.Diff, request, timeout=_TIMEOUT, lease=lease)
        return Descriptor(answer.diff.media_type, answer.diff.digest, answer.diff.size)

    async def apply(self, layer: Descriptor, mounts: Sequence[Mount]) -> str:
        wire = descriptor_pb2.Descriptor(media_type=layer.media_type, digest=layer.digest, size=layer.size)
        request = diff_pb2.ApplyRequest(diff=wire, mounts=map(convert_tasks.mount_message, mounts))
        answer = await self._wire.unary("diff.Apply", self._stub.Apply, request, timeout=_TIMEOUT)
        return str(answer.applied.digest)
