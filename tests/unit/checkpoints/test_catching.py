"""A container that stands only while CRIU holds it: that is seen from outside, and its files are copied meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stokerd.checkpoints import catching, converging, freezing, taking
from stokerd.checkpoints.catching import Freezer, Held, caught, family, still
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.preflight import Facts, fits_into_dump
from stokerd.errors import RuntimeFailure
from tests.unit.checkpoints.bench import Bench, ended
from tests.unit.checkpoints.trees import seen

TRACER = """
import ctypes, os, sys, time
open("/proc/self/comm", "w").write(sys.argv[1])
pid = os.fork()
if pid == 0:
    while True: time.sleep(1)
print(pid, flush=True)
libc = ctypes.CDLL(None)
for line in sys.stdin:
    request = {"seize": 0x4206, "interrupt": 0x4207, "detach": 17}[line.strip()]
    print(libc.ptrace(request, pid, None, None), flush=True)
"""


class Tracer:
    """A process that holds its child as CRIU holds what it dumps."""

    def __init__(self, process: asyncio.subprocess.Process, child: int) -> None:
        self._process, self.child = process, child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for word in words:
            self._process.stdin.write(f"{word}\n".encode())
            assert await self._process.stdout.readline() == b"0\n"


@asynccontextmanager
async def tracer(name: str = "criu") -> AsyncIterator[Tracer]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", TRACER, name, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    try:
        yield Tracer(process, child)
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        await process.communicate()


async def test_who_is_held_by_a_criu(tmp_path: Path) -> None:
    ended = threading.Event()
    async with tracer() as criu:
        waiting = asyncio.create_task(asyncio.to_thread(caught, criu.child, ended.is_set))
        await criu.tell("seize", "interrupt")
        held = await asyncio.wait_for(waiting, 10)
        assert held is not None
        assert (held.tracer, set(held.tasks)) == (criu.pid, {(criu.child, criu.child)})
        assert still(criu.child, held)
        await criu.tell("detach")
        assert not still(criu.child, held)


async def test_a_debugger_is_no_criu() -> None:
    ended = threading.Event()
    async with tracer("gdb") as other:
        await other.tell("seize", "interrupt")
        waiting = asyncio.create_task(asyncio.to_thread(caught, other.child, ended.is_set))
        ended.set()
        assert await waiting is None


async def test_a_child_that_runs_is_not_held() -> None:
    async with tracer() as criu:
        (child,) = {process for process, _ in family(criu.child)}
        assert child == criu.child
        held = Held(criu.pid, frozenset({(criu.child, criu.child)}), 0.0)
        assert not still(criu.child, held)  # nobody has seized it
        assert not still(criu.pid, held)  # and there are more than were seen
        assert family(0) == frozenset()


def test_a_cgroup_that_is_not_there_is_left_alone() -> None:
    assert not catching.thaw_group(0)


V1 = "/sys/fs/cgroup/freezer/k8s.io/c/freezer.state"


@pytest.mark.parametrize(
    ("groups", "path"),
    [
        ("9:name=systemd:/k8s.io/c\n6:freezer:/k8s.io/c\n0::/\n", V1),
        # A hybrid machine: runc makes a group in v2, too, or leaves it where containerd is.
        ("6:freezer:/k8s.io/c\n0::/k8s.io/c\n", V1),
        ("6:freezer:/k8s.io/c\n0::/system.slice/containerd.service\n", V1),
        ("0::/system.slice/containerd.service\n6:cpu,freezer:/k8s.io/c\n", V1),
        ("0::/kubepods/pod1/c\n", "/sys/fs/cgroup/kubepods/pod1/c/cgroup.freeze"),
        ("0::/a:b/c\n", "/sys/fs/cgroup/a:b/c/cgroup.freeze"),
        ("4:memory:/k8s.io/c\n", None),
        ("6:freezer:/../outside\n", None),
        ("0::/../outside\n", None),
        ("", None),
    ],
)
def test_one_cgroup_alone_is_that_of_the_container(groups: str, path: str | None) -> None:
    found = catching.freezer(groups)
    assert (None if found is None else str(found.path)) == path


@pytest.mark.parametrize(("name", "on", "off"), [("freezer.state", "FROZEN", "THAWED"), ("cgroup.freeze", "1", "0")])
def test_only_what_is_frozen_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, on: str, off: str
) -> None:
    """Where cgroups are seen and cannot be written, one that is not frozen holds nothing up."""
    switch = Freezer(tmp_path / name, on, off)
    monkeypatch.setattr(catching, "freezer_of", lambda _pid: switch)
    switch.path.write_text(f"{off}\n")
    assert not catching.thaw_group(1)
    assert switch.path.read_text() == f"{off}\n"
    switch.path.write_text(f"{on}\n")
    assert catching.thaw_group(1)
    assert switch.path.read_text() == off


@pytest.mark.parametrize(
    ("facts", "fits"),
    [
        ({}, True),
        ({"tasks": 0}, False),
        ({"tasks": 65}, False),
        ({"state": "paused"}, False),
        ({"upper_bytes": 5 << 20}, False),
        ({"upper_bytes": 3 << 20, "shared_bytes": 2 << 20}, False),
        ({"upper_bytes": 5 << 20, "memory": 1 << 30}, True),
        ({"upper_inodes": 101}, False),
        ({"upper_inodes": 101, "memory": 1 << 30}, True),
    ],
)
def test_what_fits_into_a_dump(facts: dict[str, Any], fits: bool) -> None:
    start = Facts("4.2", "running", tasks=1, memory=1 << 20)
    assert fits_into_dump(replace(start, **facts)) is fits


class Watched:
    """What is seen of a CRIU on a node in memory, which has no processes: `held` of the tries to look succeed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, held: bool = True, still: bool = True) -> None:
        self.thawed: list[int] = []
        found = Held(1, frozenset(), 0.0) if held else None
        monkeypatch.setattr(taking, "caught", lambda _pid, _ended: found)
        monkeypatch.setattr(taking, "still", lambda _pid, _held: still)
        monkeypatch.setattr(taking, "thaw_group", self.thawed.append)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.facts = {"tasks": 1}
    return made


async def test_containerd_freezes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    container = bench.container()
    bench.runtime.fail("tasks.Pause", RuntimeFailure("nobody is to be frozen"))
    made = await bench.room.create(container)
    assert made.frozen_ms > 0
    assert bench.runs(container)
    directory = Path(bench.runtime.store.snapshots[made.root.snapshot].directory, "fs")
    assert seen(directory) == seen(bench.upper(container))
    assert watched.thawed == []


@pytest.mark.parametrize(("held", "still"), [(False, True), (True, False)])
async def test_a_copy_that_came_too_late_is_made_again_frozen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, held: bool, still: bool
) -> None:
    Watched(monkeypatch, held=held, still=still)
    container = bench.container()
    bench.runtime.hold("tasks.Pause").release()
    made = await bench.room.create(container)
    assert [each.id for each in await bench.room.list()] == [made.id]
    assert bench.ours() == {made.root.snapshot}
    assert bench.runs(container)
    directory = Path(bench.runtime.store.snapshots[made.root.snapshot].directory, "fs")
    assert seen(directory) == seen(bench.upper(container))


async def test_a_copy_that_is_made_again_has_nothing_of_the_first_dump(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU makes a directory in /tmp, and removes it: in the container itself the time of /tmp is another one then."""
    Watched(monkeypatch)
    container = bench.container()
    place = bench.upper(container) / "tmp"
    place.mkdir(exist_ok=True)
    os.utime(place, ns=(10**18, 10**18))
    wanted = seen(bench.upper(container))

    def late(_pid: int, _ended: object) -> None:
        (place / "cr-tmpfs.Ab3dEf").mkdir()
        (place / "cr-tmpfs.Ab3dEf").rmdir()

    monkeypatch.setattr(taking, "caught", late)
    made = await bench.room.create(container)
    assert seen(bench.upper(container)) != wanted
    assert seen(Path(bench.runtime.store.snapshots[made.root.snapshot].directory, "fs")) == wanted


async def test_a_dump_that_fails_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    container = bench.container()
    bench.runtime.fail("tasks.Checkpoint", RuntimeFailure("criu died"))
    with pytest.raises((CheckpointError, RuntimeFailure)):
        await bench.room.create(container)
    assert len(watched.thawed) == 1
    assert bench.left() == []
    assert bench.runs(container)


@pytest.mark.parametrize("how", ["cancelled", "unreadable"])
async def test_whatever_ends_a_dump_its_cgroup_is_thawed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """CRIU may have died in it: then nobody else knows that the cgroup is frozen."""
    watched = Watched(monkeypatch)
    container = bench.container()
    hold = bench.runtime.hold("tasks.Checkpoint", times=1)
    if how == "unreadable":

        def unreadable(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error", "/fs/file")

        monkeypatch.setattr(taking, "copy_tree", unreadable)
    making = asyncio.create_task(bench.room.create(container))
    await hold.reached.wait()
    if how == "cancelled":
        making.cancel()
    hold.release()
    assert isinstance(await ended(making), asyncio.CancelledError if how == "cancelled" else CheckpointError)
    assert len(watched.thawed) == 1
    assert bench.left() == []


async def test_a_stokerd_that_dies_in_a_dump_leaves_no_cgroup_frozen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    monkeypatch.setattr(converging, "halted", lambda *_words: True)
    monkeypatch.setattr(freezing, "thaw_group", watched.thawed.append)
    container = bench.container()
    hold = bench.runtime.hold("tasks.Checkpoint", times=1)
    dead = asyncio.create_task(bench.room.create(container))
    await hold.reached.wait()
    done = await bench.new_room().converge()
    assert (len(done.removed), done.left) == (1, [])
    task = await bench.runtime.tasks.get(container)
    assert task is not None
    assert watched.thawed == [task.pid]
    dead.cancel()
    hold.release()
    await ended(dead)
