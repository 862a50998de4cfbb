"""Containers that do not stand at once when they are to be frozen: runc gives up early, and we try again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stokerd.checkpoints import converging, freezing
from stokerd.checkpoints.catching import being_frozen, halted
from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.freezing import Freeze, held
from stokerd.errors import RuntimeBusy, RuntimeFailure
from tests.unit.checkpoints.bench import Bench, ended

WORDS = "OCI runtime pause failed: unable to freeze"
Act = Callable[[Bench, str], Coroutine[Any, Any, object]]


def restless(bench: Bench, times: int, of: str = "") -> None:
    bench.runtime.fail("tasks.Pause", RuntimeBusy(WORDS, call="tasks.Pause"), times=times, of=of)


class Told:
    """A log that says when something is tried again."""

    def __init__(self) -> None:
        self.trying_again = asyncio.Event()

    def info(self, event: str, **_more: Any) -> None:
        assert "trying again" in event
        self.trying_again.set()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.facts["tasks"] = 1000  # more than CRIU alone is to hold
    return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "_FREEZE_PAUSES", (0.001, 0.002, 0.003))


async def _checkpoint(bench: Bench, container: str) -> object:
    return await bench.room.create(container)


async def _commit(bench: Bench, container: str) -> object:
    return await bench.room.commit(container, CommitWish("registry.test/app:v1"))


async def _pause(bench: Bench, container: str) -> None:
    await bench.room.pause(container)


ACTS = pytest.mark.parametrize("act", [_checkpoint, _commit, _pause])


@pytest.mark.usefixtures("quick")
@ACTS
async def test_it_is_tried_again(bench: Bench, act: Act) -> None:
    container = bench.container()
    bench.base(container)
    restless(bench, 3)
    await act(bench, container)
    assert bench.runs(container) is (act is not _pause)


@pytest.mark.usefixtures("quick")
@ACTS
async def test_one_that_never_stands_goes_on(bench: Bench, act: Act) -> None:
    container = bench.container()
    bench.base(container)
    restless(bench, 4)
    with pytest.raises(RuntimeBusy, match=f"container {container} .*unable to freeze") as caught:
        await act(bench, container)
    assert "try again" in str(caught.value.hint)
    assert bench.runs(container)
    assert bench.left() == []
    assert (await bench.new_room().converge()).thawed == []


async def test_slow_tries_are_few(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "_FREEZE_SECONDS", 0.0)
    container = bench.container()
    restless(bench, 2)
    with pytest.raises(RuntimeBusy):
        await bench.room.pause(container)
    assert bench.runs(container)
    with pytest.raises(RuntimeBusy):
        await bench.room.pause(container)
    await bench.room.pause(container)


@ACTS
async def test_who_does_not_wait_any_more_is_not_held_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    told = Told()
    monkeypatch.setattr(freezing, "_log", told)
    monkeypatch.setattr(freezing, "_FREEZE_PAUSES", (3600.0,))
    container = bench.container()
    bench.base(container)
    restless(bench, 2)
    task = asyncio.create_task(act(bench, container))
    await told.trying_again.wait()
    task.cancel()
    assert isinstance(await ended(task), asyncio.CancelledError)
    assert bench.runs(container)
    assert bench.left() == []


@pytest.mark.usefixtures("quick")
async def test_of_several_all_stand_in_the_end(bench: Bench) -> None:
    containers = [bench.container("one"), bench.container("two")]
    restless(bench, 2, of="two")
    async with held(*(Freeze(bench.runtime, each, ours=True) for each in containers)):
        assert not any(map(bench.runs, containers))
    assert all(map(bench.runs, containers))


class Groups:
    """The cgroups of the node: one that was left frozen, and says no at first."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def thaw(self, first: int) -> bool:
        self.asked.append(first)
        if len(self.asked) == 1:
            raise PermissionError(1, "Operation not permitted", "/sys/fs/cgroup/freezer/app/freezer.state")
        return True


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_stokerd_that_dies_while_runc_freezes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """The cgroup stays as its runc left it, and containerd knows nothing of it."""
    monkeypatch.setattr(converging, "halted", lambda _first, _container: True)
    monkeypatch.setattr(freezing, "thaw_group", Groups().thaw)
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.001)
    monkeypatch.setattr(freezing, "_THAW_TRIES", tries)
    container = bench.container()
    hold = bench.runtime.hold("tasks.Pause", times=1)
    dead = asyncio.create_task(bench.room.pause(container))
    await hold.reached.wait()
    done = await bench.new_room().converge()
    assert (done.thawed, done.left) == (([], [container]) if tries == 1 else ([container], []))
    if tries == 1:
        done = await bench.new_room().converge()
        assert (done.thawed, done.left) == ([container], [])
    assert (await bench.new_room().converge()).thawed == []
    dead.cancel()
    hold.release()
    await ended(dead)


async def test_a_runc_that_goes_on_for_nobody_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its freeze would come after the thaw, and last for ever."""
    container = bench.container()
    late = [True, True]

    def being_frozen(identity: str) -> bool:
        assert identity == container
        if late and not late[1:]:
            bench.runtime.native.frozen.add(container)  # it has come to its end
        return bool(late) and late.pop()

    monkeypatch.setattr(freezing, "being_frozen", being_frozen)
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.001)
    assert await freezing.thaw(bench.runtime, container)
    assert late == []
    assert bench.runs(container)


async def test_a_runc_that_freezes_is_seen_by_its_arguments(tmp_path: Path) -> None:
    runc = tmp_path / "runc"
    runc.symlink_to(sys.executable)
    words = ("-c", "import sys; print('up', flush=True); sys.stdin.read()", "--root", "/run", "pause", "c0ffee")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(runc, *words, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    assert being_frozen("c0ffee")
    assert halted(0, "c0ffee")
    assert not being_frozen("c0ff")
    process.stdin.close()
    await process.wait()
    assert not being_frozen("c0ffee")


async def test_a_pause_that_is_broken_off_leaves_no_cgroup_frozen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups()
    monkeypatch.setattr(freezing, "thaw_group", groups.thaw)
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.001)
    container = bench.container()
    freeze = Freeze(bench.runtime, container, ours=True)
    bench.runtime.fail("tasks.Pause", "runc was killed")
    with pytest.raises(RuntimeFailure, match="killed"):
        async with held(freeze):
            pytest.fail("it does not stand")
    task = await bench.runtime.tasks.get(container)
    assert task is not None
    assert groups.asked == [task.pid, task.pid]
    assert freeze.thawed
