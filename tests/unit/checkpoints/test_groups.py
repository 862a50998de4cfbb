"""Several containers in one freeze, and containers that are stopped with their checkpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stokerd.checkpoints import freezing
from stokerd.checkpoints.errors import CheckpointError, CheckpointNoSpace, CheckpointRefused
from stokerd.checkpoints.model import Wish, root_name
from stokerd.checkpoints.preflight import OpenFile, Space
from stokerd.checkpoints.shelf import Shelf
from stokerd.errors import Conflict, InvalidInput, NotFound, RuntimeFailure, RuntimeInvalid, StokerError
from stokerd.runtime.memory_conduct import Conduct
from tests.unit.checkpoints.bench import Bench, ended
from tests.unit.checkpoints.test_service import PLACES, REFUSED

STOP = Wish(leave_running=False)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


@pytest.fixture
def pod(bench: Bench) -> list[str]:
    return [bench.container(name) for name in ("app", "side", "third")]


def all_run(bench: Bench, pod: list[str]) -> bool:
    return all(bench.runs(each) for each in pod)


class TestGroups:
    async def test_all_stand_while_any_is_dumped(self, bench: Bench, pod: list[str]) -> None:
        seen: list[set[str]] = []
        told: list[str] = []

        def tell(step: str) -> None:
            told.append(step)
            if step in {"dumping", "sealing"}:
                seen.append(set(bench.runtime.native.frozen))

        group = await bench.room.create_group(pod, Wish(name="all"), tell=tell)
        assert seen == [set(pod)] * 3 + [set()]
        assert told == ["surveying", "freezing", "frozen", "dumping", "dumping", "dumping", "sealing"]
        assert [each.source.container_id for each in group.members] == pod
        assert [each.name for each in group.members] == ["all/app", "all/side", "all/third"]
        assert {each.group for each in group.members} == {group.id}
        assert all_run(bench, pod)
        assert await bench.room.groups() == (group,)
        assert {each.id for each in await bench.room.list()} == {each.id for each in group.members}
        for each in group.members:
            assert await bench.room.verify(each.id) == each
        done = await bench.new_room().converge()
        assert (done.removed, done.snapshots) == ([], [])

    async def test_they_go_together(self, bench: Bench, pod: list[str]) -> None:
        group = await bench.room.create_group(pod, Wish(name="all"))
        with pytest.raises(Conflict, match="together"):
            await bench.room.remove(group.members[1].id)
        await bench.runtime.snapshots.prepare("clone", root_name(group.members[2].id))
        with pytest.raises(Conflict, match="in use"):
            await bench.room.remove("all")
        assert len(await bench.room.list()) == 3
        await bench.runtime.snapshots.remove("clone")
        await bench.room.remove("all")
        assert bench.left() == []
        with pytest.raises(NotFound):
            await bench.room.remove(group.id)

    async def test_a_removal_that_was_broken_off(self, bench: Bench, pod: list[str]) -> None:
        group = await bench.room.create_group(pod)
        bench.runtime.fail("snapshots.Remove", "no")
        with pytest.raises(RuntimeFailure):
            await bench.room.remove(group.id)
        assert await bench.room.list() == ()
        assert set((await bench.room.converge()).removed) == {each.id for each in group.members}
        assert bench.left() == []

    async def test_one_that_is_refused(self, bench: Bench, pod: list[str]) -> None:
        bench.facts = {"files": (OpenFile(7, "anon_inode:[io_uring]"),)}
        with pytest.raises(CheckpointRefused) as caught:
            await bench.room.create_group(pod)
        assert len(caught.value.causes) == 3
        assert caught.value.causes[1].startswith(f"{pod[1]}: io_uring")
        assert bench.runtime.calls["tasks.Pause"] == 0
        assert bench.left() == []

    async def test_space_is_counted_for_all(self, bench: Bench, pod: list[str]) -> None:
        bench.facts = {"memory": 100 << 20, "images": Space("/images", 300 << 20)}
        await bench.room.create_group(pod[:2])
        with pytest.raises(CheckpointRefused, match="300 MiB are needed"):
            await bench.room.create_group(pod)

    async def test_none_and_the_same_twice(self, bench: Bench, pod: list[str]) -> None:
        with pytest.raises(InvalidInput):
            await bench.room.create_group([])
        group = await bench.room.create_group([pod[0], pod[0]])
        assert len(group.members) == 1
        with pytest.raises(NotFound):
            await bench.room.create_group([pod[0], "none"])
        assert bench.runtime.calls["tasks.Pause"] == 1

    async def test_two_at_once(self, bench: Bench, pod: list[str]) -> None:
        made = await asyncio.gather(
            bench.room.create_group(pod), bench.room.create_group(pod[::-1]), bench.room.create(pod[1])
        )
        assert all_run(bench, pod)
        assert len(await bench.room.list()) == 7
        assert made[0] != made[1]

    @pytest.mark.parametrize("name", ["app", "third"])
    async def test_a_dump_that_fails(self, bench: Bench, name: str) -> None:
        bench.runtime.conduct(Conduct(dump_log=REFUSED), name=name)
        pod = [bench.container(each) for each in ("app", "side", "third")]
        for wish in (Wish(), STOP):
            with pytest.raises(CheckpointError, match="TCP"):
                await bench.room.create_group(pod, wish)
            assert all_run(bench, pod)
            assert bench.left() == []

    async def test_a_disk_that_fills_up(self, bench: Bench, pod: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_self: Shelf, _together: object) -> None:
            raise OSError(28, "No space left on device", "/group.json")

        monkeypatch.setattr(Shelf, "seal_group", full)
        with pytest.raises(CheckpointNoSpace):
            await bench.room.create_group(pod)
        assert all_run(bench, pod)
        assert bench.left() == []

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("stop", [False, True])
    async def test_any_call_fails(self, bench: Bench, pod: list[str], place: str, stop: bool) -> None:
        if stop and "Resume" in place:
            return
        bench.runtime.fail(place, "no")
        task = asyncio.create_task(bench.room.create_group(pod, Wish(leave_running=not stop)))
        error = await ended(task)
        assert all_run(bench, pod)
        if place.startswith("tasks.Resume"):
            assert error is None
            return
        assert isinstance(error, StokerError)
        assert bench.left() == []

    @pytest.mark.parametrize("place", PLACES)
    async def test_the_caller_goes_away(self, bench: Bench, pod: list[str], place: str) -> None:
        hold = bench.runtime.hold(place, times=1)
        task = asyncio.create_task(bench.room.create_group(pod))
        await hold.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        hold.release()
        assert isinstance(await ended(task), asyncio.CancelledError)
        assert all_run(bench, pod)
        assert bench.left() == []

    @pytest.mark.parametrize("place", PLACES)
    async def test_stokerd_dies(self, bench: Bench, pod: list[str], place: str) -> None:
        hold = bench.runtime.hold(place, times=1)
        dead = asyncio.create_task(bench.room.create_group(pod))
        await hold.reached.wait()
        successor = bench.new_room()
        bench.orphans = [(), (4711,)]
        assert (await successor.converge()).left == []
        assert all_run(bench, pod)
        assert bench.left() == []
        group = await successor.create_group(pod)
        assert len(group.members) == 3
        dead.cancel()
        hold.release()
        await ended(dead)

    @pytest.mark.parametrize("place", PLACES)
    async def test_containerd_dies(
        self, bench: Bench, pod: list[str], place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(freezing, "_THAW_TRIES", 3)
        hold = bench.runtime.hold(place, times=1)
        task = asyncio.create_task(bench.room.create_group(pod))
        await hold.reached.wait()
        bench.runtime.crash()
        hold.release()
        assert isinstance(await ended(task), RuntimeFailure | CheckpointError)
        bench.runtime.restart()
        await bench.room.converge()
        assert all_run(bench, pod)
        assert bench.left() == []
        await bench.room.create_group(pod)


class TestStopping:
    def state(self, bench: Bench, container: str) -> str:
        task = bench.runtime.native.task(container)
        return task.state if task is not None else "gone"

    async def test_all_end_when_it_is_complete(self, bench: Bench, pod: list[str]) -> None:
        group = await bench.room.create_group(pod, STOP)
        assert [self.state(bench, each) for each in pod] == ["stopped"] * 3
        assert not any(each.left_running for each in group.members)
        for each in group.members:
            await bench.room.verify(each.id)
        await bench.room.remove(group.id)
        assert bench.left() == []

    async def test_connections_are_ended_by_criu(self, bench: Bench) -> None:
        container = bench.container()
        await bench.room.create(container, Wish(leave_running=False, tcp="established"))
        assert self.state(bench, container) == "stopped"
        assert bench.runtime.calls["tasks.Kill"] == 0

    async def test_stokerd_dies_when_it_is_complete(self, bench: Bench, pod: list[str]) -> None:
        """Its successor stops what stands, and nothing that was asked for is lost."""
        hold = bench.runtime.hold("tasks.Kill", times=1)
        dead = asyncio.create_task(bench.room.create_group(pod, STOP))
        await hold.reached.wait()
        successor = bench.new_room()
        (group,) = await successor.groups()
        with pytest.raises(Conflict, match="being stopped"):
            await successor.remove(group.id)
        done = await successor.converge()
        assert (set(done.stopped), done.left, done.thawed) == (set(pod), [], [])
        assert [self.state(bench, each) for each in pod] == ["stopped"] * 3
        assert await successor.groups() == (group,)
        dead.cancel()
        hold.release()
        await ended(dead)
        await successor.remove(group.id)
        assert bench.left() == []

    async def test_stokerd_dies_before_it_is_complete(self, bench: Bench, pod: list[str]) -> None:
        hold = bench.runtime.hold("snapshots.Commit:done", times=1)
        dead = asyncio.create_task(bench.room.create_group(pod, STOP))
        await hold.reached.wait()
        done = await bench.new_room().converge()
        assert set(done.thawed) == set(pod)
        assert all_run(bench, pod)
        assert bench.left() == []
        dead.cancel()
        hold.release()
        await ended(dead)

    async def test_one_that_cannot_be_killed_now(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(freezing, "_THAW_TRIES", 2)
        container = bench.container()
        bench.runtime.fail("tasks.Kill", "no", times=2)
        made = await bench.room.create(container, STOP)
        assert self.state(bench, container) == "paused"
        done = await bench.room.converge()
        assert done.stopped == [container]
        assert self.state(bench, container) == "stopped"
        await bench.room.remove(made.id)
        assert bench.left() == []


async def test_a_view_that_is_just_going_holds_a_removal_up_for_a_moment(bench: Bench) -> None:
    made = await bench.room.create(bench.container())
    bench.runtime.fail("snapshots.Remove", RuntimeInvalid("cannot remove snapshot with child"), times=2)
    await bench.room.remove(made.id)
    assert bench.left() == []


async def test_a_child_that_the_garbage_collector_took(bench: Bench) -> None:
    """containerd counts it still, and would refuse for ever: the collector removes the parent, too."""
    made = await bench.room.create(bench.container())
    bench.runtime.fail("snapshots.Remove", RuntimeInvalid("cannot remove snapshot with child"), times=10)
    await bench.room.remove(made.id)
    assert bench.left() == []
