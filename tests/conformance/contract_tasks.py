"""Containers beneath CRI: their records, freezing them, dumping them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from stokerd.errors import RuntimeAlreadyExists, RuntimeFailure, RuntimeNotFound
from stokerd.runtime.task_types import AnyValue, ContainerRecord, DumpOptions
from tests.conformance.pods import MadePod, make_pod, state_of
from tests.conformance.subject import Subject, eventually

NONE = "stoker-none"


async def record_of(subject: Subject, container: str) -> ContainerRecord:
    found = await subject.runtime.records.get(container)
    assert found is not None
    return found


async def run_apart(subject: Subject) -> tuple[MadePod, str]:
    """Run a container with a PID namespace of its own: that of a pod cannot be dumped with one container."""
    pod = await make_pod(subject)
    linux = {"security_context": {"namespace_options": {"pid": 1}}}
    return pod, await pod.run(linux=linux)


class TestNativeContainers:
    async def test_records_of_cri(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        container = await pod.run(labels={"app": "web"})
        record = await record_of(subject, container)
        assert (record.id, record.snapshotter, record.snapshot_key) == (container, "overlayfs", container)
        assert record.labels["io.cri-containerd.kind"] == "container"
        assert record.runtime.startswith("io.containerd.runc")
        assert record.options is not None
        assert record.document()["process"]["args"][0] == "sh"
        assert "TERM" not in repr(record)
        found = await subject.runtime.records.list(labels={"io.cri-containerd.kind": "container", "app": "web"})
        assert [each.id for each in found] == [container]
        assert record in await subject.runtime.records.list()
        info = await subject.runtime.snapshots.stat(container)
        assert info is not None
        assert info.kind == "active"
        (mount,) = await subject.runtime.snapshots.mounts(container)
        assert any(option.startswith("upperdir=") for option in mount.options)

    async def test_records_of_ours(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        records = subject.runtime.records
        golden = await record_of(subject, await pod.run())
        spec = AnyValue(golden.spec.type, msgspec.json.encode({**golden.document(), "hostname": 'quoted " \\ name'}))
        mine = ContainerRecord(
            "stoker-mine",
            golden.image,
            golden.runtime,
            spec,
            options=golden.options,
            labels={"stoker.dev/clone": 'a "b"'},
            extensions={"stoker.dev/note": AnyValue("stoker.dev/Note", b"\x00\xff")},
        )
        made = await records.create(mine)
        assert made.created_at is not None
        read = await records.get(mine.id)
        assert read is not None
        assert (read.spec, read.options, read.labels, read.extensions) == (
            mine.spec,
            mine.options,
            mine.labels,
            mine.extensions,
        )
        assert await records.list(labels={"stoker.dev/clone": 'a "b"'}) == (read,)
        assert await records.list(labels={"stoker.dev/clone": "other"}) == ()
        with pytest.raises(RuntimeAlreadyExists):
            await records.create(mine)
        assert await subject.runtime.tasks.get(mine.id) is None
        assert mine.id not in {each.id for each in await subject.runtime.containers.list()}
        await records.delete(mine.id)
        await records.delete(mine.id)
        assert await records.get(mine.id) is None


class TestTasks:
    async def test_what_is_not_there(self, subject: Subject) -> None:
        tasks = subject.runtime.tasks
        assert await tasks.get(NONE) is None
        assert await tasks.delete(NONE) is None
        await tasks.kill(NONE, 9)
        for call in (tasks.pause(NONE), tasks.resume(NONE), tasks.pids(NONE), tasks.wait(NONE), tasks.start(NONE)):
            with pytest.raises(RuntimeNotFound):
                await call

    async def test_freezing(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        container, tasks = await pod.run(), subject.runtime.tasks
        task = await tasks.get(container)
        assert task is not None
        assert (task.container_id, task.state) == (container, "running")
        assert task.pid in await tasks.pids(container)
        with pytest.raises(RuntimeFailure):
            await tasks.resume(container)
        await tasks.pause(container)
        frozen = await tasks.get(container)
        assert frozen is not None
        assert (frozen.pid, frozen.state) == (task.pid, "paused")
        with pytest.raises(RuntimeFailure):
            await tasks.pause(container)
        await tasks.resume(container)
        assert await tasks.get(container) == task
        assert await state_of(subject, container) == "running"

    async def test_waiting_and_killing(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        container, tasks = await pod.run(), subject.runtime.tasks
        waiting = asyncio.create_task(tasks.wait(container))
        await tasks.kill(container, 9)
        assert (await asyncio.wait_for(waiting, 20)).code == 137

        async def exited() -> bool:
            return await state_of(subject, container) == "exited"

        await eventually("CRI to notice", exited)

    async def test_run_more_processes(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        container = await pod.run()
        process = (await record_of(subject, container)).document()["process"]
        tasks = subject.runtime.tasks
        argv = ["sh", "-c", 'test "$ABOUT" = me']
        own = {**process, "args": argv, "env": [*(process.get("env") or ()), "ABOUT=me"]}
        assert (await tasks.execute(container, "first", own, timeout=20)).code == 0
        assert (await tasks.execute(container, "first", own, timeout=20)).code == 0
        with pytest.raises(RuntimeFailure):
            await tasks.execute("none", "first", own, timeout=20)
        task = await tasks.get(container)
        assert task is not None
        assert task.state == "running"


class TestDumps:
    async def test_write_the_memory_and_leave_it_running(self, subject: Subject) -> None:
        if not can_dump(subject):
            return
        _, container = await run_apart(subject)
        tasks, where = subject.runtime.tasks, dump_directory(subject, "dump")
        before = await tasks.get(container)
        await tasks.pause(container)
        await tasks.checkpoint(container, f"{where}/images", f"{where}/work", DumpOptions(), timeout=60)
        paused = await tasks.get(container)
        assert paused is not None
        assert paused.state == "paused"
        await tasks.resume(container)
        assert await tasks.get(container) == before
        names, log = dumped(where)
        assert "inventory.img" in names
        assert any(name.startswith("core-") for name in names)
        assert "Dumping finished successfully" in log

    async def test_may_end_it(self, subject: Subject) -> None:
        if not can_dump(subject):
            return
        _, container = await run_apart(subject)
        where = dump_directory(subject, "dump-end")
        options = DumpOptions(leave_running=False)
        await subject.runtime.tasks.checkpoint(container, f"{where}/images", f"{where}/work", options, timeout=60)

        async def exited() -> bool:
            return await state_of(subject, container) == "exited"

        await eventually("the container to have ended", exited)

    async def test_of_what_does_not_run(self, subject: Subject) -> None:
        pod = await make_pod(subject)
        container = await pod.create()
        where = subject.directory("dump-none")
        with pytest.raises(RuntimeFailure):
            await subject.runtime.tasks.checkpoint(container, where, where, DumpOptions(), timeout=60)


def can_dump(subject: Subject) -> bool:
    """CRIU 3.17, which goes with containerd 1.6, does not start on new kernels; the memory runtime is like that too."""
    return subject.generation != "1.6"


def dump_directory(subject: Subject, name: str) -> str:
    where = subject.directory(name)
    for part in ("images", "work"):
        Path(where, part).mkdir(exist_ok=True)
    return where


def dumped(where: str) -> tuple[set[str], str]:
    """Return the names of the images, and the log."""
    names = {path.name for path in Path(where, "images").iterdir()}
    return names, Path(where, "work", "dump.log").read_text(errors="replace")
