"""Checkpoints, clones, pauses and commits as people have them: by the command line, through a real stokerd."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.objects.checkpoints import CheckpointRequest
from stokerd.checkpoints.surveying import dumpers
from tests.conformance.subject import eventually
from tests.integration.checkpoint_scene import COUNT, LARGE, apart, read
from tests.integration.conftest import MakeStokerd
from tests.rig.node import Node
from tests.rig.pods import BareCri
from tests.rig.processes import stopped
from tests.rig.stokerd import Stokerd

pytestmark = pytest.mark.criu

IMAGE = "stoker.test/counted:v1"


async def cli(stokerd: Stokerd, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = await asyncio.to_thread(stokerd.cli, *arguments)
    assert done.returncode == code, (
        f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}\n{stokerd.log()[-2000:]}"
    )
    return done


async def as_json(stokerd: Stokerd, *arguments: str, code: int = 0) -> Any:
    return json.loads((await cli(stokerd, *arguments, "--json", code=code)).stdout)


async def count(bare: BareCri, container: str) -> int:
    return int((await bare.exec(container, "sh", "-c", "cat /count 2>/dev/null || echo 0")).strip())


async def goes_on(bare: BareCri, container: str) -> int:
    """Return the count when it has grown."""
    before = await count(bare, container)

    async def grown() -> int:
        now = await count(bare, container)
        return now if now > before else 0

    return await eventually("it counts on", grown)


async def test_from_a_checkpoint_to_clones_and_an_image(make_stokerd: MakeStokerd, clean_node: Node) -> None:
    node = clean_node
    directory = node.artifacts_dir / "cli-checkpoints"
    stokerd = make_stokerd(node, checkpoints={"directory": str(directory)})
    async with BareCri(node) as bare:
        pod = await bare.run_pod("golden")
        container = await bare.run(pod, "app", command=["sh", "-c", COUNT], linux=apart())
        name = f"{pod.config.metadata.namespace}/{pod.name}"
        assert (await cli(stokerd, "checkpoint", "ls")).stdout == ""
        async with stokerd.client() as client:
            able = {each.name for each in (await client.node()).capabilities if each.available}
        assert {"checkpoint", "clone", "clone-lazy", "commit"} <= able

        made = await cli(stokerd, "checkpoint", "create", name, "app", "--name", "first", "--label", "a=1")
        assert "frozen" in made.stdout
        (listed,) = await as_json(stokerd, "checkpoint", "ls")
        assert (listed["name"], listed["pod"], listed["container"]) == ("first", pod.name, "app")
        assert (listed["labels"], listed["clones"]) == ({"a": "1"}, 0)
        shown = (await cli(stokerd, "checkpoint", "inspect", "first")).stdout
        assert listed["id"] in shown
        assert str(directory) in shown
        assert "as it was written" in (await cli(stokerd, "checkpoint", "verify", "first")).stdout
        start = await count(bare, container)

        cloned = await cli(stokerd, "clone", "first", "-n", "2", "--hostname", "twin")
        assert "2 clones" in cloned.stdout
        clones = await as_json(stokerd, "clone", "ls")
        assert len({each["addresses"][0] for each in clones}) == 2
        assert {each["phase"] for each in clones} == {"Running"}
        assert await count(bare, container) >= start
        refused = await cli(stokerd, "checkpoint", "rm", "first", code=6)
        assert "in use by 2" in refused.stderr
        assert "remove its clones first" in refused.stderr

        first, second = (each["id"] for each in clones)
        assert "paused" in (await cli(stokerd, "pause", f"{name}/app", first)).stdout
        assert await as_json(stokerd, "clone", "ls") != clones
        await cli(stokerd, "pause", f"{name}/app")
        assert "running" in (await cli(stokerd, "resume", f"{name}/app", first)).stdout
        now = await goes_on(bare, container)

        image = await as_json(stokerd, "commit", f"{name}/app", IMAGE, "--change", "ENV COMMITTED=yes")
        assert (image["phase"], image["image"]["image"]) == ("Succeeded", IMAGE)
        copy = await bare.run(pod, "copy", image=IMAGE, command=["sh", "-c", "sleep 600"])
        assert int(await bare.exec(copy, "cat", "/count")) >= now
        assert "COMMITTED=yes" in await bare.exec(copy, "env")

        await as_json(stokerd, "checkpoint", "create", f"{name}/app", "--name", "parked", "--stop")
        restored = await as_json(stokerd, "restore", "parked")
        assert (restored["phase"], restored["desired"]) == ("Succeeded", 1)
        (back,) = restored["clones"]
        assert back["podId"] == pod.id
        await eventually("it counts on in its place", lambda: further(back["pid"], now))
        await cli(stokerd, "clone", "rm", back["id"])
        await cli(stokerd, "checkpoint", "rm", "parked")

        await cli(stokerd, "clone", "rm", first)
        await cli(stokerd, "clone", "rm", "--of", "first")
        await cli(stokerd, "checkpoint", "rm", "first")
        assert await as_json(stokerd, "checkpoint", "ls") == []
        assert second not in (await cli(stokerd, "clone", "ls")).stdout
        kinds = [each["kind"] for each in await as_json(stokerd, "operations")]
        assert kinds == ["Restore", "Checkpoint", "Commit", "Clone", "Verify", "Checkpoint"]
        assert left(directory) == []


async def further(pid: int, than: int) -> bool:
    return int(await asyncio.to_thread(read, f"/proc/{pid}/root/count") or 0) > than


async def test_stokerd_killed_in_the_middle(make_stokerd: MakeStokerd, clean_node: Node) -> None:
    node = clean_node
    directory = node.artifacts_dir / "cli-killed"
    stokerd = make_stokerd(node, checkpoints={"directory": str(directory)})
    async with BareCri(node) as bare:
        pod = await bare.run_pod("killed")
        container = await bare.run(pod, "app", command=["sh", "-c", LARGE], linux=apart())
        await goes_on(bare, container)
        async with stokerd.client() as client:
            asked = await client.create_checkpoint(CheckpointRequest(pod=pod.id, request="mine"))
            criu = await held_up(directory)
        await asyncio.to_thread(stokerd.kill)
        os.kill(criu, signal.SIGCONT)
        await asyncio.to_thread(stokerd.start)
        told = await cli(stokerd, "operations", "watch", "mine", code=1)
        assert "stokerd ended meanwhile" in told.stderr
        shown = await as_json(stokerd, "operations", "show", "mine")
        assert (shown["id"], shown["phase"], shown["reason"]) == (asked.id, "Failed", "Interrupted")
        await goes_on(bare, container)
        assert left(directory) == []
        await cli(stokerd, "checkpoint", "create", pod.id)
        (made,) = await as_json(stokerd, "checkpoint", "ls")
        await cli(stokerd, "checkpoint", "rm", made["id"])


async def held_up(directory: Path) -> int:
    """Stop CRIU in the middle of a dump, so that this lasts; return its process."""

    def stop() -> int:
        return next((each for each in dumpers(str(directory)) if stopped(each)), 0)

    return await eventually("CRIU to dump", lambda: asyncio.to_thread(stop))


def left(directory: Path) -> list[str]:
    return [str(path) for pattern in ("[!.]*", ".clones/*", ".pauses/*") for path in directory.glob(pattern)]
