"""A container that counts on a node, and the room that checkpoints and clones it."""

from __future__ import annotations

import asyncio
import itertools
import stat
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cri_stubs.cri.v1 import runtime_pb2 as cri
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.cloning import CLONE_LABEL
from stokerd.checkpoints.model import CHECKPOINT_LABEL, GC_ROOT_LABEL
from stokerd.checkpoints.preflight import Facts
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.surveying import dumpers
from stokerd.runtime.containerd import Containerd
from tests.integration.checkpointer import room
from tests.rig.node import Node
from tests.rig.pods import BareCri, RigPod

COUNT = "i=0; while :; do i=$((i+1)); echo $i >/count.new; mv /count.new /count; sleep 0.02; done"
TALK = (
    "nc -l -p 7000 -e sleep 600 & until grep -q ':1B58 [0-9A-F]*:0000 0A' /proc/net/tcp*; do sleep 0.02; done; "
    "sleep 600 | nc 127.0.0.1 7000 & "  # at the end of its input it would close its half
    "until awk '$2 ~ /:1B58$/ && $4 == \"01\" && $10 { met = 1 } END { exit !met }' /proc/net/tcp*; "
    "do sleep 0.02; done; " + COUNT
)
"""Counts while it holds both ends of a connection."""
LARGE = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); " + COUNT
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
    pod: RigPod
    container: str
    file: str = "count"
    leases_before: frozenset[str] = frozenset()

    async def leases(self) -> list[str]:
        """Return the leases that were made here and are there still; a stokerd that was killed on this node before may
        have left some."""
        now = await self.runtime.leases.list()
        return [each.id for each in now if each.id.startswith("stoker-") and each.id not in self.leases_before]

    async def text(self, name: str) -> str:
        """Read a file off its root: what is frozen answers no command."""
        record = await self.runtime.records.get(self.container)
        assert record is not None
        (mount,) = await self.runtime.snapshots.mounts(record.snapshot_key)
        upper = next(each.partition("=")[2] for each in mount.options if each.startswith("upperdir="))
        return await asyncio.to_thread(read, f"{self.runtime.info.host_root}{upper}/{name}")

    async def count(self) -> int:
        """Return how far it is."""
        return int(await self.text(self.file) or 0)

    async def goes_on(self, timeout: float = 10) -> int:
        """Return the count when it has grown."""
        before = await self.count()
        async with asyncio.timeout(timeout):
            while (now := await self.count()) <= before:  # noqa: ASYNC110 - the program tells nobody
                await asyncio.sleep(0.01)
        return now

    async def clone(self, clone: str) -> Clone:
        return next(each for each in await self.checkpoints.clones() if each.id == clone)

    async def state(self) -> str:
        task = await self.runtime.tasks.get(self.container)
        return task.state if task is not None else "gone"

    async def sandbox_pid(self) -> int:
        task = await self.runtime.tasks.get(self.pod.id)
        assert task is not None
        return task.pid

    async def left(self) -> list[str]:
        """Return everything of ours that is there: files, snapshots, CRIU processes."""
        files = await asyncio.to_thread(_files, self.directory)
        labels = (CHECKPOINT_LABEL, CLONE_LABEL)
        found = [each.name for each in await self.runtime.snapshots.list() if any(key in each.labels for key in labels)]
        found += [each.id for each in await self.runtime.records.list() if CLONE_LABEL in each.labels]
        mounted = self.node.run("grep", "-cE", "clone-|restored-|ahead-", "/proc/mounts", check=False).stdout.strip()
        addresses = self.node.run("sh", "-c", "grep -rlE 'clone-|ahead-' /var/lib/cni || true").stdout.split()
        return [
            *files,
            *found,
            *map(str, dumpers(str(self.directory))),
            *addresses,
            *([mounted] if mounted != "0" else []),
        ]


@asynccontextmanager
async def scene(
    node: Node, program: str = COUNT, *, directory: Path | None = None, **options: Any
) -> AsyncIterator[Scene]:
    directory = directory or node.artifacts_dir / f"checkpoints-{next(_numbers)}"
    async with BareCri(node) as bare, room(str(node.endpoint), str(directory), **options) as (checkpoints, runtime):
        pod = await bare.run_pod(f"checkpoints-{next(_numbers)}")
        container = await bare.run(pod, "main", command=["sh", "-c", program], linux=apart())
        before = frozenset(each.id for each in await runtime.leases.list())
        made = Scene(node, bare, checkpoints, runtime, directory, pod, container, leases_before=before)
        await made.goes_on(60)
        try:
            yield made
        except BaseException:
            await _clear(checkpoints, clones=True)  # the next test finds an empty node
            raise
        await _clear(checkpoints)
        assert await made.left() == []


async def _clear(checkpoints: Checkpoints, *, clones: bool = False) -> None:
    if clones:
        await checkpoints.connect(0)
    for clone in await checkpoints.clones() if clones else ():
        await checkpoints.remove_clone(clone.id)
    for group in await checkpoints.groups():
        await checkpoints.remove(group.id)
    for each in reversed(await checkpoints.list()):  # one may stand on another
        await checkpoints.remove(each.id)


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _files(directory: Path) -> list[str]:
    patterns = ("[!.]*", ".clones/*", ".groups/*", ".networks/*")
    return [str(path) for pattern in patterns for path in directory.glob(pattern)]


def modes(directory: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in directory.iterdir() if path.is_file()}


def of_clone(here: Scene, clone: str) -> Scene:
    """Return the same view of a clone."""
    return replace(here, container=clone)


async def counted(here: Scene, snapshot: str, file: str = "count") -> int:
    """Read the count off the root filesystem of a checkpoint."""
    labels = {CHECKPOINT_LABEL: "test", GC_ROOT_LABEL: "2026"}
    (mount,) = await here.runtime.snapshots.view("view-of-test", snapshot, labels=labels)
    lower = next(each.partition("=")[2] for each in mount.options if each.startswith("lowerdir=")).split(":")[0]
    text = await asyncio.to_thread(read, f"{here.runtime.info.host_root}{lower}/{file}")
    await here.runtime.snapshots.remove("view-of-test")
    return int(text)
