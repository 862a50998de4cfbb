"""A container that does not stand when it is to be frozen, by a real freezer: tried again, never left in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cri_stubs.cri.v1 import runtime_pb2 as cri
from stokerd.checkpoints.catching import Freezer, freezer_of, halted
from stokerd.checkpoints.freezing import thaw
from stokerd.errors import RuntimeBusy
from tests.integration.checkpoint_scene import Scene, read, scene
from tests.integration.test_programs import running
from tests.rig.node import Node
from tests.rig.processes import run

pytestmark = pytest.mark.criu  # for its programs

STUCK = """
import mmap, os, threading, time


def count():
    number = 0
    while True:
        number += 1
        with open("/count.new", "w") as file:
            file.write(f"{number}\\n")
        os.rename("/count.new", "/count")
        time.sleep(0.02)


file = os.open("/slow/file", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, mmap.PAGESIZE)
os.fsync(file)
page = memoryview(mmap.mmap(file, mmap.PAGESIZE))
out, into = os.pipe()
os.write(into, b"x")
threading.Thread(target=count, daemon=True).start()
while not os.path.exists("/go"):
    time.sleep(0.02)
threading.Thread(target=os.readv, args=(out, [page]), daemon=True).start()
time.sleep(0.1)
os.write(into, b"x")
threading.Event().wait()
"""
"""One thread reads from a pipe into a mapped page, and waits for the disk with the pipe's lock in its hands; another
waits for that lock, which neither signals nor the freezer can interrupt."""


@pytest.fixture
def slow(node: Node) -> Iterator[Path]:
    """A disk of its own, in which writing can be held up."""
    point, image = node.artifacts_dir / "slow", node.artifacts_dir / "slow.img"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    run(["mkfs.ext4", "-q", "-F", image])
    node.run("mount", "-o", "loop", image, point)
    try:
        (Path(f"/proc/{node.pid}/root") / point.relative_to("/") / "stuck.py").write_text(STUCK)
        yield point
    finally:
        node.run("umount", point)


@asynccontextmanager
async def held_up(there: Scene, disk: Path, process: int) -> AsyncIterator[None]:
    """Let the disk take nothing, and the program wait for it."""
    there.node.run("fsfreeze", "-f", disk)
    try:
        await there.bare.exec(there.container, "touch", "/go")
        async with asyncio.timeout(20):
            while not await asyncio.to_thread(_stuck, process):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)
        yield
    finally:
        there.node.run("fsfreeze", "-u", disk)


def _stuck(process: int) -> bool:
    """Say whether the main thread waits for the lock: the other one has it then."""
    return read(f"/proc/{process}/stat").rpartition(")")[2].split()[:1] == ["D"]


async def _until_written(switch: Freezer, *texts: str) -> None:
    async with asyncio.timeout(20):
        while read(str(switch.path)).strip() not in texts:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0)


async def test_a_container_that_does_not_stand_at_once(node: Node, slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts, again = [cri.Mount(container_path="/slow", host_path=str(slow))], asyncio.Event()
    async with scene(node) as here, running(here, "python3", "/slow/stuck.py", mounts=mounts) as there:
        task = await here.runtime.tasks.get(there.container)
        assert task is not None
        switch = freezer_of(task.pid)
        assert switch is not None
        async with held_up(there, slow, task.pid):
            with pytest.raises(RuntimeBusy):
                await here.runtime.tasks.pause(there.container)

            # The second is what a stokerd that dies leaves behind: nobody waits for that runc, and it goes on.
            for work in (here.checkpoints.pause, here.runtime.tasks.pause):
                pausing = asyncio.create_task(work(there.container))
                await _until_written(switch, "FREEZING", switch.on)
                pausing.cancel()
                await asyncio.wait({pausing})
                assert pausing.cancelled()
                assert await thaw(here.runtime, there.container)
                assert (await there.state(), read(str(switch.path)).strip()) == ("running", switch.off)
                assert not await asyncio.to_thread(halted, task.pid, there.container)

            monkeypatch.setattr("stokerd.checkpoints.freezing._log.info", lambda *_words, **_more: again.set())
            pausing = asyncio.create_task(here.checkpoints.pause(there.container))
            async with asyncio.timeout(30):
                await again.wait()
        await pausing
        assert await there.state() == "paused"
        await here.checkpoints.resume(there.container)
        await there.goes_on()
