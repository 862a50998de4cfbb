"""What was stopped comes back to its place, again and again; and what fails meanwhile leaves it as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stokerd.checkpoints import freezing
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.errors import CheckpointError, CheckpointRefused, HookFailed
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.model import Wish
from stokerd.errors import Conflict, StokerError
from tests.unit.checkpoints.bench import Bench, ended
from tests.unit.checkpoints.test_clones import STEPS, Programs, left, programs  # noqa: F401 - a fixture
from tests.unit.checkpoints.trees import seen

STOP = Wish(leave_running=False)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


def state(bench: Bench, container: str) -> str:
    task = bench.runtime.native.task(container)
    return task.state if task is not None else "gone"


def root(bench: Bench, container: str) -> dict[str, tuple[object, ...]]:
    return seen(bench.upper(container))


async def in_pod(bench: Bench) -> tuple[str, Manifest]:
    container = bench.container()
    return container, await bench.room.create(container, STOP)


class TestInItsPod:
    async def test_again_and_again(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        container, kept = await in_pod(bench)
        before = root(bench, container)
        ids = set()
        for _ in range(3):
            back = await bench.room.restore(kept.id)
            ids.add(back.id)
            assert (back.pod, back.origin) == (bench.pod, container)
            assert back.addresses == (bench.runtime.node.pods[bench.pod].ip,)
            assert state(bench, back.id) == "running"
            assert root(bench, f"stoker-{back.id}") == before
            record = await bench.runtime.records.get(back.id)
            assert record is not None
            assert "io.cri-containerd.kind" not in record.labels
            again = await bench.room.create(back.id, STOP)
            assert (again.source.pod_id, again.source.container_name) == (bench.pod, "app")
            assert again.root.parent == kept.root.parent
            await bench.room.remove(kept.id)
            kept = again
        assert len(ids) == 1
        assert programs.attached == {}
        assert state(bench, container) == "stopped"
        await bench.room.remove_clone(ids.pop())
        assert left(bench, programs) == []
        await bench.room.remove(kept.id)
        assert bench.left() == []

    async def test_while_it_runs(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        container = bench.container()
        kept = await bench.room.create(container)
        with pytest.raises(Conflict, match="runs"):
            await bench.room.restore(kept.id)
        stopped = await bench.room.create(container, STOP)
        await bench.room.restore(stopped.id)
        for each in (kept, stopped):  # the other one is back already
            with pytest.raises(Conflict, match="runs"):
                await bench.room.restore(each.id)
        assert len(await bench.room.clones()) == 1

    async def test_somebody_made_the_next_attempt(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        _, kept = await in_pod(bench)
        bench.container(attempt=1)
        with pytest.raises(Conflict, match="runs"):
            await bench.room.restore(kept.id)
        assert left(bench, programs) == []

    async def test_an_earlier_state_comes_back_to_the_same(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        container = bench.container()
        first = await bench.room.create(container)
        (bench.upper(container) / "later").write_text("x")
        second = await bench.room.create(container, STOP)
        back = await bench.room.restore(second.id)
        assert "later" in str(root(bench, f"stoker-{back.id}"))
        await bench.runtime.tasks.kill(back.id, 9)
        earlier = await bench.room.restore(first.id)
        assert (earlier.id, earlier.checkpoint) == (back.id, first.id)
        assert "later" not in str(root(bench, f"stoker-{back.id}"))

    async def test_the_pod_is_gone(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        _, kept = await in_pod(bench)
        await bench.runtime.pods.stop(bench.pod)
        with pytest.raises(CheckpointRefused, match="does not run any more") as caught:
            await bench.room.restore(kept.id)
        assert caught.value.hint == "make a clone of it"
        assert (await bench.room.clone(kept.id)).addresses == ("10.1.0.2",)

    async def test_it_ends_with_its_pod(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        _, kept = await in_pod(bench)
        await bench.room.restore(kept.id)
        successor = bench.new_room()
        life = asyncio.create_task(successor.run())
        await bench.runtime.pods.stop(bench.pod)
        async with asyncio.timeout(10):
            while left(bench, programs):  # noqa: ASYNC110 - the end of a pod is told to nobody
                await asyncio.sleep(0.01)
        assert await successor.clones() == ()
        life.cancel()
        await ended(life)

    @pytest.mark.parametrize("place", STEPS)
    async def test_any_call_fails(self, bench: Bench, programs: Programs, place: str) -> None:  # noqa: F811
        _, kept = await in_pod(bench)
        bench.runtime.fail(place, "no")
        with pytest.raises(StokerError):
            await bench.room.restore(kept.id)
        assert left(bench, programs) == []
        await bench.room.restore(kept.id)

    @pytest.mark.parametrize("place", STEPS)
    async def test_stokerd_dies(self, bench: Bench, programs: Programs, place: str) -> None:  # noqa: F811
        _, kept = await in_pod(bench)
        hold = bench.runtime.hold(place, times=1)
        dead = asyncio.create_task(bench.room.restore(kept.id))
        await hold.reached.wait()
        assert len((await bench.new_room().converge()).clones) == 1
        assert left(bench, programs) == []
        dead.cancel()
        hold.release()
        await ended(dead)


class TestClones:
    async def made(self, bench: Bench) -> tuple[Clone, Manifest]:
        clone = await bench.room.clone((await bench.room.create(bench.container())).id)
        return clone, await bench.room.create(clone.id, STOP)

    async def test_it_keeps_its_address(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        clone, stopped = await self.made(bench)
        for _ in range(2):
            back = await bench.room.restore(stopped.id)
            assert (back.id, back.addresses) == (clone.id, clone.addresses)
            assert state(bench, clone.id) == "running"
            assert programs.attached.keys() == {clone.id}
            stopped = await bench.room.create(clone.id, STOP)
        await bench.room.remove_clone(clone.id)
        assert left(bench, programs) == []

    @pytest.mark.parametrize("place", STEPS)
    async def test_what_fails_can_be_tried_again(self, bench: Bench, programs: Programs, place: str) -> None:  # noqa: F811
        clone, stopped = await self.made(bench)
        bench.runtime.fail(place, "no")
        with pytest.raises(StokerError):
            await bench.room.restore(stopped.id)
        (kept,) = await bench.room.clones()
        assert (kept.addresses, kept.state) == (clone.addresses, "made")
        assert state(bench, clone.id) == "gone"
        assert (await bench.room.restore(stopped.id)).addresses == clone.addresses
        await bench.room.remove_clone(clone.id)
        assert left(bench, programs) == []

    @pytest.mark.parametrize("place", STEPS)
    async def test_stokerd_dies(self, bench: Bench, programs: Programs, place: str) -> None:  # noqa: F811
        clone, stopped = await self.made(bench)
        hold = bench.runtime.hold(place, times=1)
        dead = asyncio.create_task(bench.room.restore(stopped.id))
        await hold.reached.wait()
        successor = bench.new_room()
        await successor.converge()
        dead.cancel()
        hold.release()
        await ended(dead)
        assert (await successor.restore(stopped.id)).addresses == clone.addresses
        await successor.remove_clone(clone.id)
        assert left(bench, programs) == []

    async def test_the_node_was_started_anew(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        _, stopped = await self.made(bench)
        programs.namespaces.clear()
        with pytest.raises(CheckpointRefused, match="network namespace"):
            await bench.room.restore(stopped.id)


class TestGiven:
    async def test_a_hook(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        kept = await bench.room.create(bench.container())
        clone = await bench.room.clone(kept.id, hook=["init", "me"])
        assert bench.runtime.native.executed[-1][:2] == (clone.id, ("init", "me"))
        await bench.room.remove_clone(clone.id)
        bench.runtime.native.exec_codes["init"] = 3
        with pytest.raises(HookFailed, match="ended with 3"):
            await bench.room.clone(kept.id, hook=["init", "me"])
        bench.runtime.fail("tasks.Exec", "no such file")
        with pytest.raises(HookFailed, match="cannot be run"):
            await bench.room.clone(kept.id, hook=["init", "me"])
        assert left(bench, programs) == []

    async def test_files_that_cannot_be(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        kept = await bench.room.create(bench.container())
        with pytest.raises(StokerError):
            await bench.room.clone(kept.id, files={"../x": b""})
        assert left(bench, programs) == []


class TestRemoving:
    async def test_a_checkpoint_that_still_brings_memory(
        self,
        bench: Bench,
        programs: Programs,  # noqa: F811
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def begun(*_: object) -> int:
            return 1

        monkeypatch.setattr("stokerd.checkpoints.lazy.start", begun)
        _, kept = await in_pod(bench)
        back = await bench.room.restore(kept.id, mode="lazy")
        assert back.memory == "loading"
        with pytest.raises(Conflict, match=back.id):
            await bench.room.remove(kept.id)
        with pytest.raises(Conflict, match="memory"):
            await bench.room.create(back.id)
        await bench.room.remove_clone(back.id)
        await bench.room.remove(kept.id)
        assert bench.left() == []


class TestAhead:
    async def test_a_clone_takes_one(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        kept = await bench.room.create(bench.container())
        await bench.room.connect(2)
        assert len(programs.attached) == 2
        clone = await bench.room.clone(kept.id)
        assert clone.netns.startswith("ahead-")
        assert clone.addresses in {("10.1.0.2",), ("10.1.0.3",)}
        assert len(programs.attached) == 2
        await bench.room.remove_clone(clone.id)
        await bench.room.connect(0)
        assert left(bench, programs) == []

    async def test_they_are_kept_full(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        kept = await bench.room.create(bench.container())
        await bench.room.connect(1)
        life = asyncio.create_task(bench.room.run())
        clone = await bench.room.clone(kept.id)
        async with asyncio.timeout(10):
            while len(programs.attached) < 2:  # noqa: ASYNC110 - the room tells nobody
                await asyncio.sleep(0.01)
        await bench.room.remove_clone(clone.id)
        life.cancel()
        await ended(life)
        await bench.room.connect(0)
        assert left(bench, programs) == []

    async def test_a_successor_adopts_what_is_good(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        await bench.room.connect(3)
        _, lost, _ = sorted(programs.attached)
        programs.namespaces.discard(lost)
        successor = bench.new_room()
        life = asyncio.create_task(successor.run())
        await successor.connect(1)
        async with asyncio.timeout(10):
            while len(programs.attached) != 1:  # noqa: ASYNC110 - the room tells nobody
                await asyncio.sleep(0.01)
        assert lost not in programs.attached
        life.cancel()
        await ended(life)

    async def test_one_that_cannot_be_made_leaves_nothing(self, bench: Bench, programs: Programs) -> None:  # noqa: F811
        programs.failing = {"ADD"}
        with pytest.raises(CheckpointError):
            await bench.room.connect(1)
        assert left(bench, programs) == []
