"""What only a file can do: be there again after a restart or a kill, be full, be damaged, be taken."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.objects.cluster_images import ImagePullJob
from stoker.objects.cluster_nodes import Node
from stoker_coordinator.errors import AlreadyRunning, Expired, StoreFailed
from stoker_coordinator.store import database
from stoker_coordinator.store.base import Limits
from stoker_coordinator.store.sqlite import SqliteStore
from tests.unit.coordinator.store.things import job, node, take, told, with_image, with_meta


async def opened(directory: Path, limits: Limits | None = None) -> SqliteStore:
    store = SqliteStore(directory, limits)
    await store.open()
    return store


def rows(directory: Path) -> int:
    connection = sqlite3.connect(directory / "store.db")
    try:
        return int(connection.execute("SELECT count(*) FROM changes").fetchone()[0])
    finally:
        connection.close()


async def test_a_restart_knows_everything_the_history_included(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    made = await store.create(job("a", labels={"x": "y"}, finalizers=("stay",)))
    await store.create(job("b"))
    await store.delete(ImagePullJob, "b", "default")
    going = await store.delete(ImagePullJob, "a", "default")
    before = store.revision
    await store.close()

    store = await opened(tmp_path)
    assert store.revision == before
    assert (await store.list(ImagePullJob)).items == (going,)
    seen = await take(store.watch([], since=made.revision), 3)
    assert told(seen) == [("ADDED", "b"), ("DELETED", "b"), ("MODIFIED", "a")]
    assert seen[2].old == made
    assert (await store.create(job("b"))).revision == before + 1
    await store.close()


async def test_revisions_never_return_even_when_everything_is_gone(tmp_path: Path) -> None:
    store = await opened(tmp_path, Limits(history_changes=1))
    for _ in range(5):
        await store.create(node("n"))
        await store.delete(Node, "n")
    await store.create(node("m"))
    last = store.revision
    await store.close()

    store = await opened(tmp_path, Limits(history_changes=1))
    assert store.revision == last
    with pytest.raises(Expired):
        await take(store.watch([], since=3), 1)
    await store.close()


async def test_the_file_keeps_what_is_there_and_the_history_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path, Limits(history_changes=10))
    made = await store.create(job("a"))
    for number in range(100):
        made = await store.update(with_image(made, f"image-{number}"))
    for number in range(30):
        await store.create(node(f"n{number}"))
        await store.delete(Node, f"n{number}")
    await store.close()

    # The object, ten changes, and what the oldest of these replaced.
    assert rows(tmp_path) <= 1 + 10 + 1


async def test_what_a_crash_left_undropped_is_dropped_at_the_next_start(tmp_path: Path) -> None:
    store = await opened(tmp_path, Limits(history_changes=1))
    made = await store.create(job("a"))
    for number in range(5):
        made = await store.update(with_image(made, f"image-{number}"))
    await store.close()
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("INSERT INTO changes SELECT 1, kind, namespace, name, 0, data FROM changes LIMIT 1")
    connection.commit()
    connection.close()

    await (await opened(tmp_path, Limits(history_changes=1))).close()

    assert rows(tmp_path) == 2


async def test_one_process_for_a_directory(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    with pytest.raises(AlreadyRunning):
        await opened(tmp_path)
    await store.close()
    await (await opened(tmp_path)).close()


async def test_a_damaged_file_is_left_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.create(job("a"))
    await store.close()
    for name in ("store.db-wal", "store.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    path = tmp_path / "store.db"
    damaged = b"nonsense" + path.read_bytes()[8:]
    path.write_bytes(damaged)

    with pytest.raises(StoreFailed, match="restore a backup"):
        await opened(tmp_path)
    assert path.read_bytes() == damaged


async def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    await (await opened(tmp_path)).close()
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()

    with pytest.raises(StoreFailed, match="newer version"):
        await opened(tmp_path)


async def test_others_cannot_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    await (await opened(directory)).close()

    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "store.db").stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_fails_writes_and_nothing_else(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    made = await store.create(job("a"))
    connection = store._database._connection
    assert connection is not None
    connection.execute("PRAGMA query_only=1")

    writes = [store.update(with_meta(with_image(made, f"{n}"), resource_version="")) for n in range(20)]
    results = await asyncio.gather(*writes, store.create(job("b")), return_exceptions=True)
    assert all(isinstance(result, StoreFailed) for result in results)
    assert await store.get(ImagePullJob, "a", "default") == made
    assert await store.find(ImagePullJob, "b", "default") is None

    connection.execute("PRAGMA query_only=0")
    changed = await store.update(with_image(made, "new"))
    await store.create(job("b"))
    await store.close()
    store = await opened(tmp_path)
    assert await store.get(ImagePullJob, "a", "default") == changed
    assert told(await take(store.watch([], since=made.revision), 2)) == [("MODIFIED", "a"), ("ADDED", "b")]
    await store.close()


async def test_writes_fail_and_succeed_again_while_others_go_on(tmp_path: Path) -> None:
    """The file takes no writes every now and then, while many write: what was acknowledged is there, nothing else."""
    store = await opened(tmp_path)
    acknowledged: set[str] = set()
    connection = store._database._connection
    assert connection is not None

    async def write(name: str) -> None:
        try:
            await store.create(node(name))
        except StoreFailed:
            return
        acknowledged.add(name)

    for turn in range(30):
        connection.execute(f"PRAGMA query_only={turn % 3 == 1:d}")
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(write(f"n{turn}-{number}"))
    connection.execute("PRAGMA query_only=0")
    await write("last")
    await store.close()

    store = await opened(tmp_path)
    assert {each.metadata.name for each in (await store.list(Node)).items} == acknowledged
    assert "last" in acknowledged
    await store.close()


async def test_a_copy_of_a_store_in_use_is_whole(tmp_path: Path) -> None:
    store = await opened(tmp_path / "state")
    made = await store.create(job("a"))
    await asyncio.to_thread(database.copy, tmp_path / "state", tmp_path / "copy.db")
    with pytest.raises(StoreFailed, match="exists already"):
        await asyncio.to_thread(database.copy, tmp_path / "state", tmp_path / "copy.db")
    await store.close()

    (tmp_path / "other").mkdir()
    (tmp_path / "copy.db").rename(tmp_path / "other" / "store.db")
    store = await opened(tmp_path / "other")
    assert (await store.list(ImagePullJob)).items == (made,)
    await store.close()


_WRITER = """
import asyncio, sys
from pathlib import Path
from stoker_coordinator.store.sqlite import SqliteStore
from stoker_coordinator.store.base import Limits
from tests.unit.coordinator.store.things import job, with_image

async def write(store, worker):
    made = await store.create(job(f"w{worker}-{store.revision}"))
    while True:
        for number in range(5):
            made = await store.update(with_image(made, f"{number}"))
            print(made.metadata.name, made.revision, flush=True)
        await store.delete(type(made), made.metadata.name, "default")
        print(made.metadata.name, 0, flush=True)
        made = await store.create(job(f"w{worker}-{store.revision}"))

async def main():
    store = SqliteStore(Path(sys.argv[1]), Limits(history_changes=50))
    await store.open()
    async with asyncio.TaskGroup() as group:
        for worker in range(8):
            group.create_task(write(store, worker))

asyncio.run(main())
"""


def killed_after(acknowledgements: int, directory: Path) -> dict[str, int]:
    """Let a process write, kill it after so many acknowledgements, and return the last one for each object."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledgements)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
    promised: dict[str, int] = {}
    for line in lines:
        if line.endswith("\n"):
            name, revision = line.split()
            promised[name] = int(revision)
    return promised


@pytest.mark.parametrize("acknowledgements", [1, 50, 400])
async def test_whatever_was_acknowledged_survives_kill_9(acknowledgements: int, tmp_path: Path) -> None:
    promised = await asyncio.to_thread(killed_after, acknowledgements, tmp_path)

    store = await opened(tmp_path)
    found = {each.metadata.name: each.revision for each in (await store.list(ImagePullJob)).items}
    gone = {name for name, revision in promised.items() if not revision}
    assert not gone & found.keys()
    # It may have got further between the last word and the kill, never less far.
    assert all(found[name] >= revision for name, revision in promised.items() if name in found)
    # One deletion of each writer may have been on its way.
    assert len(promised.keys() - gone - found.keys()) <= 8
    await store.close()
