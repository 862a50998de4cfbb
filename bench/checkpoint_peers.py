"""All that are compared: Stoker's room, containerd's CRI, podman and CRIU alone, each with the same program."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import ticking
from bench.podman import Podman, tick_program
from bench.ticking import Ticker, first_tick, now
from cri_stubs.cri.v1 import runtime_pb2 as cri
from stokerd.checkpoints.clone_types import Mode
from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.service import Checkpoints
from stokerd.runtime.containerd import Containerd
from tests.integration.checkpoint_scene import apart
from tests.integration.checkpointer import room
from tests.rig.node import Node, NodeOptions
from tests.rig.pods import BareCri, RigPod
from tests.rig.push import Pushed
from tests.rig.registry import Registry

_DUMP_TIMEOUT = 120
_numbers = itertools.count()


@dataclass(frozen=True)
class Running:
    """A container (or process) that ticks."""

    id: str
    ticker: Ticker
    directory: Path


async def upper(runtime: Containerd, container: str) -> Path:
    """Return the upper directory of a container, as it is reached from here."""
    record = await runtime.records.get(container)
    assert record is not None
    (mount,) = await runtime.snapshots.mounts(record.snapshot_key)
    found = next(each.partition("=")[2] for each in mount.options if each.startswith("upperdir="))
    return Path(f"{runtime.info.host_root}{found}")


@dataclass
class OnContainerd:
    """A node with containerd, and containers made over CRI."""

    node: Node
    bare: BareCri
    checkpoints: Checkpoints
    runtime: Containerd

    async def pull(self, image: Pushed) -> None:
        """CRI restores only what was made from an image that was pulled."""
        wish = cri.PullImageRequest(image=cri.ImageSpec(image=image.reference))
        await self.bare.images.PullImage(wish, timeout=300)

    async def run(self, image: Pushed, memory_mib: int = 0) -> Running:
        pod = await self.bare.run_pod(f"bench-{next(_numbers)}")
        command = ticking.command(memory_mib)
        container = await self.bare.run(pod, "main", image=image.reference, command=command, linux=apart())
        return await self.running(container)

    async def running(self, container: str) -> Running:
        directory = await upper(self.runtime, container)
        ticker = Ticker(directory)
        await ticker.beyond(0)
        return Running(container, ticker, directory)


class Stoker(OnContainerd):
    """Ours, without the API in front."""

    async def freeze(self, golden: Running) -> float:
        """Return for how long the container stood, in ms."""
        await golden.ticker.reset()
        kept = await self.checkpoints.create(golden.id)
        gap = await golden.ticker.gap()
        await self.checkpoints.remove(kept.id)
        return gap

    async def clone(self, kept: Manifest, mode: Mode = "auto", *, connected: bool = False) -> float:
        """Return how long it took until the clone ticked, in ms; *connected*: into a network that was there before.

        The clone is removed again.
        """
        if connected:
            await self.checkpoints.connect(1)
        began = now()
        clone = await self.checkpoints.clone(kept.id, mode=mode)
        took = await first_tick(Ticker(await upper(self.runtime, clone.id)), began)
        await self.checkpoints.remove_clone(clone.id)
        return took

    async def clone_cold(self, kept: Manifest, mode: Mode) -> float:
        """The same into a network that was there before; memory lies on the disk, and not in the page cache."""
        await asyncio.to_thread(_forget, Path(f"{self.node.artifacts_dir}/kept/{kept.id}/images"))
        return await self.clone(kept, mode, connected=True)

    async def commit(self, container: str, name: str) -> None:
        await self.checkpoints.commit(container, CommitWish(name))


class Cri(OnContainerd):
    """containerd's own, with CRIU as it comes."""

    async def checkpoint(self, golden: Running, location: Path) -> float:
        """Return for how long the container stood, in ms."""
        await golden.ticker.reset()
        wish = cri.CheckpointContainerRequest(container_id=golden.id, location=str(location), timeout=_DUMP_TIMEOUT)
        await self.bare.runtime.CheckpointContainer(wish, timeout=_DUMP_TIMEOUT)
        return await golden.ticker.gap()

    async def freeze(self, golden: Running) -> float:
        location = self.node.artifacts_dir / "measured.tar"
        gap = await self.checkpoint(golden, location)
        location.unlink()
        return gap

    async def restore(self, archive: Path) -> float:
        """Return how long it took until the restored container ticked, in ms; its sandbox was there before."""
        pod: RigPod = await self.bare.run_pod(f"bench-{next(_numbers)}")
        try:
            began = now()
            container = await self.bare.create(
                pod, "main", image=str(archive), command=ticking.command(), linux=apart()
            )
            await self.bare.start(container)
            return await first_tick(Ticker(await upper(self.runtime, container)), began)
        finally:
            await self.bare.remove_pod(pod)

    async def diff(self, container: str) -> None:
        """Have containerd's diff service make the layer, and nothing else of a commit; ctr prints it to nowhere."""
        record = await self.runtime.records.get(container)
        assert record is not None
        script = (
            f"ctr --address {self.node.endpoint} --namespace k8s.io snapshots diff {record.snapshot_key} >/dev/null"
        )
        await asyncio.to_thread(self.node.run, "sh", "-c", script)

    # ------------------------------------------------------------------------------------------ CRIU alone

    async def run_bare(self, memory_mib: int) -> Running:
        """Start the program without any container."""
        directory = self.node.artifacts_dir / "bare"
        directory.mkdir()
        program = directory / "program"
        program.write_bytes(tick_program())
        program.chmod(0o755)
        command = ticking.command(memory_mib)
        process = self.node.popen(program, directory / ticking.FILE, *command[2:])
        ticker = Ticker(directory)
        await ticker.beyond(0)
        return Running(str(process.pid), ticker, directory)

    async def end_bare(self, golden: Running) -> None:
        await asyncio.to_thread(self.node.run, "kill", "-9", golden.id)

    async def freeze_bare(self, golden: Running) -> float:
        images = self.node.artifacts_dir / "bare-images"
        images.mkdir()
        await golden.ticker.reset()
        options = ("--leave-running", "--network-lock", "skip", "-o", "dump.log", "-v2")
        await asyncio.to_thread(self.node.run, "criu", "dump", "-t", golden.id, "-D", images, *options)
        gap = await golden.ticker.gap()
        shutil.rmtree(images)
        return gap


class OfPodman:
    """podman as people run it, in a root of its own."""

    def __init__(self, node: Podman) -> None:
        self.node = node

    async def run(self, image: str) -> Running:
        name = f"bench-{next(_numbers)}"
        await self._podman("run", "--detach", "--name", name, image, *ticking.command())
        return await self._running(name)

    async def freeze(self, golden: Running) -> float:
        await golden.ticker.reset()
        await self._podman("container", "checkpoint", "--leave-running", golden.id)
        return await golden.ticker.gap()

    async def checkpoint(self, golden: Running, archive: Path) -> None:
        """Make an archive, from which podman makes clones."""
        options = ("--leave-running", "--compress", "none", "--export", str(archive))
        await golden.ticker.reset()
        await self._podman("container", "checkpoint", *options, golden.id)

    async def clone(self, archive: Path) -> float:
        """Return how long it took until the clone ticked, in ms. The clone is removed again."""
        name = f"bench-{next(_numbers)}"
        began = now()
        await self._podman("container", "restore", "--import", str(archive), "--name", name)
        took = await first_tick(Ticker(await asyncio.to_thread(self.node.upper, name)), began)
        await self._podman("rm", "--force", "--time", "0", name)
        return took

    async def commit(self, container: str, name: str) -> None:
        await self._podman("commit", "--quiet", container, name)

    async def _running(self, name: str) -> Running:
        directory = await asyncio.to_thread(self.node.upper, name)
        ticker = Ticker(directory)
        await ticker.beyond(0)
        return Running(name, ticker, directory)

    async def _podman(self, *argv: str) -> None:
        await asyncio.to_thread(self.node.podman, *argv)


def _forget(directory: Path) -> None:
    """Drop files from the page cache, as if they had not been used for long."""
    os.sync()
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Peers:
    """Everybody, and where their images come from."""

    stoker: Stoker
    cri: Cri
    podman: OfPodman
    registry: Registry


@asynccontextmanager
async def peers(workdir: Path) -> AsyncIterator[Peers]:
    """Start a registry and three nodes: Stoker changes CRIU's configuration of its own."""
    async with AsyncExitStack() as stack:
        registry = stack.enter_context(Registry("bench-checkpoints", workdir=workdir))
        made = []
        for name in ("bench-stoker", "bench-cri"):
            node = stack.enter_context(
                Node(name, "forky", workdir=workdir, options=NodeOptions(expose=(registry.port,)))
            )
            node.hosts(registry.address)
            bare = await stack.enter_async_context(BareCri(node))
            made.append(
                (node, bare, *await stack.enter_async_context(room(str(node.endpoint), f"{node.artifacts_dir}/kept")))
            )
        podman = stack.enter_context(Podman("bench-podman", "forky", workdir=workdir))
        yield Peers(Stoker(*made[0]), Cri(*made[1]), OfPodman(podman), registry)
