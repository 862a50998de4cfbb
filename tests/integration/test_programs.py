"""Programs that people run, checkpointed and cloned: each goes on in its clone as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.criu import Version, parse_version
from stokerd.checkpoints.errors import CheckpointRefused
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.model import Wish
from tests.integration.checkpoint_scene import Scene, apart, counted, of_clone, read, scene
from tests.rig import programs
from tests.rig.node import Node

pytestmark = pytest.mark.criu

_SYS_RESOURCE = 24


def as_postgres(node: Node) -> dict[str, Any]:
    """Return how PostgreSQL is run: as a user of its own, where CRIU can dump that."""
    status = read(f"/proc/{node.pid}/status").split("CapEff:")[1].split()[0]
    if not int(status, 16) >> _SYS_RESOURCE & 1:
        return {"env": {"LD_PRELOAD": "/programs/as_user.so"}}
    config = apart()
    config.security_context.run_as_user.value = programs.POSTGRES
    config.security_context.run_as_group.value = programs.POSTGRES
    return {"linux": config}


@asynccontextmanager
async def running(here: Scene, *command: str, file: str = "count", **options: Any) -> AsyncIterator[Scene]:
    """A program of the image, in the scene's pod, that has begun to count."""
    await asyncio.to_thread(here.node.import_image, programs.image_archive())
    while await here.runtime.cri.status(programs.REFERENCE) is None:  # noqa: ASYNC110 - CRI learns of it by an event
        await asyncio.sleep(0.02)
    options.setdefault("linux", apart())
    name = command[-1].rpartition("/")[2].partition(".")[0]
    container = await here.bare.run(here.pod, name, image=programs.REFERENCE, command=command, **options)
    there = replace(here, container=container, file=file)
    await there.goes_on(60)
    yield there
    await here.bare.stop(container, 0)
    await here.bare.remove(container)


async def cloned(there: Scene, wish: Wish | None = None, **options: Any) -> tuple[Manifest, Clone, Scene]:
    """Checkpoint and clone it; both go on from the same number, and neither has found anything that is not right."""
    kept = await there.checkpoints.create(there.container, wish or Wish())
    start = await counted(there, kept.root.snapshot, there.file)
    clone = await there.checkpoints.clone(kept.id, **options)
    copy = of_clone(there, clone.id)
    assert await copy.goes_on() > start
    await there.goes_on()
    for each in (there, copy):
        assert await each.text("bad") == ""
        assert await each.state() == "running"
    return kept, clone, copy


async def gone(there: Scene, kept: Manifest, *clones: Clone) -> None:
    for clone in clones:
        await there.checkpoints.remove_clone(clone.id)
    await there.checkpoints.remove(kept.id)


async def test_programs(node: Node) -> None:
    """One after the other on one node: what each of them finds to be wrong, it writes to a file."""
    async with scene(node) as here:
        modern = parse_version(here.runtime.info.criu_version) >= Version(4, 2)
        kept, clone, _ = await cloned(here)
        await gone(here, kept, clone)

        async with running(here, "/programs/kinds") as there:
            kept, clone, _ = await cloned(there)
            again, second, _ = await cloned(of_clone(there, clone.id))  # a clone of a clone
            await gone(there, again, second)
            await gone(there, kept, clone)

        async with running(here, "python3", "/programs/threads.py") as there:
            if modern:
                kept, clone, _ = await cloned(there)
                await gone(there, kept, clone)
            else:  # stacks of threads have guard regions since the C library of this image
                with pytest.raises(CheckpointRefused, match="guard regions"):
                    await there.checkpoints.create(there.container)
                await there.goes_on()

        if modern:  # CRIU before that knows no sockets of this kernel
            async with running(here, "python3", "/programs/serve.py") as there:
                asked = await there.bare.ip(there.pod)
                assert await fetch(node, asked) == "asked 1"
                kept, clone, _ = await cloned(there)
                other = await there.checkpoints.clone(kept.id)
                for address in (clone.addresses[0], other.addresses[0], asked):
                    assert await fetch(node, address) == "asked 2"
                await gone(there, kept, clone, other)


async def test_postgres(node: Node) -> None:
    """Taken in the middle of transactions, it is whole in its clones, which go on writing, each for itself."""
    async with (
        scene(node) as here,
        running(here, "sh", "/programs/postgres.sh", file="tmp/count", **as_postgres(node)) as there,
    ):
        check = ("sh", "/programs/postgres_check.sh")
        while await there.count() < 50:
            await there.goes_on()
        kept = await there.checkpoints.create(there.container)
        assert kept.shm_digest
        clones = [await there.checkpoints.clone(kept.id, hook=check) for _ in range(2)]
        for clone in clones:
            copy = of_clone(there, clone.id)
            await copy.goes_on()
            assert await copy.text("tmp/bad") == ""
        assert await there.text("tmp/bad") == ""
        await gone(there, kept, *clones)


async def test_a_gibibyte_comes_after_the_start(node: Node) -> None:
    if node.suite != "forky":
        return  # one generation is enough for so much
    async with scene(node) as here, running(here, "/programs/large", args=["1024"]) as there:
        kept = await there.checkpoints.create(there.container)
        life = asyncio.create_task(there.checkpoints.run())
        clone = await there.checkpoints.clone(kept.id, mode="lazy")
        copy = of_clone(there, clone.id)
        await copy.goes_on()
        assert clone.memory == "loading"
        while (await there.clone(clone.id)).memory == "loading":
            await copy.goes_on()
        assert (await there.clone(clone.id)).memory == "loaded"
        await copy.goes_on()
        assert await copy.text("bad") == ""
        await gone(there, kept, clone)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def fetch(node: Node, address: str) -> str:
    ask = f"exec 3<>/dev/tcp/{address}/8080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    answer = await asyncio.to_thread(node.run, "bash", "-c", ask)
    return answer.stdout.splitlines()[-1].strip()
