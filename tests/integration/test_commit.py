"""Images made of real containers: CRI runs them at once, and the tree is what the container had."""

from __future__ import annotations

import asyncio

import pytest

from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.errors import TreeUnsupported
from stokerd.checkpoints.imaging import parse_change
from tests.integration.checkpoint_scene import COUNT, scene
from tests.rig.node import Node

WORK = (
    "echo kept >/kept; ln /kept /linked; rm /etc/group; rm -r /var; mkdir /var; mkfifo /fifo; chmod 4711 /bin/busybox; "
)


async def test_the_image_runs_at_once(node: Node) -> None:
    async with scene(node, WORK + COUNT) as here:
        name = "stoker.test/committed:v1"
        changes = (parse_change("ENV NEW=1"), parse_change('CMD ["sleep", "600"]'))
        made = await here.checkpoints.commit(here.container, CommitWish(name, changes=changes))
        again = await here.checkpoints.commit(here.container, CommitWish("stoker.test/committed:v2"))
        await here.goes_on()
        assert 0 < made.frozen_ms < 1000
        assert made.id != again.id
        pod = await here.bare.run_pod("from-the-image")
        container = await here.bare.run(pod, "main", image=name, command=[])
        look = (
            "cat /kept; ls -l /kept | awk '{print $2}'; ls /etc /var; echo $NEW; stat -c %a /bin/busybox; test -p /fifo"
        )
        said = (await here.bare.exec(container, "sh", "-c", look)).split()
        assert said[:2] == ["kept", "2"]
        assert "group" not in said
        assert "passwd" in said
        assert said[-2:] == ["1", "4711"]
        assert int(await here.bare.exec(container, "cat", "/count")) > 0
        await here.bare.remove_pod(pod)
        await asyncio.to_thread(node.ctr, "images", "rm", "--sync", name, "stoker.test/committed:v2", made.id, again.id)
        assert not [lease.id for lease in await here.runtime.leases.list() if lease.id.startswith("stoker-")]


async def test_names_that_would_delete_something_are_refused(node: Node) -> None:
    async with scene(node, "touch /etc/.wh.passwd; " + COUNT) as here:
        with pytest.raises(TreeUnsupported, match=r"etc/\.wh\.passwd"):
            await here.checkpoints.commit(here.container, CommitWish("stoker.test/refused:v1"))
        await here.goes_on()
        assert await here.runtime.images.get("stoker.test/refused:v1") is None
