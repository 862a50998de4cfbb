"""All containers of a real pod in one freeze, and containers that are stopped and come back."""

from __future__ import annotations

import pytest

from stokerd.checkpoints.errors import CheckpointRefused
from stokerd.checkpoints.model import Wish
from tests.integration.checkpoint_scene import COUNT, TALK, apart, counted, of_clone, scene
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
        for each in group.members:
            await here.checkpoints.verify(each.id)
        print("frozen", group.members[0].frozen_ms)
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
