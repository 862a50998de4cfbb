"""The room is loaded when somebody asks, or when there is something to look after; not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from stoker.objects.checkpoints import CheckpointRequest, PauseRequest
from stokerd.checkpoints import checking, freezing
from stokerd.checkpoints import room as rooms
from stokerd.checkpoints.capabilities import Checked
from stokerd.checkpoints.model import Pause
from stokerd.checkpoints.room import CheckpointRoom, Parts
from stokerd.checkpoints.shelf import Shelf
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.journal.database import Database
from stokerd.runtime.types import RuntimeInfo
from stokerd.settings import CheckpointSettings
from tests.unit.checkpoints.bench import Bench
from tests.unit.checkpoints.counter import Names, alone, counter


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


@asynccontextmanager
async def running(bench: Bench, tmp: Path) -> AsyncIterator[CheckpointRoom]:
    database = Database(tmp / "state")
    await database.open()
    carriers = alone()
    parts = Parts(
        runtime=bench.runtime,
        journal=CheckpointJournal(database),
        names=Names(bench),
        owner="stokerd-1",
        salt=b"salt" * 8,
        registry=CollectorRegistry(),
        client=carriers.client,
        keyring=carriers.keyring,
        warmer=carriers.warmer,
    )
    room = CheckpointRoom(parts, CheckpointSettings(directory=bench.directory, criu_config="leave"))
    await room.load()
    life = asyncio.create_task(room.run())
    try:
        yield room
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await database.close()


async def reconciled(room: CheckpointRoom) -> None:
    async with asyncio.timeout(20):
        while not room.reconciled:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_nothing_to_look_after(bench: Bench, tmp_path: Path) -> None:
    async with running(bench, tmp_path) as room:
        await reconciled(room)
        assert room._desk is None
        room.apply(CheckpointSettings(directory=bench.directory, max_parallel=7))
        assert await room.checkpoints() == []
        assert room._desk is not None
        await reconciled(room)
        assert await room.operations() == []
        assert room.problem == ""


async def test_empty_directories_of_ours_are_nothing(bench: Bench, tmp_path: Path) -> None:
    Shelf(str(bench.directory)).open()
    async with running(bench, tmp_path) as room:
        await reconciled(room)
        assert room._desk is None


async def test_a_container_that_was_left_frozen(bench: Bench, tmp_path: Path) -> None:
    container = bench.container()
    shelf = Shelf(str(bench.directory))
    shelf.open()
    shelf.write_pause(Pause(container, "pausing", bench.room._clock()))
    await bench.runtime.tasks.pause(container)
    async with running(bench, tmp_path) as room:
        await reconciled(room)
        assert bench.runs(container)


async def test_an_operation_that_was_interrupted(bench: Bench, tmp_path: Path) -> None:
    bench.container()
    async with counter(bench, tmp_path, started=False) as dead:
        asked = await dead.desk.create_checkpoint(CheckpointRequest(pod="web"))
    async with running(bench, tmp_path) as room:
        await reconciled(room)
        assert (await room.operation(asked.id)).reason == "Interrupted"
        events = [event async for event in room.follow_operation(asked.id)]
        assert [event.operation.phase for event in events] == ["Failed"]


async def test_while_containerd_is_away(bench: Bench, tmp_path: Path) -> None:
    bench.runtime.crash()
    async with running(bench, tmp_path) as room:
        assert await room.operations() == []
        assert not room.reconciled
        bench.runtime.restart()
        await reconciled(room)


async def test_pauses_by_way_of_it(bench: Bench, tmp_path: Path) -> None:
    container = bench.container()
    async with running(bench, tmp_path) as room:
        await room.pause(PauseRequest(pod="web"))
        assert container in bench.runtime.native.frozen
    async with running(bench, tmp_path) as room:
        await reconciled(room)
        assert container in bench.runtime.native.frozen
        await room.resume(PauseRequest(pod="web"))
        assert bench.runs(container)


async def test_a_directory_that_cannot_be_seen_is_looked_at_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is seen through a containerd that has ended; what stands there is not forgotten."""
    container = bench.container()
    shelf = Shelf(str(bench.directory))
    shelf.open()
    shelf.write_pause(Pause(container, "pausing", bench.room._clock()))
    await bench.runtime.tasks.pause(container)
    root, looks = tmp_path / "containerd", 0
    info = replace(bench.runtime.info, host_root=str(root))
    monkeypatch.setattr(bench.runtime, "_info", lambda: info)
    monkeypatch.setattr(rooms, "_LOOK_PAUSE", 0.01)
    holds = rooms._holds_anything

    def counted(root: str, directory: str) -> bool:
        nonlocal looks
        looks += 1
        return holds(root, directory)

    monkeypatch.setattr(rooms, "_holds_anything", counted)
    async with running(bench, tmp_path) as room:
        async with asyncio.timeout(20):
            while looks < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not room.reconciled
        root.symlink_to("/")
        await reconciled(room)
        assert bench.runs(container)


class Criu:
    """What answers instead of ``criu check``, when ``free`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Checked) -> None:
        self.answers, self.asked, self.broken_off = [*answers], 0, False
        self.free = asyncio.Event()
        self.free.set()
        monkeypatch.setattr(checking, "check", self._check)
        monkeypatch.setattr(checking, "_PATIENCE", 0.05)

    async def _check(self, _info: RuntimeInfo) -> Checked:
        self.asked += 1
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.broken_off = True
            raise
        return self.answers.pop(0)


async def detail(room: CheckpointRoom, info: RuntimeInfo) -> str:
    """Return what is said of checkpoints; only what works begins with its version alone."""
    rows, _ = await room.capabilities(info)
    (found,) = [each for each in rows if each.name == "checkpoint"]
    assert found.available is (found.detail.split(";")[0] == "CRIU 4.2")
    return found.detail


async def test_criu_is_slow(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it, whoever does not wait any longer breaks nothing off, and it is asked once."""
    criu = Criu(monkeypatch, Checked(lazy=True))
    criu.free.clear()
    async with running(bench, tmp_path) as room:
        info = bench.runtime.info
        told = await asyncio.gather(*(detail(room, info) for _ in range(3)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(room.capabilities(info), 0.01)
        assert all("has not said yet" in each for each in told)
        monkeypatch.setattr(checking, "_PATIENCE", 20.0)
        late = asyncio.create_task(detail(room, info))
        criu.free.set()
        assert "works" not in await late
        assert await detail(room, info) == await late
        assert (criu.asked, criu.broken_off) == (1, False)
        await room.checkpoints()
        criu.answers.append(Checked("no"))
        assert "does not work on this kernel: no" in await detail(room, replace(info, pid=info.pid + 1))


async def test_criu_that_could_not_be_asked_is_asked_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    criu = Criu(monkeypatch, Checked("no time", known=False), Checked("none either", known=False), Checked(lazy=True))
    async with running(bench, tmp_path) as room:
        info = bench.runtime.info
        for _ in range(2):
            assert "could not be asked" in await detail(room, info)
        assert criu.asked == 1
        monkeypatch.setattr(checking, "_AGAIN", 0.0)
        assert room._asker is not None
        room._asker._again = 0.0
        assert "none either" in await detail(room, info)
        assert "works" not in await detail(room, info)
        assert criu.asked == 3


async def test_what_asks_criu_ends_with_the_room(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    criu = Criu(monkeypatch)
    criu.free.clear()
    async with running(bench, tmp_path) as room:
        await detail(room, bench.runtime.info)
        assert not criu.broken_off
    assert criu.broken_off
    assert "has not said yet" in await detail(room, bench.runtime.info)
