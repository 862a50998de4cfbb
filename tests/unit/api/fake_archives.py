"""ArchivesPort over the fake checkpoints, scripted by the tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
from stoker.objects.checkpoints import CheckpointInfo, Operation, PushedTo
from stokerd.errors import StokerError
from tests.unit.api.fake_checkpoints import FakeCheckpoints, checkpoint


class FakeArchives:
    """``archive`` is what an export gives, and ``breaks`` how it ends in its middle; ``taken`` is what an import took.
    ``gone`` is set when a client leaves an import."""

    def __init__(self, checkpoints: FakeCheckpoints) -> None:
        self._checkpoints = checkpoints
        self.archive = [b"first", b"x" * 100_000, b"last"]
        self.breaks: StokerError | None = None
        self.taken = b""
        self.gone = asyncio.Event()

    def _enter(self, name: str, argument: Any) -> None:
        self._checkpoints._enter(name, argument)

    async def push_image(self, request: ImagePushRequest) -> Operation:
        self._enter("push_image", request)
        return self._checkpoints._begin("Push", request.to or request.image)

    async def push_checkpoint(self, name: str, request: CheckpointPushRequest) -> Operation:
        self._enter("push_checkpoint", (name, request))
        return self._checkpoints._begin("Push", name)

    async def pull_checkpoint(self, request: CheckpointPullRequest) -> Operation:
        self._enter("pull_checkpoint", request)
        return self._checkpoints._begin("Pull", request.reference)

    async def export_checkpoint(self, name: str) -> AsyncGenerator[bytes, None]:
        self._enter("export_checkpoint", name)
        for piece in self.archive[:-1]:
            yield piece
        if self.breaks is not None:
            raise self.breaks
        yield self.archive[-1]

    async def import_checkpoint(
        self, pieces: AsyncIterator[bytes], like: str, name: str, *, trust: bool
    ) -> CheckpointInfo:
        self._enter("import_checkpoint", (like, name, trust))
        try:
            self.taken = b"".join([piece async for piece in pieces])
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return checkpoint()


def pushed(**more: Any) -> PushedTo:
    known: dict[str, Any] = {"reference": "reg.example/app:v1", "digest": "sha256:" + "c" * 64, "sent_bytes": 3 << 20}
    return PushedTo(**(known | more))
