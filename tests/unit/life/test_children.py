"""Programs that are broken off take all that they have started with them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.service.children import communicate, start

PARENT = """
import os, sys, time
child = os.fork()
if child:
    open(sys.argv[1] + ".new", "w").write(str(child))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    if sys.argv[2] == "ends":
        os._exit(0)
elif sys.argv[2] == "deserted":
    os.setsid()
time.sleep(1000)
"""


@pytest.mark.parametrize("parent", ["ends", "stays"])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_children_of_a_program_do_not_outlive_it(tmp_path: Path, how: str, parent: str) -> None:
    """As CRIU's that tries something out in one; also when it is gone itself, and they hold its pipes."""
    told = tmp_path / "child"
    argv = (sys.executable, "-c", PARENT, str(told), parent)
    process = await start(*argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
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


async def test_who_has_left_the_group_and_holds_the_pipes_holds_nothing_up(tmp_path: Path) -> None:
    told, pipe = tmp_path / "child", asyncio.subprocess.PIPE
    process = await start(sys.executable, "-c", PARENT, str(told), "deserted", stdout=pipe, stderr=pipe)
    work = asyncio.create_task(communicate(process))
    async with asyncio.timeout(20):
        while not told.exists():  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
    child = int(told.read_text())
    async with asyncio.timeout(20):
        while os.getsid(child) != child:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, 0.1)
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.read(), 10) == b""  # it is closed on this side
        assert _state(child) != "Z"
    finally:
        os.kill(child, signal.SIGKILL)


async def test_what_a_program_prints() -> None:
    script = "import sys; print(sys.stdin.read().upper(), end=''); print('no', file=sys.stderr)"
    pipe = asyncio.subprocess.PIPE
    process = await start(sys.executable, "-c", script, stdin=pipe, stdout=pipe, stderr=pipe)
    assert await communicate(process, b"yes") == (b"YES", b"no\n")
    assert process.returncode == 0


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs, and has a child, before whoever started it is told of it."""
    told, begun, cancelled = tmp_path / "child", asyncio.Event(), asyncio.Event()
    real = asyncio.create_subprocess_exec

    async def slow(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        process = await real(*argv, **options)
        begun.set()
        await cancelled.wait()
        while not told.exists():  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    work = asyncio.create_task(start(sys.executable, "-c", PARENT, str(told), "stays"))
    await asyncio.wait_for(begun.wait(), 20)
    work.cancel()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work, 20)
    child = int(told.read_text())
    async with asyncio.timeout(10):
        while _state(child) != "Z":  # noqa: ASYNC110 - it is nobody's child here
            await asyncio.sleep(0.01)


async def test_what_cannot_be_run_is_told() -> None:
    with pytest.raises(FileNotFoundError):
        await start("/nowhere/program")


def _state(process: int) -> str:
    """Return the letter of the state that a process is in; one that is gone counts as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "Z"
