"""Images made of real containers: CRI runs them at once, and the tree is what the container had."""

from __future__ import annotations

import asyncio
import os

import pytest

from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.errors import TreeUnsupported
from stokerd.checkpoints.imaging import parse_change
from stokerd.checkpoints.overlay import root_of
from tests.conformance.subject import eventually
from tests.integration.checkpoint_scene import COUNT, Scene, scene
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
        assert made.frozen_ms > 0
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
        assert await here.leases() == []


async def test_the_tree_is_the_containers_file_by_file(node: Node) -> None:
    """As layers on the base, squashed to one, and compared by containerd where only overlay knows what it means."""
    work = (
        WORK
        + "ln -s /etc/passwd /link; mkdir -p /new/dir; echo x >/new/dir/file; chown 12:34 /new/dir; "
        + "truncate -s 5m /hole; "
    )
    async with scene(node, work + "echo 1 >/count; sleep 1; echo 2 >/count; sleep 600 & wait") as here:

        async def settled() -> bool:
            return await here.count() == 2

        await eventually("nothing is written any more", settled)
        wanted = await _tree(here, here.container)
        record = await here.runtime.records.get(here.container)
        assert record is not None
        root = root_of(await here.runtime.snapshots.mounts(record.snapshot_key))
        assert root is not None
        own = f"{here.runtime.info.host_root}{root.upper}/new"
        wishes = [CommitWish("stoker.test/tree:zstd", compression="zstd", level=3)]
        wishes.append(CommitWish("stoker.test/tree:squashed", squash=True))
        wishes.append(CommitWish("stoker.test/tree:walked", compression="zstd"))
        ids = []
        for wish in wishes:
            if wish.name.endswith("walked"):
                os.setxattr(own, "trusted.overlay.redirect", b"/nowhere")
            made = await here.checkpoints.commit(here.container, wish)
            ids.append(made.id)
            assert made.walked == wish.name.endswith("walked")
            pod = await here.bare.run_pod("tree")
            container = await here.bare.run(pod, "main", image=wish.name, command=["sleep", "600"])
            found = await _tree(here, container)
            if made.walked:  # containerd's comparison takes no notice of a directory's time alone
                assert _without_times(found) == _without_times(wanted)
            else:
                assert found == wanted
            await here.bare.remove_pod(pod)
        names = [wish.name for wish in wishes]
        await asyncio.to_thread(node.ctr, "images", "rm", "--sync", *names, *ids)
        assert await here.leases() == []


@pytest.mark.criu
async def test_of_a_clone_it_is_all_that_the_clone_has(node: Node) -> None:
    """What the checkpoint had and the clone left alone is in the layer, and nothing of it stands on the checkpoint."""
    name = "stoker.test/tree:clone"
    async with scene(node, WORK + "echo 1 >/count; sleep 1; echo 2 >/count; sleep 600 & wait") as here:

        async def settled() -> bool:
            return await here.count() == 2

        await eventually("nothing is written any more", settled)
        wanted = await _tree(here, here.container)
        kept = await here.checkpoints.create(here.container)
        clone = await here.checkpoints.clone(kept.id, hook=("sh", "-c", "rm /linked; echo own >/own"))
        made = await here.checkpoints.commit(clone.id, CommitWish(name))
        await here.checkpoints.remove_clone(clone.id)
        await here.checkpoints.remove(kept.id)
        pod = await here.bare.run_pod("tree")
        container = await here.bare.run(pod, "main", image=name, command=["sleep", "600"])
        found = await _tree(here, container)
        differing = {line.split()[0] for line in set(found) ^ set(wanted)}
        assert {each for each in differing if each.startswith("/")} == {"/kept", "/linked", "/own"}
        await here.bare.remove_pod(pod)
        await asyncio.to_thread(node.ctr, "images", "rm", "--sync", name, made.id)


def _without_times(tree: list[str]) -> list[str]:
    return [line.rpartition(" ")[0] if " directory " in line else line for line in tree]


async def _tree(here: Scene, container: str) -> list[str]:
    """Return every entry of a container's root with what it is, times included, and the digests of all files."""
    own = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc", "/run", "/")
    leave = " ".join([f"! -path '{each}*'" for each in ("/proc", "/sys", "/dev")] + [f"! -path {each}" for each in own])
    look = (
        f"find / -xdev {leave} -type d -exec stat -c '%n %F %a %u %g %Y' {{}} + ; "  # overlay counts no links of these
        f"find / -xdev {leave} ! -type d -exec stat -c '%n %F %a %u %g %h %Y %s %N' {{}} + ; "
        f"find / -xdev {leave} -type f -exec md5sum {{}} +"
    )
    return sorted((await here.bare.exec(container, "sh", "-c", look)).splitlines())


async def test_names_that_would_delete_something_are_refused(node: Node) -> None:
    async with scene(node, "touch /etc/.wh.passwd; " + COUNT) as here:
        with pytest.raises(TreeUnsupported, match=r"etc/\.wh\.passwd"):
            await here.checkpoints.commit(here.container, CommitWish("stoker.test/refused:v1"))
        await here.goes_on()
        assert await here.runtime.images.get("stoker.test/refused:v1") is None
