"""Checkpoints of real containers by real CRIU: they go on, what was taken is whole, what failed leaves nothing."""

from __future__ import annotations

import asyncio
import itertools
import stat
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cri_stubs.cri.v1 import runtime_pb2 as cri
from stokerd.checkpoints.criu import Version, parse_version
from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointNoSpace, CheckpointRefused
from stokerd.checkpoints.model import CHECKPOINT_LABEL, Wish
from stokerd.checkpoints.preflight import Facts
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.surveying import dumpers, survey
from stokerd.runtime.containerd import Containerd
from tests.integration.checkpointer import room
from tests.rig.node import Node
from tests.rig.pods import BareCri

COUNT = "i=0; while :; do i=$((i+1)); echo $i >/count.new; mv /count.new /count; sleep 0.02; done"
TALK = "nc -l -p 7000 -e sleep 600 & sleep 0.2; nc 127.0.0.1 7000 & " + COUNT
LARGE = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); " + COUNT
_numbers = itertools.count()


def nothing_surveyed(
    facts: Facts, pids: Iterable[int], spec: Mapping[str, Any], images: str, upper: str, prefix: str
) -> Facts:
    """Let CRIU find out by itself what it cannot take."""
    return facts


def apart() -> cri.LinuxContainerConfig:
    """A PID namespace of the container's own: only such a one can be dumped without its pod."""
    options = cri.NamespaceOption(network=cri.POD, pid=cri.CONTAINER)
    return cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(namespace_options=options))


@dataclass
class Scene:
    """A container that counts, and the room that checkpoints it."""

    node: Node
    bare: BareCri
    checkpoints: Checkpoints
    runtime: Containerd
    directory: Path
    container: str

    async def count(self) -> int:
        """Read how far it is, off its root: what is frozen answers no command."""
        (mount,) = await self.runtime.snapshots.mounts(self.container)
        upper = next(each.partition("=")[2] for each in mount.options if each.startswith("upperdir="))
        text = await asyncio.to_thread(_read, f"{self.runtime.info.host_root}{upper}/count")
        return int(text or 0)

    async def goes_on(self) -> int:
        """Return the count when it has grown."""
        before = await self.count()
        async with asyncio.timeout(10):
            while (now := await self.count()) <= before:  # noqa: ASYNC110 - the program tells nobody
                await asyncio.sleep(0.01)
        return now

    async def state(self) -> str:
        task = await self.runtime.tasks.get(self.container)
        return task.state if task is not None else "gone"

    async def left(self) -> list[str]:
        """Return everything of ours that is there: files, snapshots, CRIU processes."""
        files = await asyncio.to_thread(_files, self.directory)
        found = [each.name for each in await self.runtime.snapshots.list() if CHECKPOINT_LABEL in each.labels]
        return [*files, *found, *map(str, dumpers(str(self.directory)))]


@asynccontextmanager
async def scene(
    node: Node, program: str = COUNT, *, directory: Path | None = None, **options: Any
) -> AsyncIterator[Scene]:
    directory = directory or node.artifacts_dir / f"checkpoints-{next(_numbers)}"
    async with BareCri(node) as bare, room(str(node.endpoint), str(directory), **options) as (checkpoints, runtime):
        pod = await bare.run_pod(f"checkpoints-{next(_numbers)}")
        container = await bare.run(pod, "main", command=["sh", "-c", program], linux=apart())
        made = Scene(node, bare, checkpoints, runtime, directory, container)
        await made.goes_on()
        yield made
        for each in await checkpoints.list():
            await checkpoints.remove(each.id)
        assert await made.left() == []


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _files(directory: Path) -> list[str]:
    return [str(path) for path in directory.glob("[!.]*")]


def _modes(directory: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in directory.iterdir() if path.is_file()}


async def test_a_program_goes_on_and_what_was_taken_is_whole(node: Node) -> None:
    async with scene(node) as here:
        before = await here.count()
        first = await here.checkpoints.create(here.container, Wish(name="first"))
        second = await here.checkpoints.create(here.container, Wish(name="second"))
        assert await here.goes_on() > before
        assert [each.name for each in await here.checkpoints.list()] == ["first", "second"]
        assert first.source.container_id == here.container
        assert first.source.image_digest.startswith("sha256:")
        assert first.node.criu == here.runtime.info.criu_version != ""
        assert 0 < first.frozen_ms < 5000
        assert first.shm_digest
        names = {part.path for part in first.parts}
        assert {"images/inventory.img", "images/pstree.img", "spec.json", "record.msgpack"} <= names
        assert _modes(here.directory / first.id / "images") == {"0o600"}
        for each in (first, second):
            assert await here.checkpoints.verify(each.id) == each
        assert await _counted(here, first.root.snapshot) < await _counted(here, second.root.snapshot)
        pages = next(path for path in (here.directory / first.id / "images").glob("pages-*.img"))
        with pages.open("r+b") as file:
            file.write(b"damaged")
        with pytest.raises(CheckpointDamaged, match=pages.name):
            await here.checkpoints.verify(first.id)


async def _counted(here: Scene, snapshot: str) -> int:
    """Read the count off the root filesystem of a checkpoint."""
    labels = {CHECKPOINT_LABEL: "test"}
    (mount,) = await here.runtime.snapshots.view("view-of-test", snapshot, labels=labels)
    lower = next(each.partition("=")[2] for each in mount.options if each.startswith("lowerdir=")).split(":")[0]
    text = await asyncio.to_thread(_read, f"{here.runtime.info.host_root}{lower}/count")
    await here.runtime.snapshots.remove("view-of-test")
    return int(text)


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
    """Its successor waits for the CRIU that is left, thaws, and removes what there is."""
    async with scene(node, LARGE) as here:
        for delay in (0.0, 0.05, 0.15):
            await _kill_while_frozen(here, delay)
            done = await Checkpoints(here.runtime, str(here.directory), "stokerd-of-the-test").converge()
            assert done.left == []
            await here.goes_on()
            assert await here.state() == "running"
            assert await here.left() == []
        made = await here.checkpoints.create(here.container)
        await here.checkpoints.verify(made.id)
        await here.goes_on()


async def _kill_while_frozen(here: Scene, delay: float) -> None:
    argv = ["-m", "tests.integration.checkpointer", str(here.node.endpoint), str(here.directory), here.container]
    child = await asyncio.create_subprocess_exec(sys.executable, *argv)
    try:
        async with asyncio.timeout(20):
            while await here.state() != "paused":  # noqa: ASYNC110 - stokerd tells nobody before it is done
                await asyncio.sleep(0.001)
        await asyncio.sleep(delay)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


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
