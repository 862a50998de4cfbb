"""Who watches over clones: it outlives what fails meanwhile, and leaves to others what they are at."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from stokerd.checkpoints import lazy
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.cni import NetworkError
from stokerd.checkpoints.loading import Watch
from stokerd.checkpoints.model import Wish
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.undoing import Undoer
from stokerd.errors import RuntimeUnavailable
from tests.unit.checkpoints.bench import Bench, ended
from tests.unit.checkpoints.test_clones import Programs, left, programs  # noqa: F401 - a fixture
from tests.unit.checkpoints.test_reserve import until

STOP = Wish(leave_running=False)
HELPER = 1  # none of ours


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("stokerd.checkpoints.loading._RETRY_PAUSE", 0.01)
    return Bench(tmp_path)


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Helpers are played: all of them end with this."""
    gone = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def start(*_: object) -> int:
        loops.append(asyncio.get_running_loop())
        return HELPER

    async def end(*_: object) -> None:
        await gone.wait()

    monkeypatch.setattr(lazy, "start", start)
    monkeypatch.setattr(lazy, "ended", end)
    monkeypatch.setattr(lazy, "kill", lambda *_: loops[0].call_soon_threadsafe(gone.set))
    return gone


async def loading(bench: Bench) -> tuple[asyncio.Task[None], Clone]:
    """Return a room that lives, and a clone of its whose memory is still out."""
    life = asyncio.create_task(bench.room.run())
    kept = await bench.room.create(bench.container())
    return life, await bench.room.clone(kept.id, mode="lazy")


async def test_a_clone_that_is_removed_has_lost_nothing(
    bench: Bench,
    programs: Programs,  # noqa: F811
    helper: asyncio.Event,
) -> None:
    """Its helper is killed with it, and the description goes last."""
    life, clone = await loading(bench)
    removal = bench.runtime.hold("containers.Delete", times=1)
    with capture_logs() as logs:
        removing = asyncio.create_task(bench.room.remove_clone(clone.id))
        await removal.reached.wait()
        await asyncio.wait_for(helper.wait(), 10)
        looked = bench.runtime.hold("tasks.Get", times=1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(looked.reached.wait(), 0.2)
        removal.release()
        assert await ended(removing) is None
        looked.release()
        life.cancel()
        await ended(life)
    assert [each for each in logs if each["log_level"] == "error"] == []
    assert left(bench, programs) == []


async def test_a_removal_that_fails_leaves_a_clone_that_has_lost_its_memory(
    bench: Bench,
    programs: Programs,  # noqa: F811
    helper: asyncio.Event,
) -> None:
    life, clone = await loading(bench)
    programs.failing = {"DEL"}
    with pytest.raises(NetworkError):
        await bench.room.remove_clone(clone.id)
    assert helper.is_set()
    async with asyncio.timeout(10):
        while [each.memory for each in await bench.room.clones()] != ["lost"]:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    programs.failing = set()
    await bench.room.remove_clone(clone.id)
    assert left(bench, programs) == []
    life.cancel()
    await ended(life)


@pytest.mark.parametrize("place", ["tasks.Kill", "tasks.Delete", "containers.Delete", "snapshots.Remove"])
async def test_what_ends_with_its_pod_is_tried_until_it_has_ended(
    bench: Bench,
    programs: Programs,  # noqa: F811
    place: str,
) -> None:
    kept = await bench.room.create(bench.container(), STOP)
    life = asyncio.create_task(bench.room.run())
    await bench.room.restore(kept.id)
    await bench.room.cleared.wait()
    bench.runtime.fail(place, "not now", times=3)
    await bench.runtime.pods.stop(bench.pod)
    await until(lambda: left(bench, programs) == [])
    life.cancel()
    await ended(life)


async def test_a_pod_that_ends_while_its_container_comes_back(bench: Bench, programs: Programs) -> None:  # noqa: F811
    """What is being made is not taken down from under it; nothing stays in the end."""
    first = await bench.room.create(bench.container(), STOP)
    life = asyncio.create_task(bench.room.run())
    back = await bench.room.restore(first.id)
    again = await bench.room.create(back.id, STOP)
    hold = bench.runtime.hold("tasks.Create", times=1)
    restoring = asyncio.create_task(bench.room.restore(again.id))
    await hold.reached.wait()
    deleted = bench.runtime.hold("containers.Delete", times=1)
    await bench.runtime.pods.stop(bench.pod)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(deleted.reached.wait(), 0.2)
    assert not deleted.reached.is_set()
    deleted.release()
    hold.release()
    await ended(restoring)
    await until(lambda: left(bench, programs) == [])
    life.cancel()
    await ended(life)


@pytest.mark.parametrize("error", [RuntimeUnavailable("not now"), OSError(5, "not now")])
async def test_the_first_look_fails(
    bench: Bench,
    programs: Programs,  # noqa: F811
    helper: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    kept = await bench.room.create(bench.container())
    clone = await bench.room.clone(kept.id, mode="lazy")
    clones, errors = Shelf.clones, [error, error]

    def seen(self: Shelf) -> tuple[Clone, ...]:
        if errors:
            raise errors.pop()
        return clones(self)

    monkeypatch.setattr(Shelf, "clones", seen)
    shelf = Shelf(str(bench.directory))
    watch = asyncio.create_task(Watch(bench.runtime, shelf, Undoer(bench.runtime, shelf)).run())
    helper.set()
    await until(lambda: getattr(shelf.clone(clone.id), "memory", "") == "lost")
    watch.cancel()
    await ended(watch)
