"""The client's methods about what leaves the node and what enters it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import msgspec

from stoker.errors import ClientError
from stoker.objects.archives import CheckpointPullRequest, CheckpointPushRequest, ImagePushRequest
from stoker.objects.checkpoints import CheckpointInfo, Operation
from stoker.transport import Transport, error_of, part

_PIECE = 1 << 20
_SILENCE = 300.0
"""Seconds: before the first piece stokerd reads the root filesystem once, to know its size."""
_ARCHIVE = {"Content-Type": "application/zstd"}


class ArchiveCalls(Transport):
    """Pushes, pulls, and checkpoints as files. What takes long returns an Operation, as in CheckpointCalls."""

    async def push_image(self, request: ImagePushRequest) -> Operation:
        """Push an image of the node to a registry."""
        return await self._call("POST", "/v1/images/push", Operation, body=request)

    async def push_checkpoint(self, name: str, request: CheckpointPushRequest) -> Operation:
        """Push a checkpoint to a registry, as an artifact."""
        return await self._call("POST", f"/v1/checkpoints/{part(name)}/push", Operation, body=request)

    async def pull_checkpoint(self, request: CheckpointPullRequest) -> Operation:
        """Get a checkpoint from a registry."""
        return await self._call("POST", "/v1/checkpoints/pull", Operation, body=request)

    async def export_checkpoint(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield a checkpoint as one archive. DaemonUnreachable when it breaks off before its end."""
        path = f"http://stokerd/v1/checkpoints/{part(name)}/archive"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE)
        try:
            async with self._open().get(path, timeout=timeout) as response:
                if response.status != 200:
                    raise error_of(response.status, await response.read())
                async for piece in response.content.iter_chunked(_PIECE):
                    yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    async def import_checkpoint(
        self, pieces: AsyncIterator[bytes], *, like: str = "", trust: bool = False, name: str = ""
    ) -> CheckpointInfo:
        """Take in an archive that `export_checkpoint` has given, on this node or another.

        Clones of it may do as much as the container *like* of this node, or with *trust*, what a plain one may.
        """
        query = {"like": like, "name": name, "trust": "1" if trust else ""}
        params = {key: value for key, value in query.items() if value}
        url = "http://stokerd/v1/checkpoints/import"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE)
        try:
            async with self._open().post(
                url, params=params, data=pieces, headers=_ARCHIVE, timeout=timeout
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status != 201:
            raise error_of(response.status, body)
        try:
            return msgspec.json.decode(body, type=CheckpointInfo)
        except msgspec.DecodeError as error:
            raise ClientError("BadAnswer", f"cannot read stokerd's answer: {error}", "", response.status) from None
