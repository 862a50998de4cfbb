"""A directory that is seen through containerd: while that is away, nothing in it is taken for gone."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from stokerd.checkpoints import lazy
from stokerd.checkpoints.clone_types import Clone
from stokerd.checkpoints.loading import Watch
from stokerd.checkpoints.manifest import Together
from stokerd.checkpoints.model import Intent, Pause
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.undoing import Undoer
from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.memory import MemoryRuntime
from tests.unit.checkpoints.bench import Bench, ended
from tests.unit.checkpoints.test_decisions import MANIFEST

NOW = datetime(2026, 11, 30, tzinfo=UTC)
MEMBER = replace(MANIFEST, id="cp-20261130-000000-000001", group="group-1")
CLONE = Clone("clone-1", MEMBER.id, NOW, "made", memory="loading", helper=1)


class Prefix:
    """How the node's files are reached: through one containerd after the other."""

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.number = tmp, 0
        (tmp / "node").mkdir()
        self.came()

    def __call__(self) -> str:
        return str(self.tmp / str(self.number))

    def went(self) -> None:
        (self.tmp / str(self.number)).unlink()

    def came(self) -> None:
        self.number += 1
        (self.tmp / str(self.number)).symlink_to(self.tmp / "node")


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    return Prefix(tmp_path)


@pytest.fixture
def shelf(prefix: Prefix) -> Shelf:
    """One of everything is on it."""
    made = Shelf("/kept", prefix)
    made.open()
    made.begin(Intent(MEMBER.id, "c1", NOW, group="group-1"))
    made.seal(MEMBER)
    made.seal_group(Together("group-1", "web", NOW, (MEMBER.id,)))
    made.write_clone(CLONE)
    made.write_network("ahead-1", b"{}")
    made.write_pause(Pause("c1", "paused", NOW))
    return made


READ: dict[str, Callable[[Shelf], object]] = {
    "names": Shelf.names,
    "manifest": lambda shelf: shelf.manifest(MEMBER.id),
    "intent": lambda shelf: shelf.intent(MEMBER.id),
    "groups": Shelf.groups,
    "clone": lambda shelf: shelf.clone(CLONE.id),
    "clones": Shelf.clones,
    "networks": Shelf.networks,
    "pauses": Shelf.pauses,
}


@pytest.mark.parametrize("what", READ)
def test_what_cannot_be_seen_is_not_gone(shelf: Shelf, prefix: Prefix, what: str) -> None:
    before = READ[what](shelf)
    assert before
    prefix.went()
    with pytest.raises((RuntimeUnavailable, OSError)):
        READ[what](shelf)
    prefix.came()
    assert READ[what](shelf) == before


@pytest.mark.parametrize("what", ["manifest", "intent", "clone"])
def test_what_is_not_there_is_none(prefix: Prefix, what: str) -> None:
    shelf = Shelf("/kept", prefix)
    shelf.open()
    assert READ[what](shelf) is None


def test_a_member_without_its_group_is_incomplete(shelf: Shelf) -> None:
    shelf.break_group("group-1")
    assert shelf.manifest(MEMBER.id) is None


@pytest.mark.parametrize(("status", "memory"), [("0\n", "loaded"), (None, "lost")])
async def test_a_helper_that_ends_while_containerd_is_started_anew(
    shelf: Shelf, prefix: Prefix, monkeypatch: pytest.MonkeyPatch, status: str | None, memory: str
) -> None:
    """How it ended is looked for where it is to be found by then."""
    waits, ends = asyncio.Event(), asyncio.Event()

    async def until_it_ends(_pid: int, _work: str) -> None:
        waits.set()
        await ends.wait()

    monkeypatch.setattr(lazy, "ended", until_it_ends)
    shelf.clone_path(CLONE.id, "work").mkdir()
    if status is not None:
        shelf.clone_path(CLONE.id, "work", "exit").write_text(status)
    runtime = MemoryRuntime()
    watch = asyncio.create_task(Watch(runtime, shelf, Undoer(runtime, shelf)).run())
    await asyncio.wait_for(waits.wait(), 10)
    prefix.went()
    ends.set()
    await asyncio.sleep(0)
    prefix.came()
    async with asyncio.timeout(10):
        while (found := shelf.clone(CLONE.id)) is not None and found.memory == "loading":  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    assert found is not None
    assert (found.memory, found.helper) == (memory, 0)
    watch.cancel()
    await ended(watch)


async def test_reconciliation_leaves_what_it_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory goes between the look at what there is and the look at each."""
    bench = Bench(tmp_path)
    kept = await bench.room.create(bench.container())
    away = bench.directory.with_name("away")
    names = Shelf.names

    def names_and_gone(self: Shelf) -> list[str]:
        found = names(self)
        bench.directory.rename(away)
        return found

    successor = bench.new_room()
    await successor.open()
    monkeypatch.setattr(Shelf, "names", names_and_gone)
    with pytest.raises((RuntimeUnavailable, OSError)):
        await successor.converge()
    monkeypatch.setattr(Shelf, "names", names)
    away.rename(bench.directory)
    assert (await successor.converge()).removed == []
    assert [each.id for each in await successor.list()] == [kept.id]
    assert await successor.verify(kept.id) == kept


def test_what_cannot_be_written_leaves_nothing_beside_what_was_there(
    shelf: Shelf, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(prefix.tmp.rglob("*"))
    monkeypatch.setattr("stokerd.checkpoints.shelf.os.fsync", full)
    writes: tuple[Callable[[], None], ...] = (
        lambda: shelf.write_pause(Pause("c9", "pausing", NOW)),
        lambda: shelf.write_clone(replace(CLONE, why="changed")),
        lambda: shelf.write(MEMBER.id, "spec.json", b"{}"),
    )
    for write in writes:
        with pytest.raises(OSError, match="No space"):
            write()
    assert sorted(prefix.tmp.rglob("*")) == before
    assert shelf.clone(CLONE.id) == CLONE
