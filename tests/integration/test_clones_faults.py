"""What goes away beneath clones: containerd, CRIU, a network that was made ahead."""

from __future__ import annotations

import asyncio

import pytest

from stokerd.checkpoints.errors import CheckpointRefused
from stokerd.checkpoints.service import Checkpoints
from stokerd.errors import RuntimeUnavailable
from tests.integration.checkpoint_scene import LARGE, Scene, of_clone, scene
from tests.integration.checkpointer import OWNER, room
from tests.rig.node import Node

pytestmark = pytest.mark.criu


async def test_containerd_is_restarted_while_memory_is_out(node: Node) -> None:
    """Clones and helpers are none of its children; what it was asked meanwhile it answers afterwards."""
    async with scene(node, LARGE) as here:
        kept = await here.checkpoints.create(here.container)
        life = asyncio.create_task(here.checkpoints.run())
        clones = [await here.checkpoints.clone(kept.id, mode="lazy") for _ in range(2)]
        await asyncio.to_thread(node.kill_containerd)
        try:
            for attempt in (
                here.checkpoints.clone(kept.id),
                here.checkpoints.list(),
                here.checkpoints.inspect(kept.id),
            ):
                with pytest.raises(RuntimeUnavailable):
                    await attempt
        finally:
            await asyncio.to_thread(node.start_containerd)
        await asyncio.wait_for(here.runtime.wait_ready(), 20)
        for clone in clones:
            await of_clone(here, clone.id).goes_on()
            await loaded(here, clone.id)
            await of_clone(here, clone.id).goes_on()
        assert {each.id for each in await here.checkpoints.clones()} == {clone.id for clone in clones}
        for clone in clones:
            await here.checkpoints.remove_clone(clone.id)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await here.goes_on()


async def loaded(here: Scene, clone: str) -> None:
    async with asyncio.timeout(30):
        while (await here.clone(clone)).memory != "loaded":  # noqa: ASYNC110 - the room tells nobody
            await asyncio.sleep(0.02)


async def test_criu_is_missing(node: Node) -> None:
    """It goes away while stokerd runs, and is missing when stokerd starts."""
    async with scene(node) as here:
        kept = await here.checkpoints.create(here.container)
        before = await here.left()
        node.run("mv", "/usr/sbin/criu", "/usr/sbin/criu.away")
        try:
            async with room(str(node.endpoint), str(here.directory)) as (fresh, _):
                for each in (here.checkpoints, fresh):
                    with pytest.raises(CheckpointRefused, match="there is no criu"):
                        await each.create(here.container)
                    with pytest.raises(CheckpointRefused, match="there is no criu"):
                        await each.clone(kept.id)
        finally:
            node.run("mv", "/usr/sbin/criu.away", "/usr/sbin/criu")
        assert await here.left() == before
        await here.goes_on()
        again = await here.checkpoints.clone(kept.id)
        await here.checkpoints.remove_clone(again.id)


async def test_networks_made_ahead(node: Node) -> None:
    """One goes to a clone with its address; a successor adopts what is as it was made, and gives the rest back."""
    async with scene(node) as here:
        kept = await here.checkpoints.create(here.container)
        await here.checkpoints.connect(3)
        clone = await here.checkpoints.clone(kept.id)
        assert clone.netns.startswith("ahead-")
        await of_clone(here, clone.id).goes_on()
        lost, good = sorted(path.stem for path in (here.directory / ".networks").iterdir())
        node.run("umount", f"/run/stoker/netns/{lost}")
        successor = Checkpoints(here.runtime, str(here.directory), OWNER)
        life = asyncio.create_task(successor.run())
        await successor.connect(1)
        names = [path.stem for path in (here.directory / ".networks").iterdir()]
        assert names == [good]
        taken = await successor.clone(kept.id)
        assert taken.netns == good
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await successor.connect(0)
        for each in (clone, taken):
            await successor.remove_clone(each.id)
