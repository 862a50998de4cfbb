"""Checkpoints on a node in memory: whatever fails, whoever dies, the container runs on and nothing is left."""

from __future__ import annotations

import asyncio
import errno
import stat
from pathlib import Path

import pytest

from stokerd.checkpoints import freezing, service, taking
from stokerd.checkpoints.converging import Converged
from stokerd.checkpoints.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNoSpace,
    CheckpointRefused,
    CheckpointTimeout,
    CriuCrashed,
)
from stokerd.checkpoints.model import Wish, root_name
from stokerd.checkpoints.preflight import OpenFile
from stokerd.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    RuntimeFailure,
    RuntimeNoSpace,
    RuntimeTimeout,
    RuntimeUnavailable,
    StokerError,
)
from stokerd.runtime.memory_conduct import Conduct
from stokerd.runtime.protocol import NativeRuntime
from tests.unit.checkpoints.bench import IMAGE, Bench, ended
from tests.unit.checkpoints.trees import seen

REFUSED = "(00.1) Error (criu/sk-inet.c:1): inet: Connected TCP socket, consider using --tcp-established option.\n"
STEPS = [
    "snapshots.Prepare",
    "tasks.Pause",
    "tasks.Checkpoint",
    "tasks.Resume",
    "snapshots.Commit",
    "cri.ContainerStatus",
    "cri.ListPodSandbox",
]
PLACES = [*STEPS, *(f"{step}:done" for step in STEPS)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


async def stuck(_runtime: NativeRuntime, name: str) -> None:
    """Removes no snapshot."""
    raise CheckpointError(f"snapshot {name} cannot be removed")


class TestMaking:
    async def test_everything_is_kept(self, bench: Bench) -> None:
        container = bench.container(labels={"app": "web"})
        made = await bench.room.create(container, Wish(name="first", labels={"a": "1"}))
        assert bench.runs(container)
        assert (made.name, made.labels, made.left_running) == ("first", {"a": "1"}, True)
        assert (made.source.container_name, made.source.pod_name, made.source.image) == ("app", "web", IMAGE)
        names = {part.path for part in made.parts}
        assert {"spec.json", "record.msgpack", "images/inventory.img", "images/pages-1.img"} <= names
        assert not any(name.startswith("work/") for name in names)
        assert bench.ours() == {made.root.snapshot}
        directory = Path(bench.runtime.store.snapshots[made.root.snapshot].directory, "fs")
        assert seen(directory) == seen(bench.upper(container))
        info = await bench.runtime.snapshots.stat(made.root.snapshot)
        assert info is not None
        assert (info.kind, info.parent) == ("committed", made.root.parent)
        bench.runtime.collect()
        assert bench.ours() == {made.root.snapshot}

    async def test_nobody_else_can_read_it(self, bench: Bench) -> None:
        made = await bench.room.create(bench.container())
        for path in [bench.directory, *bench.directory.rglob("*")]:
            wanted = 0o700 if path.is_dir() else 0o600
            if "work" not in path.parts:
                assert stat.S_IMODE(path.stat().st_mode) == wanted, path
        assert made.frozen_ms > 0

    async def test_it_may_end_the_container(self, bench: Bench) -> None:
        container = bench.container()
        made = await bench.room.create(container, Wish(leave_running=False))
        task = bench.runtime.native.task(container)
        assert task is not None
        assert (task.state, made.left_running) == ("stopped", False)
        await bench.room.verify(made.id)

    async def test_what_somebody_else_froze_stays_frozen(self, bench: Bench) -> None:
        container = bench.container()
        await bench.runtime.tasks.pause(container)
        await bench.room.create(container)
        assert container in bench.runtime.native.frozen
        assert bench.runtime.calls["tasks.Resume"] == 0

    async def test_shared_memory_of_the_pod(self, bench: Bench, tmp_path: Path) -> None:
        shm = tmp_path / "shm"
        shm.mkdir()
        (shm / "PostgreSQL.1").write_bytes(b"buffers")
        container = bench.container()
        mounts = [
            {"destination": "/dev/shm", "type": "bind", "source": str(shm)},
            {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"},
        ]
        bench.runtime.node.containers[container].spec["mounts"] = mounts
        made = await bench.room.create(container)
        assert made.shm_digest
        assert (bench.directory / made.id / "shm" / "PostgreSQL.1").read_bytes() == b"buffers"
        await bench.room.verify(made.id)
        (bench.directory / made.id / "shm" / "PostgreSQL.1").write_bytes(b"Buffers")
        with pytest.raises(CheckpointDamaged, match="/dev/shm"):
            await bench.room.verify(made.id)

    async def test_one_at_a_time(self, bench: Bench) -> None:
        container = bench.container()
        made = await asyncio.gather(*(bench.room.create(container) for _ in range(4)))
        assert len({each.id for each in made}) == 4
        assert bench.runs(container)
        assert len(await bench.room.list()) == 4

    async def test_what_is_not_there(self, bench: Bench) -> None:
        with pytest.raises(NotFound):
            await bench.room.create("none")
        assert bench.left() == []


class TestRefusing:
    async def test_before_anything_is_frozen(self, bench: Bench) -> None:
        container = bench.container()
        bench.facts = {"files": (OpenFile(7, "anon_inode:[io_uring]"),), "established": 2}
        with pytest.raises(CheckpointRefused) as caught:
            await bench.room.create(container)
        assert len(caught.value.causes) == 2
        assert "io_uring" in caught.value.message
        assert bench.runtime.calls["tasks.Pause"] == 0
        assert bench.left() == []

    @pytest.mark.parametrize(
        ("log", "kind", "word"),
        [
            (REFUSED, CheckpointRefused, "TCP"),
            ("(00.1) Error (criu/x.c:1): write: No space left on device\n", CheckpointNoSpace, "space"),
            ("(00.1) Version: 4.1.1\n(00.2) seized 12\n", CriuCrashed, "died"),
            ("(00.1) Error (criu/x.c:1): quite new\n", CheckpointError, "quite new"),
        ],
    )
    async def test_what_criu_cannot_take(self, bench: Bench, log: str, kind: type[CheckpointError], word: str) -> None:
        bench.runtime.conduct(Conduct(dump_log=log), name="app")
        container = bench.container()
        with pytest.raises(kind, match=word) as caught:
            await bench.room.create(container)
        assert type(caught.value) is kind
        assert bench.runs(container)
        assert bench.left() == []

    async def test_a_dump_that_takes_too_long(self, bench: Bench) -> None:
        """CRIU may be about still: the container is thawed when it has ended."""
        container = bench.container()
        bench.runtime.fail("tasks.Checkpoint:done", RuntimeTimeout("too long"))
        bench.orphans = [(), (4711,), (4711,)]
        with pytest.raises(CheckpointTimeout):
            await bench.room.create(container)
        assert bench.orphans == []
        assert bench.runs(container)
        assert bench.left() == []

    async def test_a_disk_that_is_full(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "/fs/file")

        monkeypatch.setattr(taking, "copy_tree", full)
        container = bench.container()
        with pytest.raises(CheckpointNoSpace, match="/fs/file"):
            await bench.room.create(container)
        assert bench.runs(container)
        assert bench.left() == []

    async def test_containerd_without_space(self, bench: Bench) -> None:
        container = bench.container()
        bench.runtime.fail("snapshots.Prepare", RuntimeNoSpace("no space left on device"))
        with pytest.raises(CheckpointNoSpace):
            await bench.room.create(container)
        assert bench.left() == []


class TestFailing:
    @pytest.mark.parametrize("place", PLACES)
    async def test_any_call_fails(self, bench: Bench, place: str) -> None:
        container = bench.container()
        bench.runtime.fail(place, "no")
        task = asyncio.create_task(bench.room.create(container))
        error = await ended(task)
        assert bench.runs(container)
        if place.startswith("tasks.Resume"):  # a thaw is tried again
            assert error is None
            return
        assert isinstance(error, StokerError)
        assert bench.left() == []
        await bench.room.create(container)

    @pytest.mark.parametrize("place", PLACES)
    async def test_the_caller_goes_away(self, bench: Bench, place: str) -> None:
        container = bench.container()
        hold = bench.runtime.hold(place, times=1)
        task = asyncio.create_task(bench.room.create(container))
        await hold.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        hold.release()
        assert isinstance(await ended(task), asyncio.CancelledError)
        assert bench.runs(container)
        assert bench.left() == []

    @pytest.mark.parametrize("place", PLACES)
    async def test_containerd_dies(self, bench: Bench, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(freezing, "_THAW_TRIES", 3)
        container = bench.container()
        hold = bench.runtime.hold(place, times=1)
        task = asyncio.create_task(bench.room.create(container))
        await hold.reached.wait()
        bench.runtime.crash()
        hold.release()
        assert isinstance(await ended(task), RuntimeFailure | CheckpointError)
        bench.runtime.restart()
        await bench.room.converge()
        assert bench.runs(container)
        assert bench.left() == []
        await bench.room.create(container)

    @pytest.mark.parametrize("place", PLACES)
    async def test_stokerd_dies(self, bench: Bench, place: str) -> None:
        """Its successor finds what the dead one has left at this moment."""
        container = bench.container()
        hold = bench.runtime.hold(place, times=1)
        dead = asyncio.create_task(bench.room.create(container))
        await hold.reached.wait()
        successor = bench.new_room()
        bench.orphans = [(), (4711,)]
        done = await successor.converge()
        assert done.left == []
        assert bench.runs(container)
        assert bench.left() == []
        again = await successor.create(container)
        await successor.verify(again.id)
        dead.cancel()
        hold.release()
        await ended(dead)

    async def test_what_cannot_be_removed_hides_no_failure(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        container = bench.container()
        bench.runtime.fail("snapshots.Commit", "the disk is odd")
        with monkeypatch.context() as patch:
            patch.setattr(taking, "_remove_snapshot", stuck)
            with pytest.raises(RuntimeFailure, match="the disk is odd"):
                await bench.room.create(container)
        assert len((await bench.room.converge()).removed) == 1
        assert bench.left() == []

    async def test_a_thaw_that_does_not_succeed_is_remembered(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(freezing, "_THAW_TRIES", 2)
        container = bench.container()
        bench.runtime.fail("tasks.Resume", "the freezer is stuck", times=2)
        with pytest.raises(CheckpointError, match="thawed"):
            await bench.room.create(container)
        assert not bench.runs(container)
        assert (await bench.room.converge()).thawed == [container]
        assert bench.runs(container)
        assert bench.left() == []

    async def test_the_room_clears_up_when_containerd_is_back(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(freezing, "_THAW_TRIES", 1)
        container = bench.container()
        life = asyncio.create_task(bench.room.run())
        hold = bench.runtime.hold("tasks.Checkpoint:done", times=1)
        making = asyncio.create_task(bench.room.create(container))
        await hold.reached.wait()
        bench.runtime.crash()
        hold.release()
        await ended(making)
        assert not bench.runs(container)
        bench.runtime.restart()
        async with asyncio.timeout(10):
            while not bench.runs(container) or bench.left():  # noqa: ASYNC110 - the node tells nobody
                await asyncio.sleep(0.01)
        life.cancel()
        await ended(life)


class TestConverging:
    async def test_complete_ones_stay(self, bench: Bench) -> None:
        made = await bench.room.create(bench.container())
        done = await bench.new_room().converge()
        assert (done.thawed, done.removed, done.snapshots, done.left) == ([], [], [], [])
        await bench.new_room().verify(made.id)

    async def test_a_snapshot_that_cannot_be_removed_is_left(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await bench.room.open()
        (bench.directory / "cp-new" / "images").mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.setattr(taking, "_remove_snapshot", stuck)
            assert (await bench.room.converge()).left == ["cp-new"]
        assert (await bench.room.converge()).removed == ["cp-new"]

    async def test_the_room_outlives_what_it_cannot_clear_up(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "_CONVERGE_PAUSE", 0.01)
        converge, failures = bench.room.converge, [CheckpointError("no"), OSError(5, "no"), RuntimeFailure("no")]

        async def failing() -> Converged:
            if failures:
                raise failures.pop()
            return await converge()

        monkeypatch.setattr(bench.room, "converge", failing)
        life = asyncio.create_task(bench.room.run())
        await asyncio.wait_for(bench.room.cleared.wait(), 10)
        assert not failures
        life.cancel()
        assert isinstance(await ended(life), asyncio.CancelledError)

    async def test_strays(self, bench: Bench) -> None:
        """A snapshot without its directory is ours to remove; another daemon's is not."""
        labels = {"stoker.dev/checkpoint": "cp-x", "stoker.dev/daemon": "stokerd-1"}
        await bench.runtime.snapshots.prepare("mine", "", labels=labels)
        await bench.runtime.snapshots.prepare("theirs", "", labels={**labels, "stoker.dev/daemon": "stokerd-2"})
        assert (await bench.room.converge()).snapshots == ["mine"]
        assert bench.ours() == {"theirs"}

    async def test_a_directory_that_was_just_made(self, bench: Bench) -> None:
        await bench.room.open()
        (bench.directory / "cp-new" / "images").mkdir(parents=True)
        (bench.directory / "cp-new" / "intent.json.new").write_bytes(b"{")
        assert (await bench.room.converge()).removed == ["cp-new"]
        assert bench.left() == []

    async def test_a_criu_that_never_ends(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """Thawing now would be undone by it."""
        from stokerd.checkpoints import converging

        monkeypatch.setattr(converging, "_DUMP_TIMEOUT", 0.05)
        container = bench.container()
        hold = bench.runtime.hold("tasks.Checkpoint", times=1)
        dead = asyncio.create_task(bench.room.create(container))
        await hold.reached.wait()
        bench.orphans = [(1,)] * 1000
        done = await bench.new_room().converge()
        assert len(done.left) == 1
        bench.orphans = []
        assert (await bench.new_room().converge()).thawed == [container]
        dead.cancel()
        hold.release()
        await ended(dead)

    async def test_a_directory_that_cannot_be_seen_is_not_an_empty_one(self, bench: Bench) -> None:
        """As while containerd is away, beneath which it is: the snapshots of its checkpoints are no strays."""
        made = await bench.room.create(bench.container())
        away = bench.directory.rename(bench.directory.with_name("away"))
        for ask in (bench.room.converge, bench.room.list, bench.room.clones):
            with pytest.raises(RuntimeUnavailable):
                await ask()
        assert bench.ours() == {made.root.snapshot}
        away.rename(bench.directory)
        await bench.room.converge()
        assert await bench.room.verify(made.id) == made

    async def test_damage_is_no_leftover(self, bench: Bench) -> None:
        made = await bench.room.create(bench.container())
        (bench.directory / made.id / "manifest.json").write_bytes(b"{}")
        await bench.room.converge()
        assert bench.ours() == {made.root.snapshot}
        assert await bench.room.list() == ()
        with pytest.raises(CheckpointDamaged):
            await bench.room.inspect(made.id)
        await bench.room.remove(made.id)
        assert bench.left() == []


class TestKeeping:
    async def test_list_inspect_remove(self, bench: Bench) -> None:
        container = bench.container()
        first = await bench.room.create(container, Wish(name="one"))
        second = await bench.room.create(container, Wish(name="two"))
        third = await bench.room.create(container, Wish(name="two"))
        assert {each.id for each in await bench.room.list()} == {first.id, second.id, third.id}
        assert await bench.room.inspect("one") == first == await bench.room.inspect(first.id)
        with pytest.raises(InvalidInput, match="2 checkpoints"):
            await bench.room.inspect("two")
        for unknown in ("three", "../checkpoints", "/etc", ""):
            with pytest.raises(NotFound):
                await bench.room.inspect(unknown)
        for each in (first, second, third):
            await bench.room.remove(each.id)
        assert bench.left() == []
        with pytest.raises(NotFound):
            await bench.room.remove(first.id)

    @pytest.mark.parametrize("name", ["images/pages-1.img", "spec.json", "images/inventory.img"])
    async def test_damage_is_named(self, bench: Bench, name: str) -> None:
        made = await bench.room.create(bench.container())
        assert await bench.room.verify(made.id) == made
        path = bench.directory / made.id / name
        body = bytearray(path.read_bytes())
        body[3] ^= 1
        path.write_bytes(body)
        with pytest.raises(CheckpointDamaged, match=name) as caught:
            await bench.room.verify(made.id)
        assert len(caught.value.problems) == 1
        path.unlink()
        with pytest.raises(CheckpointDamaged, match="is missing"):
            await bench.room.verify(made.id)

    async def test_damage_of_the_root(self, bench: Bench) -> None:
        made = await bench.room.create(bench.container())
        (Path(bench.runtime.store.snapshots[made.root.snapshot].directory) / "fs" / "a").write_text("other")
        with pytest.raises(CheckpointDamaged, match="root filesystem"):
            await bench.room.verify(made.id)
        await bench.runtime.snapshots.remove(made.root.snapshot)
        with pytest.raises(CheckpointDamaged, match="snapshot"):
            await bench.room.verify(made.id)

    async def test_verifying_leaves_nothing(self, bench: Bench) -> None:
        made = await bench.room.create(bench.container())
        before = bench.left()
        await bench.room.verify(made.id)
        assert bench.left() == before

    async def test_one_in_use_stays(self, bench: Bench) -> None:
        made = await bench.room.create(bench.container())
        await bench.runtime.snapshots.prepare("clone", root_name(made.id))
        with pytest.raises(Conflict, match="clone"):
            await bench.room.remove(made.id)
        await bench.room.verify(made.id)
        await bench.runtime.snapshots.remove("clone")
        await bench.room.remove(made.id)
        assert bench.left() == []

    async def test_a_removal_that_was_broken_off_is_finished(self, bench: Bench) -> None:
        made = await bench.room.create(bench.container())
        bench.runtime.fail("snapshots.Remove", RuntimeUnavailable("gone"))
        with pytest.raises(RuntimeUnavailable):
            await bench.room.remove(made.id)
        assert await bench.room.list() == ()
        assert (await bench.room.converge()).removed == [made.id]
        assert bench.left() == []


class TestPausing:
    async def test_is_idempotent_and_outlives_stokerd(self, bench: Bench) -> None:
        container = bench.container()
        for _ in range(2):
            await bench.room.pause(container)
            assert container in bench.runtime.native.frozen
        done = await bench.new_room().converge()
        assert done.thawed == []
        assert container in bench.runtime.native.frozen
        for _ in range(2):
            await bench.new_room().resume(container)
            assert bench.runs(container)

    async def test_one_that_was_never_answered_is_undone(self, bench: Bench) -> None:
        container = bench.container()
        hold = bench.runtime.hold("tasks.Pause:done", times=1)
        dead = asyncio.create_task(bench.room.pause(container))
        await hold.reached.wait()
        assert not bench.runs(container)
        assert (await bench.new_room().converge()).thawed == [container]
        assert bench.runs(container)
        dead.cancel()
        hold.release()
        await ended(dead)

    @pytest.mark.parametrize("how", ["fail", "cancel"])
    async def test_one_that_fails_is_undone(self, bench: Bench, how: str) -> None:
        container = bench.container()
        if how == "fail":
            bench.runtime.fail("tasks.Pause:done", "no")
            with pytest.raises(RuntimeFailure):
                await bench.room.pause(container)
        else:
            hold = bench.runtime.hold("tasks.Pause:done", times=1)
            task = asyncio.create_task(bench.room.pause(container))
            await hold.reached.wait()
            task.cancel()
            hold.release()
            assert isinstance(await ended(task), asyncio.CancelledError)
        assert bench.runs(container)
        done = await bench.new_room().converge()
        assert done.thawed == []

    async def test_of_what_has_ended_is_forgotten(self, bench: Bench) -> None:
        container = bench.container()
        await bench.room.pause(container)
        bench.runtime.end(container)
        await bench.room.converge()
        assert list((bench.directory / ".pauses").iterdir()) == []
        with pytest.raises(NotFound):
            await bench.room.pause(container)
        with pytest.raises(NotFound):
            await bench.room.resume("none")
