"""The room is loaded when somebody asks, or when there is something to look after; not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from stoker.objects.checkpoints import CheckpointRequest, PauseRequest
from stokerd.checkpoints import freezing
from stokerd.checkpoints.model import Pause
from stokerd.checkpoints.room import CheckpointRoom, Parts
from stokerd.checkpoints.shelf import Shelf
from stokerd.journal.checkpoints import CheckpointJournal
from stokerd.journal.database import Database
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
