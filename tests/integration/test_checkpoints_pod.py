"""All containers of a real pod in one freeze, and containers that are stopped and come back."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointRefused
from stokerd.checkpoints.model import Wish
from stokerd.errors import Conflict
from tests.integration.checkpoint_scene import COUNT, LARGE, TALK, Scene, apart, counted, of_clone, read, scene
from tests.rig.node import Node

pytestmark = pytest.mark.criu


async def test_a_pod_is_taken_as_a_whole(node: Node) -> None:
    async with scene(node) as here:
        side = await here.bare.run(here.pod, "side", command=["sh", "-c", COUNT], linux=apart())
        there = of_clone(here, side)
        await there.goes_on()
        group = await here.checkpoints.create_group([here.container, side], Wish(name="all"))
        for each in (here, there):
            await each.goes_on()
        for member in group.members:
            await here.checkpoints.verify(member.id)
        start = await counted(here, group.members[1].root.snapshot)
        clone = await here.checkpoints.clone(group.members[1].id)
        assert start <= await of_clone(here, clone.id).goes_on() < start + 2000
        await here.checkpoints.remove_clone(clone.id)
        await here.checkpoints.remove("all")
        assert await here.left() == []

        talker = await here.bare.run(here.pod, "talker", command=["sh", "-c", TALK], linux=apart())
        await of_clone(here, talker).goes_on()
        with pytest.raises(CheckpointRefused, match="established TCP"):
            await here.checkpoints.create_group([here.container, side, talker])
        assert await here.left() == []

        stopped = await here.checkpoints.create_group([here.container, side], Wish(leave_running=False))
        assert {await here.state(), await there.state()} <= {"stopped", "gone"}
        for manifest, each in zip(stopped.members, (here, there), strict=True):
            assert await counted(here, manifest.root.snapshot) == await each.count()
        await here.checkpoints.remove(stopped.id)


async def test_what_was_stopped_comes_back_to_its_place(node: Node) -> None:
    """Again and again: the count goes on, the files are there, the address stays; earlier checkpoints can go."""
    async with scene(node) as here:
        ip = await here.bare.ip(here.pod)
        kept = await here.checkpoints.create(here.container)
        with pytest.raises(Conflict, match="runs"):
            await here.checkpoints.restore(kept.id)
        await here.checkpoints.remove(kept.id)
        life = asyncio.create_task(here.checkpoints.run())
        there, ids = here, []
        for turn in range(3):
            stopped = await here.checkpoints.create(there.container, Wish(leave_running=False))
            assert await there.state() in {"stopped", "gone"}
            stood = await counted(here, stopped.root.snapshot)
            back = await here.checkpoints.restore(stopped.id)
            there = of_clone(here, back.id)
            ids.append(back.id)
            assert stood <= await there.goes_on() < stood + 500, turn
            assert back.addresses[0] == ip
            assert await asyncio.to_thread(read, f"/proc/{back.pid}/net/fib_trie") == await asyncio.to_thread(
                read, f"/proc/{await here.sandbox_pid()}/net/fib_trie"
            )
            assert (stopped.source.pod_id, stopped.source.container_name) == (here.pod.id, "main")
            await here.checkpoints.remove(stopped.id)
        assert len(set(ids)) == 1
        assert [each.id for each in await here.checkpoints.clones()] == ids[:1]
        await here.bare.stop_pod(here.pod)
        async with asyncio.timeout(10):
            while await here.left():  # noqa: ASYNC110 - the end of a pod is told to nobody
                await asyncio.sleep(0.02)
        assert await here.checkpoints.clones() == ()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def test_a_clone_that_was_stopped_keeps_its_address(node: Node) -> None:
    async with scene(node) as here:
        golden = await here.checkpoints.create(here.container)
        clone = await here.checkpoints.clone(golden.id, files={"/etc/mine": b"own"})
        there = of_clone(here, clone.id)
        for _ in range(2):
            stopped = await here.checkpoints.create(clone.id, Wish(leave_running=False))
            stood = await there.count()
            image = next((here.directory / stopped.id / "images").glob("core-*.img"))
            body = await asyncio.to_thread(image.read_bytes)
            await asyncio.to_thread(image.write_bytes, body[:-10] + bytes(10))
            with pytest.raises(CheckpointDamaged):
                await here.checkpoints.restore(stopped.id)
            await asyncio.to_thread(image.write_bytes, body)
            back = await here.checkpoints.restore(stopped.id)
            assert (back.id, back.addresses) == (clone.id, clone.addresses)
            assert stood <= await there.goes_on() < stood + 500
            assert await asyncio.to_thread(read, f"/proc/{back.pid}/root/etc/mine") == "own"
            await here.checkpoints.remove(stopped.id)
        await here.checkpoints.remove_clone(clone.id)


async def test_stokerd_is_killed_while_it_stops_and_restores(node: Node) -> None:
    """Each container runs as before, or there is a complete checkpoint of it; and that can be brought back."""
    async with scene(node, LARGE) as here:
        side = await here.bare.run(here.pod, "side", command=["sh", "-c", COUNT], linux=apart())
        places = [here, of_clone(here, side)]
        # The last one is left to succeed, and the containers come back.
        kills = (("group", 0.0), ("group", 0.2), ("stop", 0.1), ("stop", 0.35), ("stop", 0.6), ("stop", None))
        for how, delay in kills:
            await places[1].goes_on()
            await _killed(here, ",".join(each.container for each in places), how, delay)
            done = await here.checkpoints.converge()
            assert done.left == []
            groups = await here.checkpoints.groups()
            for group in groups:
                for member in group.members:
                    await here.checkpoints.verify(member.id)
            if how == "stop" and groups and not [each for each in places if await each.state() == "running"]:
                places = [of_clone(here, await _brought_back(here, each.id)) for each in groups[0].members]
                await _loaded(here)
            assert [await each.state() for each in places] == ["running", "running"]
            for group in groups:
                await here.checkpoints.remove(group.id)
        assert {each.container.partition("-")[0] for each in places} == {"restored"}
        for clone in await here.checkpoints.clones():
            await here.checkpoints.remove_clone(clone.id)
        assert await here.left() == []


async def _loaded(here: Scene) -> None:
    """Wait until all memory is in, as the next stokerd does: the one that began it was killed."""
    life = asyncio.create_task(here.checkpoints.run())
    try:
        async with asyncio.timeout(30):
            while any(each.memory == "loading" for each in await here.checkpoints.clones()):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.02)
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def _brought_back(here: Scene, checkpoint: str) -> str:
    """Restore it after a stokerd was killed that did."""
    await _killed(here, checkpoint, "restore", 0.05)
    await here.checkpoints.converge()
    for each in await here.checkpoints.clones():
        if each.checkpoint == checkpoint and await of_clone(here, each.id).state() == "running":
            return each.id
    return (await here.checkpoints.restore(checkpoint)).id


async def _killed(here: Scene, what: str, how: str, delay: float | None) -> None:
    """Start what is to be killed, and kill it so long after it has begun to write, if it has not ended by then.

    Without a *delay* it comes to its end.
    """
    before = await asyncio.to_thread(_written, here)
    argv = ["-m", "tests.integration.checkpointer", str(here.node.endpoint), str(here.directory), what, how]
    child = await asyncio.create_subprocess_exec(sys.executable, *argv)
    try:
        async with asyncio.timeout(20):
            while await asyncio.to_thread(_written, here) == before:  # noqa: ASYNC110 - stokerd tells nobody
                await asyncio.sleep(0.002)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def _written(here: Scene) -> dict[Path, int]:
    """Return the directories of checkpoints and clones, and when something was last put into each."""
    found = {}
    for path in (each for pattern in ("cp-*", ".clones/*") for each in here.directory.glob(pattern)):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found
