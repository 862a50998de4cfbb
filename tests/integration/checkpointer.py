"""A process that makes one checkpoint, or one clone, to be killed in the middle:

``python -m ... SOCKET DIRECTORY CONTAINER``, or with ``CHECKPOINT clone``, ``CONTAINER commit``, ``FILE import``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.importing import ImportWish
from stokerd.checkpoints.model import Wish
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.surveying import Survey, survey
from stokerd.runtime.containerd import Containerd
from stokerd.settings import RuntimeSettings

OWNER = "stokerd-of-the-test"


@asynccontextmanager
async def room(
    endpoint: str, directory: str, *, survey: Survey = survey
) -> AsyncIterator[tuple[Checkpoints, Containerd]]:
    """The room over a node's containerd."""
    runtime = Containerd(RuntimeSettings(endpoint=endpoint, connect_backoff_max=0.5), lambda *_: None)
    supervision = asyncio.create_task(runtime.run())
    try:
        await asyncio.wait_for(runtime.wait_ready(), 20)
        yield Checkpoints(runtime, directory, OWNER, survey=survey, manage_criu_config=True), runtime
    finally:
        supervision.cancel()
        await asyncio.gather(supervision, return_exceptions=True)


async def main(endpoint: str, directory: str, what: str, how: str = "create") -> None:
    async with room(endpoint, directory) as (checkpoints, _):
        if how == "clone":
            await checkpoints.clone(what)
        elif how == "restore":
            await checkpoints.restore(what)
        elif how == "stop":
            await checkpoints.create_group(what.split(","), Wish(leave_running=False))
        elif how == "group":
            await checkpoints.create_group(what.split(","))
        elif how == "commit":
            await checkpoints.commit(what, CommitWish("stoker.test/killed:v1"))
        elif how == "import":
            await checkpoints.receive(pieces(what), ImportWish(trust=True))
        else:
            await checkpoints.create(what)


async def pieces(path: str) -> AsyncIterator[bytes]:
    """Yield a file, or what somebody writes to a FIFO."""
    file = await asyncio.to_thread(Path(path).open, "rb", buffering=0)
    with file:
        while data := await asyncio.to_thread(file.read, 1 << 16):
            yield data


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
