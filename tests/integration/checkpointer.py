"""A process that makes one checkpoint, or one clone, to be killed in the middle:

``python -m ... SOCKET DIRECTORY CONTAINER`` or ``python -m ... SOCKET DIRECTORY CHECKPOINT clone``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
        await (checkpoints.clone(what) if how == "clone" else checkpoints.create(what))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
