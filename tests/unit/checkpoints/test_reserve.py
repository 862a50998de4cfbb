"""Networks made ahead: whatever fails, or is broken off, each is somebody's, ready, or gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stokerd.checkpoints import networks
from stokerd.checkpoints.cni import NetworkError, NetworkList
from stokerd.checkpoints.networks import Attached
from stokerd.checkpoints.service import Checkpoints
from stokerd.checkpoints.shelf import Shelf
from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.memory import MemoryRuntime
from stokerd.runtime.types import RuntimeInfo
from tests.unit.checkpoints.bench import Bench, ended
from tests.unit.checkpoints.test_clones import Programs, left, programs  # noqa: F401 - a fixture


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("stokerd.checkpoints.reserve._PAUSE", 0.01)
    return Bench(tmp_path)


class Gate:
    """Stops the thread that comes to it for the *turn*-th time, until it is opened."""

    def __init__(
        self, work: Callable[..., Any], turn: int = 1, concerns: Callable[..., bool] = lambda *_: True
    ) -> None:
        self._work, self._turns, self._concerns = work, turn, concerns
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()
        self.reached = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._turns -= 1
        if not self._turns:
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self._open.wait(10)
        return self._work(*arguments, **named)

    async def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task while its thread stands here, and let that go on."""
        await asyncio.wait_for(self.reached.wait(), 10)
        task.cancel()
        await asyncio.sleep(0)
        self.open()
        assert isinstance(await ended(task), asyncio.CancelledError)


def method(gate: Gate) -> Callable[..., Any]:
    """Return it as a function, which a class makes a method of."""

    def passed(*arguments: Any, **named: Any) -> Any:
        return gate(*arguments, **named)

    return passed


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - the room tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("place", ["is_there", "write_clone", "drop_network"])
async def test_a_caller_that_goes_away_loses_none(
    bench: Bench,
    programs: Programs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    kept = await bench.room.create(bench.container())
    await bench.room.connect(1)
    with monkeypatch.context() as patch:
        if place == "is_there":
            gate = Gate(networks.is_there)
            patch.setattr(networks, "is_there", gate)
        else:
            gate = Gate(getattr(Shelf, place))
            patch.setattr(Shelf, place, method(gate))
        await gate.cancel(asyncio.create_task(bench.room.clone(kept.id)))
    await bench.room.connect(0)
    assert left(bench, programs) == []


@pytest.mark.parametrize("place", ["write_clone", "drop_network"])
async def test_one_that_could_not_be_handed_over_is_not_lost(
    bench: Bench,
    programs: Programs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    kept = await bench.room.create(bench.container())
    await bench.room.connect(1)
    with monkeypatch.context() as patch:
        patch.setattr(Shelf, place, fails)
        with pytest.raises(Exception, match="Input/output error"):
            await bench.room.clone(kept.id)
    await bench.room.connect(1)
    assert len(programs.attached) == len(programs.namespaces) == 1
    await bench.room.connect(0)
    assert left(bench, programs) == []


async def test_one_that_is_out_of_reach_is_kept(
    bench: Bench,
    programs: Programs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def out_of_reach(_info: RuntimeInfo, _name: str) -> bool:
        raise RuntimeUnavailable("the node's files cannot be reached")

    kept = await bench.room.create(bench.container())
    await bench.room.connect(1)
    (made,) = programs.attached
    with monkeypatch.context() as patch:
        patch.setattr(networks, "is_there", out_of_reach)
        with pytest.raises(RuntimeUnavailable):
            await bench.room.clone(kept.id)
    await bench.room.connect(1)
    assert (await bench.room.clone(kept.id)).netns == made


async def test_absence_and_what_cannot_be_seen(tmp_path: Path) -> None:
    info = replace(MemoryRuntime().info, host_root=str(tmp_path))
    assert not networks.is_there(info, "ahead-1")
    await networks.drop_netns(info, "ahead-1")
    gone = replace(info, host_root=str(tmp_path / "proc" / "7" / "root"))
    with pytest.raises(RuntimeUnavailable):
        networks.is_there(gone, "ahead-1")
    with pytest.raises(RuntimeUnavailable):
        await networks.drop_netns(gone, "ahead-1")


@pytest.mark.parametrize("turn", [1, 2])
async def test_making_is_broken_off(
    bench: Bench,
    programs: Programs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    turn: int,
) -> None:
    """Each is written down before it is made, and afterwards."""
    await bench.room.open()
    gate = Gate(Shelf.write_network, turn)
    monkeypatch.setattr(Shelf, "write_network", method(gate))
    await gate.cancel(asyncio.create_task(bench.room.connect(1)))
    assert left(bench, programs) == []


async def test_when_one_fails_the_others_are_waited_for(
    bench: Bench,
    programs: Programs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attach, failed = networks.attach, asyncio.Event()

    async def first_fails(info: RuntimeInfo, name: str, network: NetworkList) -> Attached:
        if not failed.is_set():
            failed.set()
            raise NetworkError("no")
        await asyncio.sleep(0.05)
        return await attach(info, name, network)

    monkeypatch.setattr(networks, "attach", first_fails)
    with pytest.raises(NetworkError):
        await bench.room.connect(3)
    assert len(programs.attached) == 2
    await bench.room.connect(0)
    assert left(bench, programs) == []


async def test_containerd_goes_away_while_one_is_made(
    bench: Bench,
    programs: Programs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The room lives on, and what was begun is taken down before another is made."""
    attach, crashed = networks.attach, asyncio.Event()

    async def crash_first(info: RuntimeInfo, name: str, network: NetworkList) -> Attached:
        made = await attach(info, name, network)
        if not crashed.is_set():
            crashed.set()
            bench.runtime.crash()
            raise NetworkError("containerd has gone")
        return made

    monkeypatch.setattr(networks, "attach", crash_first)
    room = Checkpoints(bench.runtime, str(bench.directory), "stokerd-1", networks_ahead=1)
    life = asyncio.create_task(room.run())
    await asyncio.wait_for(crashed.wait(), 10)
    (begun,) = programs.attached
    await asyncio.sleep(0.05)
    assert not life.done()
    bench.runtime.restart()
    await until(lambda: len(programs.attached) == 1 and begun not in programs.attached)
    await until(lambda: not programs.namespaces - programs.attached.keys())
    life.cancel()
    await ended(life)
    await room.connect(0)
    assert left(bench, programs) == []


async def test_one_that_does_not_go_is_tried_again(bench: Bench, programs: Programs) -> None:  # noqa: F811
    life = asyncio.create_task(bench.room.run())
    await bench.room.connect(1)
    programs.failing = {"DEL"}
    await bench.room.connect(0)
    assert len(programs.attached) == 1
    programs.failing = set()
    await until(lambda: left(bench, programs) == [])
    life.cancel()
    await ended(life)
