"""Operations: in the journal before they begin, told while they go on, and never left half done."""

from __future__ import annotations

import asyncio
from dataclasses import replace as with_settings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.objects.checkpoints import (
    CheckpointRequest,
    CloneFile,
    CloneRequest,
    CommitRequest,
    PauseRequest,
    RestoreRequest,
)
from stoker.objects.containers import EnvVar
from stokerd.checkpoints import freezing
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.errors import CheckpointError
from stokerd.checkpoints.preflight import OpenFile
from stokerd.errors import Conflict, InvalidInput, JournalError, LimitExceeded, NotFound
from stokerd.journal.rows import OperationRow
from tests.unit.checkpoints.bench import Bench
from tests.unit.checkpoints.counter import Counter, counter

SECRET = "hush-hush-5c9a"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


async def made(desk: Counter, **more: Any) -> str:
    """Checkpoint the pod, and return the id."""
    done = await desk.ended(await desk.desk.create_checkpoint(CheckpointRequest(pod="web", **more)))
    assert done.phase == "Succeeded", done.message
    return done.checkpoints[0].id


class TestCheckpoints:
    async def test_from_the_beginning_to_the_end(self, bench: Bench, tmp_path: Path) -> None:
        container = bench.container()
        async with counter(bench, tmp_path) as desk:
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web", name="first", labels={"a": "1"}))
            assert (asked.phase, asked.kind, asked.subject) == ("Pending", "Checkpoint", "default/web/app")
            ((row),) = await desk.journal.operations()
            assert (row.id, row.finished_at) == (asked.id, None)
            done = await desk.ended(asked)
            assert (done.phase, done.reason, done.succeeded) == ("Succeeded", "", 1)
            assert {"freezing", "dumping"} <= {step.name for step in done.steps}
            (info,) = done.checkpoints
            assert (info.name, info.labels, info.container_id) == ("first", {"a": "1"}, container)
            assert info.memory_bytes > 0
            assert [each.id for each in await desk.desk.checkpoints()] == [info.id]
            detail = await desk.desk.checkpoint(info.id.partition("-")[2])
            assert detail.directory == f"{bench.directory}/{info.id}"
            assert bench.runs(container)
            assert desk.counted("stoker_operations_total", kind="checkpoint", result="succeeded", reason="") == 1
            assert desk.counted("stoker_frozen_seconds_count", kind="checkpoint") == 1
            assert desk.counted("stoker_operations_running") == 0
            verified = await desk.ended(await desk.desk.verify_checkpoint("first"))
            assert verified.phase == "Succeeded"
            assert [each.id for each in await desk.desk.remove_checkpoint("first")] == [info.id]
            assert bench.left() == []

    async def test_a_refusal_names_each_obstacle(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        bench.facts = {"files": (OpenFile(7, "anon_inode:[io_uring]"),), "established": 2}
        async with counter(bench, tmp_path) as desk:
            done = await desk.ended(await desk.desk.create_checkpoint(CheckpointRequest(pod="web")))
            assert (done.phase, done.reason, len(done.causes)) == ("Failed", "CheckpointRefused", 2)
            assert done.hint
            again = await desk.desk.operation(done.id[3:8])
            assert again == done

    async def test_damage_is_named(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path) as desk:
            identity = await made(desk)
            (bench.directory / identity / "images" / "pages-1.img").write_bytes(b"other")
            done = await desk.ended(await desk.desk.verify_checkpoint(identity))
            assert (done.reason, done.causes) == ("CheckpointDamaged", done.causes)
            assert "pages-1.img" in done.causes[0]

    async def test_the_same_request_is_the_same_operation(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path) as desk:
            wish = CheckpointRequest(pod="web", request="nightly")
            first, second = await asyncio.gather(*(desk.desk.create_checkpoint(wish) for _ in range(2)))
            assert first.id == second.id
            await desk.ended(first)
            bench.facts = {"established": 2}
            assert (await desk.desk.create_checkpoint(wish)).phase == "Succeeded"
            with pytest.raises(Conflict, match="of another content"):
                await desk.desk.create_checkpoint(CheckpointRequest(pod="web", request="nightly", stop=True))
            assert len(await desk.desk.checkpoints()) == 1

    async def test_what_cannot_be_meant(self, bench: Bench, tmp_path: Path) -> None:
        async with counter(bench, tmp_path) as desk:
            with pytest.raises(NotFound, match="no pod 'none'"):
                await desk.desk.create_checkpoint(CheckpointRequest(pod="none"))
            with pytest.raises(NotFound):
                await desk.desk.clone(CloneRequest(checkpoint="none"))
            with pytest.raises(NotFound):
                await desk.desk.restore("none", RestoreRequest())
            with pytest.raises(InvalidInput, match="--change"):
                await desk.desk.commit(CommitRequest(container="web", image="a:b", changes=["FROM x"]))
            with pytest.raises(InvalidInput):
                await desk.desk.commit(CommitRequest(container="web", image="A B"))
            assert await desk.desk.operations() == []

    async def test_so_many_at_one_time(self, bench: Bench, tmp_path: Path) -> None:
        for name in ("a", "b", "c"):
            bench.container(name)
        hold = bench.runtime.hold("tasks.Checkpoint", times=1)
        async with counter(bench, tmp_path, settings={"max_parallel": 1}) as desk:
            asked = [
                await desk.desk.create_checkpoint(CheckpointRequest(pod=f"web/{name}")) for name in ("a", "b", "c")
            ]
            await hold.reached.wait()
            phases = [each.phase for each in reversed(await desk.desk.operations())]
            assert phases == ["Running", "Pending", "Pending"]
            desk.desk.apply(with_settings(desk.desk._settings, max_parallel=3))
            hold.release()
            assert {(await desk.ended(each)).phase for each in asked} == {"Succeeded"}


class TestGroups:
    async def test_a_pod_is_one_moment(self, bench: Bench, tmp_path: Path) -> None:
        containers = {bench.container("a"), bench.container("b")}
        async with counter(bench, tmp_path) as desk:
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web", name="both"))
            assert (asked.subject, asked.desired) == ("default/web: a, b", 2)
            done = await desk.ended(asked)
            assert {each.container_id for each in done.checkpoints} == containers
            (group,) = {each.group for each in done.checkpoints}
            with pytest.raises(Conflict, match="together with others"):
                await desk.desk.remove_checkpoint(done.checkpoints[0].id)
            assert (await desk.ended(await desk.desk.verify_checkpoint("both"))).phase == "Succeeded"
            with pytest.raises(Conflict, match="any of 2 checkpoints"):
                await desk.desk.clone(CloneRequest(checkpoint=group))
            assert len(await desk.desk.remove_checkpoint(group)) == 2
            assert bench.left() == []

    async def test_it_goes_as_one(self, bench: Bench, tmp_path: Path) -> None:
        bench.container("a"), bench.container("b")
        async with counter(bench, tmp_path, settings={"keep_count": 1}) as desk:
            await made(desk)
            last = await desk.ended(await desk.desk.create_checkpoint(CheckpointRequest(pod="web")))
            wanted = {each.id for each in last.checkpoints}
            await desk.until(lambda: {each.name for each in bench.directory.glob("cp-*")} == wanted)


class TestCancelling:
    async def test_in_the_middle(self, bench: Bench, tmp_path: Path) -> None:
        container = bench.container()
        hold = bench.runtime.hold("tasks.Checkpoint", times=1)
        async with counter(bench, tmp_path) as desk:
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            await hold.reached.wait()
            assert (await desk.desk.cancel_operation(asked.id)).cancelled
            hold.release()
            done = await desk.ended(asked)
            assert (done.phase, done.reason) == ("Failed", "Cancelled")
            assert bench.runs(container)
            assert bench.left() == []
            assert await desk.desk.cancel_operation(asked.id) == done
            await made(desk)

    async def test_before_its_turn(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path, started=False) as desk:
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            assert (await desk.desk.cancel_operation(asked.id)).reason == "Cancelled"
            await desk.start()
            await made(desk)
            assert (await desk.desk.operation(asked.id)).reason == "Cancelled"

    async def test_when_the_end_is_certain(self, bench: Bench, tmp_path: Path) -> None:
        """An operation has one end: what has succeeded by then has not been cancelled."""
        bench.container()
        async with counter(bench, tmp_path) as desk:
            slow = SlowEnds(desk)
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            await slow.reached.wait()
            cancelling = [asyncio.create_task(desk.desk.cancel_operation(asked.id)) for _ in range(2)]
            await rounds(5)
            slow.go.set()
            done = await desk.ended(asked)
            assert (done.phase, done.cancelled) == ("Succeeded", False)
            assert [await each for each in cancelling] == [done, done]
            assert await desk.desk.operation(asked.id) == done
            assert [row.finished_at is not None for row in slow.written] == [True]

    async def test_what_is_cancelled_is_not_begun(self, bench: Bench, tmp_path: Path) -> None:
        """Nor is it where its turn comes while that is written down."""
        bench.container()
        async with counter(bench, tmp_path, started=False) as desk:
            slow = SlowEnds(desk)
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            cancelling = asyncio.create_task(desk.desk.cancel_operation(asked.id))
            await slow.reached.wait()
            await desk.start()
            await desk.until(desk.desk._runner._queue.empty)
            await rounds(5)
            assert not desk.desk._runner._running
            slow.go.set()
            assert (await cancelling).reason == "Cancelled"
            assert (await desk.ended(asked)).reason == "Cancelled"
            assert len(slow.written) == 1
            assert bench.left() == []

    @pytest.mark.parametrize("later", range(6))
    async def test_at_once(self, bench: Bench, tmp_path: Path, later: int) -> None:
        bench.container()
        bench.runtime.hold("tasks.Pause")
        async with counter(bench, tmp_path) as desk:
            await rounds(20)
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            await rounds(later)
            await desk.desk.cancel_operation(asked.id)
            bench.runtime.clear_faults()
            assert (await desk.ended(asked)).reason == "Cancelled"
            assert bench.left() == []


class TestRestarts:
    async def test_stopped_in_the_middle(self, bench: Bench, tmp_path: Path) -> None:
        container = bench.container()
        hold = bench.runtime.hold("tasks.Checkpoint", times=1)
        async with counter(bench, tmp_path) as desk:
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            await hold.reached.wait()
            stopping = asyncio.create_task(desk.stop())
            await asyncio.sleep(0)
            hold.release()
            await stopping
            assert bench.runs(container)
            assert bench.left() == []
        async with counter(bench, tmp_path) as desk:
            told = await desk.desk.operation(asked.id)
            assert (told.phase, told.reason) == ("Failed", "Interrupted")
            assert "what was begun was undone" in told.message

    @pytest.mark.parametrize("place", ["tasks.Pause:done", "tasks.Checkpoint:done", "snapshots.Commit:done"])
    async def test_killed_in_the_middle(self, bench: Bench, tmp_path: Path, place: str) -> None:
        container = bench.container()
        hold = bench.runtime.hold(place, times=1)
        dead = counter(bench, tmp_path)
        desk = await dead.__aenter__()
        asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
        await hold.reached.wait()
        rows = await desk.journal.operations()
        async with counter(bench, tmp_path / "next", started=False) as successor:
            for row in rows:
                await successor.journal.save(row)
            await successor.start()
            told = await successor.ended(await successor.desk.operation(asked.id))
            assert (told.phase, told.reason) == ("Failed", "Interrupted")
            assert successor.desk.reconciled
            assert bench.runs(container)
            assert bench.left() == []
        hold.release()
        await dead.__aexit__(None, None, None)

    async def test_the_result_is_read_off_the_shelf(self, bench: Bench, tmp_path: Path) -> None:
        """stokerd ended between the manifest and the journal."""
        bench.container()
        async with counter(bench, tmp_path) as desk:
            identity = await made(desk, request="mine")
            ((row),) = await desk.journal.operations()
            (operation,) = await desk.desk.operations()
            before = msgspec.structs.replace(operation, phase="Running", finished_at=None, checkpoints=[])
            text = msgspec.json.encode(before).decode()
            await desk.journal.save(msgspec.structs.replace(row, finished_at=None, operation=text))
        async with counter(bench, tmp_path) as desk:
            told = await desk.ended(await desk.desk.operation("mine"))
            assert (told.phase, [each.id for each in told.checkpoints]) == ("Succeeded", [identity])

    async def test_clearing_up_leaves_alone_what_begins_meanwhile(self, bench: Bench, tmp_path: Path) -> None:
        container = bench.container()
        clearing = bench.runtime.hold("snapshots.List", times=1)
        async with counter(bench, tmp_path) as desk:
            await clearing.reached.wait()
            dumping = bench.runtime.hold("tasks.Checkpoint", times=1)
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            await dumping.reached.wait()
            clearing.release()
            await desk.room.cleared.wait()
            dumping.release()
            done = await desk.ended(asked)
            assert done.phase == "Succeeded", done.message
            await desk.room.verify(done.checkpoints[0].id)
            assert bench.runs(container)

    async def test_what_never_began(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path, started=False) as desk:
            await desk.desk.create_checkpoint(CheckpointRequest(pod="web", request="mine"))
        async with counter(bench, tmp_path) as desk:
            told = await desk.ended(await desk.desk.operation("mine"))
            assert "nothing was begun" in told.message
            assert await desk.desk.checkpoints() == []

    async def test_a_text_that_nobody_understands_is_left_aside(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path) as desk:
            await made(desk)
            ((row),) = await desk.journal.operations()
            await desk.journal.save(msgspec.structs.replace(row, id="op-odd", operation="{"))
        async with counter(bench, tmp_path) as desk:
            assert [each.id for each in await desk.desk.operations()] == [row.id]


class TestTheJournal:
    async def test_what_cannot_be_written_is_not_begun(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path) as desk:
            await fail(desk, "no space left")
            with pytest.raises(JournalError):
                await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            assert await desk.desk.operations() == []
            assert bench.left() == []

    async def test_an_end_is_written_later(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stokerd.checkpoints.ledger._RETRY_PAUSE", 0.01)
        bench.container()
        hold = bench.runtime.hold("tasks.Checkpoint", times=1)
        async with counter(bench, tmp_path) as desk:
            asked = await desk.desk.create_checkpoint(CheckpointRequest(pod="web"))
            await hold.reached.wait()
            save = await fail(desk, "no space left")
            hold.release()
            assert (await desk.ended(asked)).phase == "Succeeded"
            assert desk.desk.problem == "the journal cannot be written"
            desk.journal.save = save  # type: ignore[method-assign]
            await desk.until(lambda: not desk.desk.problem)
            ((row),) = await desk.journal.operations()
            assert row.finished_at is not None

    async def test_old_ones_are_forgotten(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stokerd.checkpoints.running._EXPIRY_INTERVAL", 0.01)
        bench.container()
        async with counter(bench, tmp_path, settings={"operation_ttl": 60.0}) as desk:
            await made(desk)
            desk.now = desk.now.replace(hour=desk.now.hour + 1)
            await desk.until(lambda: not desk.desk._ledger.operations)
            assert await desk.journal.operations() == []
            assert len(await desk.desk.checkpoints()) == 1


async def rounds(number: int) -> None:
    """Let the others take so many steps."""
    for _ in range(number):
        await asyncio.sleep(0)


class SlowEnds:
    """A journal that takes its time over ends, until ``go``."""

    def __init__(self, desk: Counter) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.written: list[OperationRow] = []
        self._save = desk.journal.save
        desk.journal.save = self.save  # type: ignore[method-assign]

    async def save(self, row: OperationRow) -> None:
        if row.finished_at is not None:
            self.written.append(row)
            self.reached.set()
            await self.go.wait()
        await self._save(row)


async def fail(desk: Counter, why: str) -> Any:
    save = desk.journal.save

    async def refuse(*_: Any) -> None:
        raise JournalError(why)

    desk.journal.save = refuse  # type: ignore[method-assign, assignment]
    return save


class TestClones:
    async def test_ten(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path, settings={"max_parallel_clones": 3}) as desk:
            identity = await made(desk, name="golden")
            wish = CloneRequest(
                checkpoint="golden",
                count=10,
                hostname="agent",
                env=[EnvVar(name="TOKEN", value=SECRET)],
                files=[CloneFile(path="/work/task", content=SECRET.encode())],
                hook=["/bin/start", SECRET],
                labels={"team": "a"},
            )
            done = await desk.ended(await desk.desk.clone(wish))
            assert (done.phase, done.succeeded, len(done.clones)) == ("Succeeded", 10, 10)
            assert desk.room.most_at_once == 3
            first = desk.room.asked[0]
            assert (first["hostname"], first["mode"], first["env"]) == ("agent-1", "eager", {"TOKEN": SECRET})
            assert (first["files"], first["hook"]) == ({"/work/task": SECRET.encode()}, ["/bin/start", SECRET])
            assert SECRET not in str([row.operation for row in await desk.journal.operations()])
            assert {each.checkpoint for each in await desk.desk.clones()} == {identity}
            assert all(each.labels == {"team": "a"} for each in await desk.desk.clones())
            with pytest.raises(InvalidInput, match="stokerd's own"):
                await desk.desk.clone(CloneRequest(checkpoint="golden", labels={"stoker.dev/x": "1"}))
            assert (await desk.desk.clone_status("clone-0000000000000003")).addresses == ["10.1.0.3"]
            assert (await desk.desk.checkpoint("golden")).clones
            await desk.desk.remove_clone("0000000000000003")
            assert len(await desk.desk.clones()) == 9
            with pytest.raises(Conflict, match="any of 9"):
                await desk.desk.clone_status("00000000000000")

    async def test_one_fails(self, bench: Bench, tmp_path: Path) -> None:
        """Those that run stay, no further one is begun, and what somebody quoted is in no message."""
        bench.container()
        async with counter(bench, tmp_path, settings={"max_parallel_clones": 1}) as desk:
            await made(desk, name="golden")
            desk.room.failing = {3: CheckpointError(f"the hook said: {SECRET}", hint=f"not {SECRET}")}
            env = [EnvVar(name="TOKEN", value=SECRET)]
            done = await desk.ended(await desk.desk.clone(CloneRequest(checkpoint="golden", count=5, env=env)))
            assert (done.phase, done.reason, done.succeeded) == ("Failed", "CheckpointFailed", 2)
            assert done.message == "2 of 5 are done; the first that failed: the hook said: [hidden]"
            assert SECRET not in done.hint
            assert len(await desk.desk.clones()) == 2
            assert len(desk.room.asked) == 3

    async def test_cancelled(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path, settings={"max_parallel_clones": 1}) as desk:
            await made(desk, name="golden")
            asked = await desk.desk.clone(CloneRequest(checkpoint="golden", count=3))
            async for event in desk.desk.follow_operation(asked.id):
                if event.operation.succeeded:
                    desk.room.gate = asyncio.Event()
                    break
            await desk.desk.cancel_operation(asked.id)
            done = await desk.ended(asked)
            assert done.reason == "Cancelled"
            assert done.message.endswith(f"the {done.succeeded} that run already stay")

    async def test_a_bug_ends_one_operation_alone(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path) as desk:
            await made(desk, name="golden")
            desk.room.failing = {1: ZeroDivisionError("odd")}  # type: ignore[dict-item]
            done = await desk.ended(await desk.desk.clone(CloneRequest(checkpoint="golden", count=2)))
            assert (done.reason, "odd" in done.message) == ("Internal", False)
            await made(desk)

    async def test_too_many(self, bench: Bench, tmp_path: Path) -> None:
        async with counter(bench, tmp_path, settings={"max_clones_per_request": 5}) as desk:
            with pytest.raises(LimitExceeded):
                await desk.desk.clone(CloneRequest(checkpoint="golden", count=6))


class TestPausing:
    async def test_a_pod(self, bench: Bench, tmp_path: Path) -> None:
        one, two = bench.container("a"), bench.container("b")
        async with counter(bench, tmp_path) as desk:
            result = await desk.desk.pause(PauseRequest(pod="web"))
            assert [each.state for each in result.containers] == ["Paused", "Paused"]
            assert bench.runtime.native.frozen == {one, two}
            await desk.desk.pause(PauseRequest(pod="web"))
            await desk.desk.resume(PauseRequest(pod="web", containers=["a"]))
            assert bench.runtime.native.frozen == {two}
            await desk.desk.resume(PauseRequest(pod="web"))
            assert bench.runtime.native.frozen == set()

    async def test_all_or_none(self, bench: Bench, tmp_path: Path) -> None:
        one, two = bench.container("a"), bench.container("b")
        async with counter(bench, tmp_path) as desk:
            hold = bench.runtime.hold("tasks.Pause:done", times=1)
            pausing = asyncio.create_task(desk.desk.pause(PauseRequest(pod="web")))
            await hold.reached.wait()
            bench.runtime.fail("tasks.Pause", "no", times=1)
            hold.release()
            await asyncio.wait({pausing})
            assert pausing.exception() is not None
            assert bench.runs(one)
            assert bench.runs(two)

    async def test_what_was_restored_has_the_name_of_the_container(self, bench: Bench, tmp_path: Path) -> None:
        container = bench.container()
        async with counter(bench, tmp_path) as desk:
            clone = bench.container("restored")
            desk.room.played = {clone: Clone(clone, "cp-x", desk.clock(), state="made", origin=container, pod="pod")}
            await bench.runtime.containers.stop(container, 0)
            result = await desk.desk.pause(PauseRequest(pod="web/app"))
            assert [(each.id, each.container) for each in result.containers] == [(clone, "app")]
            assert bench.runtime.native.frozen == {clone}
            await desk.desk.resume(PauseRequest(pod=clone))


class TestRetention:
    async def test_the_oldest_goes(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path, settings={"keep_count": 2}) as desk:
            first = await made(desk)
            second = await made(desk)
            await bench.runtime.snapshots.prepare("clone", f"stoker-checkpoint-{first}", labels={})
            third = await made(desk)
            await desk.until(lambda: not (bench.directory / second).exists())
            assert [each.id for each in await desk.desk.checkpoints()] == [third, first]
            assert (await desk.desk.checkpoints())[1].clones == 1

    async def test_a_new_limit_holds_at_once(self, bench: Bench, tmp_path: Path) -> None:
        bench.container()
        async with counter(bench, tmp_path) as desk:
            ids = [await made(desk) for _ in range(3)]
            desk.desk.apply(with_settings(desk.desk._settings, keep_bytes=1))
            await desk.until(lambda: not (bench.directory / ids[1]).exists())
            assert [each.id for each in await desk.desk.checkpoints()] == ids[2:]
