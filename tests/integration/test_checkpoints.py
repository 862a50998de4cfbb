"""Checkpoints of real containers by real CRIU: they go on, what was taken is whole, what failed leaves nothing."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from stokerd.checkpoints.catching import freezer_of
from stokerd.checkpoints.criu import Version, parse_version
from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointNoSpace, CheckpointRefused
from stokerd.checkpoints.model import Intent, Wish
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.surveying import sees_all, survey
from tests.integration.checkpoint_scene import (
    COUNT,
    LARGE,
    TALK,
    Scene,
    apart,
    counted,
    modes,
    nothing_surveyed,
    of_clone,
    scene,
)
from tests.rig.node import Node
from tests.rig.waiting import until

pytestmark = pytest.mark.criu


async def test_a_program_goes_on_and_what_was_taken_is_whole(node: Node) -> None:
    async with scene(node) as here:
        before = await here.count()
        first = await here.checkpoints.create(here.container, Wish(name="first"))
        await here.goes_on()
        second = await here.checkpoints.create(here.container, Wish(name="second"))
        assert await here.goes_on() > before
        assert [each.name for each in await here.checkpoints.list()] == ["first", "second"]
        assert first.source.container_id == here.container
        assert first.source.image_digest.startswith("sha256:")
        assert first.node.criu == here.runtime.info.criu_version != ""
        assert first.frozen_ms > 0
        assert first.shm_digest
        names = {part.path for part in first.parts}
        assert {"images/inventory.img", "images/pstree.img", "spec.json", "record.msgpack"} <= names
        assert modes(here.directory / first.id / "images") == {"0o600"}
        for each in (first, second):
            assert await here.checkpoints.verify(each.id) == each
        assert await counted(here, first.root.snapshot) < await counted(here, second.root.snapshot)
        pages = next(path for path in (here.directory / first.id / "images").glob("pages-*.img"))
        with pages.open("r+b") as file:
            file.write(b"damaged")
        with pytest.raises(CheckpointDamaged, match=pages.name):
            await here.checkpoints.verify(first.id)
        await here.runtime.snapshots.view("view-that-is-collected", second.root.snapshot)
        await here.runtime.leases.create("collecting", {})
        await here.runtime.leases.delete("collecting")
        assert await here.runtime.snapshots.stat("view-that-is-collected") is None
        await here.checkpoints.remove(second.id)  # containerd counts that view as its child still


async def test_what_criu_cannot_take_is_named_before_and_after(node: Node) -> None:
    async with scene(node, TALK) as here:
        with pytest.raises(CheckpointRefused, match="established TCP"):
            await here.checkpoints.create(here.container)
        blind = Checkpoints(here.runtime, str(here.directory), "blind", survey=nothing_surveyed)
        with pytest.raises(CheckpointRefused, match="established TCP") as caught:
            await blind.create(here.container)
        assert "tcp: close" in str(caught.value.hint)
        await here.goes_on()
        assert await here.left() == []
        if parse_version(here.runtime.info.criu_version) < Version(4, 2):
            with pytest.raises(CheckpointRefused, match="sockets of this kernel"):
                await here.checkpoints.create(here.container, Wish(tcp="established"))
            return
        kept = await here.checkpoints.create(here.container, Wish(tcp="established"))
        await here.goes_on()
        await here.checkpoints.verify(kept.id)


async def test_processes_of_other_users_than_root(node: Node) -> None:
    """CRIU takes them where containerd may look at their limits; where it may not, that is told."""
    async with scene(node) as here:
        linux = apart()
        linux.security_context.run_as_user.value = 65534
        program = COUNT.replace(" /count", " /tmp/count").replace(">/count", ">/tmp/count")
        container = await here.bare.run(here.pod, "nobody", command=["sh", "-c", program], linux=linux)
        there = replace(here, container=container, file="tmp/count")
        await there.goes_on()
        if sees_all(here.runtime.info.pid):
            kept = await here.checkpoints.create(container)
            clone = await here.checkpoints.clone(kept.id)
            await of_clone(there, clone.id).goes_on()
            await here.checkpoints.remove_clone(clone.id)
        else:
            with pytest.raises(CheckpointRefused, match="another user") as caught:
                await here.checkpoints.create(container)
            assert "CAP_SYS_RESOURCE" in str(caught.value.hint)
        await there.goes_on()


async def test_a_disk_that_fills_up_during_the_dump(node: Node) -> None:
    directory = node.artifacts_dir / "small"
    directory.mkdir()
    node.run("mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", directory)
    try:
        async with scene(node, directory=directory) as here:
            with pytest.raises(CheckpointRefused, match="MiB are free"):
                await here.checkpoints.create(here.container)
            blind = Checkpoints(here.runtime, str(directory), "blind", survey=nothing_surveyed)
            with pytest.raises(CheckpointNoSpace):
                await blind.create(here.container)
            await here.goes_on()
            assert await here.left() == []
    finally:
        node.run("umount", directory)


async def test_stokerd_is_killed_in_the_middle(node: Node) -> None:
    """Its successor waits for the CRIU that is left, thaws, and removes what there is: it is complete, or gone."""
    async with scene(node, LARGE) as here:
        for number, delay in enumerate((0.0, 0.1, 0.0, 0.05, 0.15)):
            if number == 2:  # more files than can be copied while CRIU holds the processes: from now on it is frozen
                await here.bare.exec(here.container, "sh", "-c", "mkdir /many; cd /many; touch $(seq 300)")
            await _kill_while_dumping(here, delay, frozen=number >= 2)
            done = await here.checkpoints.converge()
            assert done.left == []
            for complete in await here.checkpoints.list():
                await here.checkpoints.verify(complete.id)
                await here.checkpoints.remove(complete.id)
            assert await here.left() == []
            await here.goes_on()
            assert await here.state() == "running"
        made = await here.checkpoints.create(here.container)
        await here.checkpoints.verify(made.id)
        await here.goes_on()


async def test_stokerd_and_criu_are_killed_while_criu_alone_holds_a_container(node: Node) -> None:
    """CRIU has frozen its cgroup, of which containerd knows nothing: the intent is all that there is of it."""
    async with scene(node) as here:
        task = await here.runtime.tasks.get(here.container)
        assert task is not None
        shelf = Shelf(str(here.directory))
        await asyncio.to_thread(shelf.open)
        intent = Intent("cp-20260101-000000-abcdef", here.container, datetime.now(UTC))
        await asyncio.to_thread(shelf.begin, intent)
        await asyncio.to_thread(_freeze_as_criu_does, task.pid)
        stood = await here.count()
        assert await here.state() == "running"
        done = await here.checkpoints.converge()
        assert (done.thawed, done.removed, done.left) == ([here.container], [intent.id], [])
        assert await here.goes_on() > stood


def _freeze_as_criu_does(first: int) -> None:
    """Freeze the cgroup of a process, and return when none of it runs."""
    switch = freezer_of(first)
    assert switch is not None
    switch.path.write_text(switch.on)
    told = switch.path if switch.on == "FROZEN" else switch.path.with_name("cgroup.events")
    until("it stands", lambda: {"frozen 1", "FROZEN"} & set(told.read_text().splitlines()))


async def _kill_while_dumping(here: Scene, delay: float, *, frozen: bool) -> None:
    argv = ["-m", "tests.integration.checkpointer", str(here.node.endpoint), str(here.directory), here.container]
    child = await asyncio.create_subprocess_exec(sys.executable, *argv)
    try:
        async with asyncio.timeout(20):
            while child.returncode is None:  # stokerd tells nobody before it is done
                if await _begun(here, frozen=frozen):
                    break
                await asyncio.sleep(0.001)
        await asyncio.sleep(delay)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _begun(here: Scene, *, frozen: bool) -> bool:
    return await here.state() == "paused" if frozen else any(here.directory.glob("cp-*/images/*"))


async def test_pausing(node: Node) -> None:
    async with scene(node) as here:
        await here.checkpoints.pause(here.container)
        await here.checkpoints.pause(here.container)
        stood = await here.count()
        successor = Checkpoints(here.runtime, str(here.directory), "stokerd-of-the-test", survey=survey)
        assert (await successor.converge()).thawed == []
        assert (await here.state(), await here.count()) == ("paused", stood)
        kept = await successor.create(here.container)
        assert await here.state() == "paused"
        await successor.verify(kept.id)
        await successor.resume(here.container)
        await successor.resume(here.container)
        assert await here.goes_on() > stood
