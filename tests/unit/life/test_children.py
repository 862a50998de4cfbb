"""Programs that are broken off take all that they have started with them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from stoker.service.children import communicate

PARENT = """
import os, sys, time
child = os.fork()
if child:
    open(sys.argv[1] + ".new", "w").write(str(child))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    if sys.argv[2] == "ends":
        os._exit(0)
time.sleep(1000)
"""


@pytest.mark.parametrize("parent", ["ends", "stays"])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_children_of_a_program_do_not_outlive_it(tmp_path: Path, how: str, parent: str) -> None:
    """As CRIU's that tries something out in one; also when it is gone itself, and they hold its pipes."""
    told = tmp_path / "child"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(told), parent,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    work = asyncio.create_task(communicate(process))
    async with asyncio.timeout(20):
        while not told.exists():  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
    child = os.pidfd_open(int(told.read_text()))
    try:
        if how == "cancel":
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, 0.1)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(child, gone.set)  # readable when it has ended
        await asyncio.wait_for(gone.wait(), 10)
        asyncio.get_running_loop().remove_reader(child)
    finally:
        os.close(child)
    assert process.returncode is not None


async def test_what_a_program_prints() -> None:
    script = "import sys; print(sys.stdin.read().upper(), end=''); print('no', file=sys.stderr)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert await communicate(process, b"yes") == (b"YES", b"no\n")
    assert process.returncode == 0
