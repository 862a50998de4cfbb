"""After many checkpoints and clones, failed ones among them, nothing is left: all that there is, is counted.

STOKER_LEAK_CLONES says how many clones are made.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stokerd.checkpoints.clone_types import Mode
from stokerd.checkpoints.cni import NetworkError
from stokerd.checkpoints.errors import CheckpointError, CheckpointTimeout, HookFailed
from stokerd.checkpoints.model import Wish
from tests.integration.checkpoint_scene import Scene, of_clone, scene
from tests.rig.cgroups import NodeCgroup
from tests.rig.node import Node

pytestmark = pytest.mark.criu

CLONES = int(os.environ.get("STOKER_LEAK_CLONES", "200"))
AT_ONCE = 20
SEED = 4
SETTLE = 15.0
COMING_AND_GOING = {"sleep", "mv", "sh"}
"""The program of the scene starts these all the time."""

Found = dict[str, Counter[str]]
Way = Callable[[Scene, str, random.Random], Coroutine[Any, Any, None]]


@pytest.mark.timeout(60 + 2 * CLONES)
async def test_nothing_is_left(node: Node) -> None:
    async with scene(node) as here:
        chance = random.Random(SEED)
        await _round(here, len(WAYS), chance)  # what is made once for all is there from now on
        before = await asyncio.to_thread(_inventory, here)
        for first in range(0, CLONES, AT_ONCE):
            await _round(here, min(AT_ONCE, CLONES - first), chance)
        more = await _more(here, before)
        assert more == {}, _trees(here, more)
        await here.goes_on()


async def _more(here: Scene, before: Found) -> Found:
    """Return what there is beside what was there before, once things have come to rest.

    Directories of snapshots that are removed stay until containerd collects garbage. When it does so by itself goes by
    how long it took before: on a busy machine, later than anybody waits here.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE
    while True:
        await asyncio.to_thread(here.node.collect_garbage)
        now = await asyncio.to_thread(_inventory, here)
        more = {kind: found for kind in before if (found := now[kind] - before[kind])}
        if not more or asyncio.get_running_loop().time() > deadline:
            return more
        await asyncio.sleep(0.2)


# -------------------------------------------------------------------------------------------------- what is done


async def _round(here: Scene, count: int, chance: random.Random) -> None:
    """Checkpoint, clone in all ways, go wrong in all ways, and remove."""
    with pytest.raises(CheckpointTimeout):
        await here.checkpoints.create(here.container, Wish(timeout=0.03))
    kept = await here.checkpoints.create(here.container)
    await here.checkpoints.connect(2)
    await _without_network(here, kept.id)
    await _damaged(here, kept.id)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(WAYS[number % len(WAYS)](here, kept.id, chance))
    await here.checkpoints.connect(0)
    await here.checkpoints.remove(kept.id)


async def _goes_on(here: Scene, checkpoint: str, chance: random.Random) -> None:
    mode: Mode = chance.choice(["eager", "lazy"])
    clone = await here.checkpoints.clone(checkpoint, mode=mode)
    await of_clone(here, clone.id).goes_on(30)
    await here.checkpoints.remove_clone(clone.id)


async def _given_up(here: Scene, checkpoint: str, chance: random.Random) -> None:
    """Whoever asked goes away, at any moment."""
    making = asyncio.create_task(here.checkpoints.clone(checkpoint, mode="lazy"))
    await asyncio.wait({making}, timeout=chance.uniform(0, 1.5))
    making.cancel()
    for clone in await asyncio.gather(making, return_exceptions=True):
        if not isinstance(clone, BaseException):
            await here.checkpoints.remove_clone(clone.id)


async def _killed(here: Scene, checkpoint: str, _chance: random.Random) -> None:
    clone = await here.checkpoints.clone(checkpoint, mode="eager")
    os.kill(clone.pid, signal.SIGKILL)
    await here.checkpoints.remove_clone(clone.id)


async def _hook_fails(here: Scene, checkpoint: str, _chance: random.Random) -> None:
    with pytest.raises(HookFailed):
        await here.checkpoints.clone(checkpoint, hook=["false"])


WAYS: list[Way] = [_goes_on, _given_up, _goes_on, _hook_fails, _killed]


async def _damaged(here: Scene, checkpoint: str) -> None:
    image = next(here.directory.glob(f"{checkpoint}/images/core-*.img"))
    body = image.read_bytes()
    image.write_bytes(bytes(len(body)))
    with pytest.raises(CheckpointError):
        await here.checkpoints.clone(checkpoint)
    image.write_bytes(body)


async def _without_network(here: Scene, checkpoint: str) -> None:
    """The second of the plugins fails, after the first has given an address."""
    (file,) = here.node.cni_dir.iterdir()
    text = file.read_text()
    try:
        file.write_text(text.replace('"portmap"', '"no-such-plugin"'))
        with pytest.raises(NetworkError):
            await here.checkpoints.clone(checkpoint)
    finally:
        file.write_text(text)


# -------------------------------------------------------------------------------------------------- what is there


def _inventory(here: Scene) -> Found:
    node = here.node
    cgroup = NodeCgroup.planned(node.name)
    found = {
        "processes": Counter(map(_command, cgroup.pids())),
        "mounts": Counter(line.split()[4] for line in _lines(f"/proc/{node.pid}/mountinfo")),
        "cgroups": Counter(str(path) for top in cgroup.directories for path, _, _ in os.walk(top)),
        "files": _files(node, here.directory),
        "snapshot directories": Counter(path.name for path in _snapshots(node).iterdir()),
        "links": Counter(_said(node, "ip", "-o", "link")),
        "rules": Counter(_said(node, "iptables-save") + _said(node, "nft", "list", "ruleset")),
        "own descriptors": Counter(re.sub(r"\d+", "N", _target(path)) for path in Path("/proc/self/fd").iterdir()),
    }
    found["processes"] = Counter({each: n for each, n in found["processes"].items() if each not in COMING_AND_GOING})
    for kind in ("containers", "tasks", "leases", "content", "images"):
        found[kind] = Counter(node.ctr(kind, "ls", "-q").stdout.split())
    found["snapshots"] = Counter(line.split()[0] for line in node.ctr("snapshots", "ls").stdout.splitlines())
    return found


def _trees(here: Scene, more: Found) -> str:
    """Tell what is in the directories that are left: by that they are known."""
    places = [str(_snapshots(here.node) / name) for name in more.get("snapshot directories", ())]
    return here.node.run("find", *places, "-ls", check=False).stdout if places else str(more)


def _files(node: Node, directory: Path) -> Counter[str]:
    """List what is in the places where clones and checkpoints have files, without the roots of containers, and without
    the one log that the shim keeps beside a container of the dump of it that failed last."""
    places = ("/run", "/tmp", "/var/lib/cni", str(directory), str(node.run_dir))
    left_out = ("(", "-name", "rootfs", "-o", "-path", "*/io.containerd.runtime.v2.task/*/criu-dump.log", ")")
    return Counter(_said(node, "find", *places, *left_out, "-prune", "-o", "-print"))


def _said(node: Node, *argv: str) -> list[str]:
    """Return what a command prints, without what changes by itself: counters, numbers of interfaces."""
    lines = node.run(*argv, check=False).stdout.splitlines()
    return [re.sub(r"\[\d+:\d+\]|^\d+: |packets \d+ bytes \d+", "", line) for line in lines if not line.startswith("#")]


def _snapshots(node: Node) -> Path:
    return node.root_dir / "io.containerd.snapshotter.v1.overlayfs" / "snapshots"


def _command(pid: int) -> str:
    return next(iter(_lines(f"/proc/{pid}/comm")), "gone")


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return "gone"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
