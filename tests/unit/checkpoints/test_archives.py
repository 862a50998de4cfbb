"""Checkpoints written out and taken in on a node in memory; archives that want more than they may."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from msgspec.structs import replace

from stokerd.checkpoints import archive_plan as plans
from stokerd.checkpoints import freezing, taking
from stokerd.checkpoints.archive_plan import Contents, Piece
from stokerd.checkpoints.errors import ArchiveRefused, CheckpointError, CheckpointNoSpace, CheckpointRefused
from stokerd.checkpoints.importing import ImportWish
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.tarring import END, FILE, LINK, SYMLINK, Member, header, padded
from stokerd.checkpoints.untarring import TarReader
from stokerd.errors import InvalidInput, NotFound, RuntimeFailure
from stokerd.runtime.protocol import NativeRuntime
from tests.unit.checkpoints.bench import IMAGE, Bench, ended
from tests.unit.checkpoints.trees import seen

Change = Callable[[dict[str, bytes]], None]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


async def exported(bench: Bench, manifest: Manifest) -> bytes:
    return b"".join([piece async for piece in bench.room.archive(manifest.id)])


async def pieces(body: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def parts(archive: bytes) -> dict[str, bytes]:
    """Return the files of an archive, in their order."""
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(archive), read_across_frames=True).read()
    reader = TarReader(io.BytesIO(plain).read)
    return {member.name.decode(): b"".join(reader.data()) for member in reader.members()}


def packed(files: dict[str, bytes], *, honest: bool = True) -> bytes:
    """Return an archive of *files*; when it is *honest*, its first file tells their sizes and digests."""
    if honest:
        contents = msgspec.json.decode(files[plans.CONTENTS], type=Contents)
        found = {
            name: Piece(len(body), f"sha256:{hashlib.sha256(body).hexdigest()}")
            for name, body in files.items()
            if name != plans.CONTENTS
        }
        files = {**files, plans.CONTENTS: msgspec.json.encode(replace(contents, pieces=found))}
    body = b"".join(
        header(Member(name.encode(), FILE, 0o600, size=len(each))) + padded(each) for name, each in files.items()
    )
    return body + END


_ONCE: dict[str, bytes] = {}


async def exported_once(bench: Bench) -> dict[str, bytes]:
    """Return the files of a checkpoint that is made by the first who asks, and gone from the node again."""
    if not _ONCE:
        made = await bench.room.create(bench.runtime.add_container(bench.pod, "source", IMAGE))
        _ONCE.update(parts(await exported(bench, made)))
        await bench.room.remove(made.id)
    await bench.room.open()
    return dict(_ONCE)


def tar(*members: Member, data: bytes = b"") -> bytes:
    return b"".join(header(each) + (padded(data[: each.size]) if each.size else b"") for each in members) + END


async def test_there_and_back(bench: Bench) -> None:
    container = bench.container()
    made = await bench.room.create(container)
    archive = await exported(bench, made)
    files = parts(archive)
    assert next(iter(files)) == plans.CONTENTS
    assert {"config.dump", "spec.dump", "status.dump", "rootfs-diff.tar"} <= files.keys()
    assert msgspec.json.decode(files["config.dump"])["rootfsImage"] == made.source.image
    back = await bench.room.receive(pieces(archive), ImportWish(like=container))
    assert back.id != made.id
    assert [(part.path, part.digest) for part in back.parts if part.path.startswith("images/")] == [
        (part.path, part.digest) for part in made.parts if part.path.startswith("images/")
    ]
    assert back.source == replace(made.source, container_id="", pod_id="")
    await bench.room.verify(back.id)
    one, two = (plainly(seen(_upper(bench, each.root.snapshot))) for each in (made, back))
    leave = {path for path in one if "socket" in path} | {"."}
    assert [path for path in one.keys() | two.keys() if path not in leave and one.get(path) != two.get(path)] == []
    await bench.room.remove(made.id)
    again = await exported(bench, back)
    assert parts(again)["rootfs-diff.tar"] == files["rootfs-diff.tar"]
    assert len(bench.ours()) == 1


def plainly(tree: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Leave out which of its ways overlay has chosen to mark a directory."""
    return {path: tuple(each for number, each in enumerate(about) if number != 7) for path, about in tree.items()}


def _upper(bench: Bench, snapshot: str) -> Path:
    return Path(f"{bench.runtime.store.snapshots[snapshot].directory}/fs")


async def test_it_says_whose_configuration_it_gets(bench: Bench) -> None:
    container = bench.container()
    made = await bench.room.create(container)
    archive = await exported(bench, made)
    for wish in (ImportWish(), ImportWish(like=container, trust=True)):
        with pytest.raises(InvalidInput, match="like"):
            await bench.room.receive(pieces(archive), wish)
    with pytest.raises(NotFound):
        await bench.room.receive(pieces(archive), ImportWish(like="nobody"))
    other = bench.runtime.add_container(bench.pod, "other", "stoker.test/other:v1")
    with pytest.raises(CheckpointRefused, match="another image"):
        await bench.room.receive(pieces(archive), ImportWish(like=other))
    assert {path.name for path in bench.directory.iterdir() if not path.name.startswith(".")} == {made.id}


async def test_the_archive_decides_nothing_about_what_a_clone_may_do(bench: Bench) -> None:
    container = bench.container()
    made = await bench.room.create(container)
    files = parts(await exported(bench, made))
    spec = msgspec.json.decode(files[plans.SPEC])
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    spec["annotations"] = {"cdi.k8s.io/evil": "vendor.com/gpu=all", "org.criu.config": "/tmp/evil"}
    spec["hooks"] = {"prestart": [{"path": "/bin/evil"}]}
    files[plans.SPEC] = msgspec.json.encode(spec)
    back = await bench.room.receive(pieces(packed(files)), ImportWish(like=container))
    record = await bench.runtime.records.get(container)
    assert record is not None
    assert (bench.directory / back.id / "spec.json").read_bytes() == record.spec.value
    await bench.room.remove(back.id)


async def test_what_is_not_like_it_is_told(bench: Bench) -> None:
    container = bench.container()
    made = await bench.room.create(container)
    files = parts(await exported(bench, made))
    spec = msgspec.json.decode(files[plans.SPEC])
    spec["mounts"].append({"destination": "/data", "type": "bind", "source": "/"})
    files[plans.SPEC] = msgspec.json.encode(spec)
    with pytest.raises(CheckpointRefused, match="/data"):
        await bench.room.receive(pieces(packed(files)), ImportWish(like=container))
    with pytest.raises(ArchiveRefused, match="no plain container"):
        await bench.room.receive(pieces(packed(files)), ImportWish(trust=True))


def changed(name: str, body: bytes) -> Change:
    return lambda files: files.__setitem__(name, body)


def contents(**fields: Any) -> Change:
    def change(files: dict[str, bytes]) -> None:
        document = msgspec.json.decode(files[plans.CONTENTS])
        for path, value in fields.items():
            *steps, last = path.split("__")
            inner = document
            for step in steps:
                inner = inner[step]
            inner[last] = value
        files[plans.CONTENTS] = msgspec.json.encode(document)

    return change


OTHER = f"sha256:{'1' * 64}"
HOSTILE: dict[str, tuple[Change, str]] = {
    "a name that leads out": (changed("checkpoint/../../evil", b"x"), "no part of a checkpoint"),
    "an absolute name": (changed("/etc/cron.d/evil", b"x"), "no part of a checkpoint"),
    "a log": (changed("container.log", b"x"), "no part of a checkpoint"),
    "a file of ours": (changed("record.msgpack", b"x"), "no part of a checkpoint"),
    "a tree that leads out": (changed(plans.ROOT, tar(Member(b"../evil", FILE))), "leads out"),
    "an absolute tree": (changed(plans.ROOT, tar(Member(b"/evil", FILE))), "leads out"),
    "through a symlink": (
        changed(plans.ROOT, tar(Member(b"a", SYMLINK, link=b"/etc"), Member(b"a/evil", FILE))),
        "is none",
    ),
    "a hardlink to the node": (changed(plans.ROOT, tar(Member(b"a", LINK, link=b"/etc/shadow"))), "leads out"),
    "a hardlink to nothing": (
        changed(plans.ROOT, tar(Member(b"a", LINK, link=b"etc/shadow"))),
        "no file of the archive",
    ),
    "a device": (changed(plans.ROOT, tar(Member(b"a", b"4", device=(8, 0)))), "a device"),
    "a whiteout as a device": (changed(plans.ROOT, tar(Member(b"a", b"3", device=(0, 0)))), "a device"),
    "overlay's own marks": (
        changed(plans.ROOT, tar(Member(b"a", b"5", xattrs={"trusted.overlay.redirect": b"/etc"}))),
        "attribute",
    ),
    "the same twice": (changed(plans.ROOT, tar(Member(b"a", FILE), Member(b"a", FILE))), "twice"),
    "no archive": (changed(plans.ROOT, b"x" * 2048), "number of a header"),
    "cut off": (changed(plans.ROOT, tar(Member(b"a", FILE, size=5000), data=b"x" * 5000)[:2000]), "ends|more than"),
    "a shm with marks": (changed(plans.SHM, tar(Member(b".wh.a", FILE))), "mark of layers"),
    "an image of another name": (contents(manifest__source__image_digest=OTHER), "not on this node"),
    "another parent": (contents(manifest__root__parent=OTHER), "other layers"),
    "a snapshot of a checkpoint": (contents(manifest__root__parent="stoker-checkpoint-x"), "by digest"),
    "a name with escapes": (contents(manifest__source__pod_name="\x1b[31m"), "characters"),
    "an unknown format": (contents(format=7), "format"),
    "no json": (changed(plans.CONTENTS, b"{"), "cannot be read"),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_hostile_archives_are_refused_and_leave_nothing(bench: Bench, tmp_path: Path, what: str) -> None:
    change, why = HOSTILE[what]
    container = bench.runtime.add_container(bench.pod, "app", IMAGE)
    files = await exported_once(bench)
    change(files)
    before = here(bench, tmp_path)
    with pytest.raises((ArchiveRefused, NotFound), match=why):
        await bench.room.receive(pieces(packed(files, honest=what != "no json")), ImportWish(like=container))
    assert here(bench, tmp_path) == before


def here(bench: Bench, directory: Path) -> set[str]:
    return {*bench.left(), *map(str, directory.iterdir())}


async def test_what_was_announced_is_what_comes(bench: Bench) -> None:
    container = bench.runtime.add_container(bench.pod, "app", IMAGE)
    files = await exported_once(bench)
    image = next(name for name in files if name.startswith(plans.IMAGES))
    before = bench.left()
    for body, why in ((files[image] + b"x", "announced"), (b"x" * len(files[image]), "other content")):
        archive = packed({**files, image: body}, honest=False)
        with pytest.raises(ArchiveRefused, match=why):
            await bench.room.receive(pieces(archive), ImportWish(like=container))
    less = {name: body for name, body in files.items() if name != image}
    with pytest.raises(ArchiveRefused, match="did not come"):
        await bench.room.receive(pieces(packed(less, honest=False)), ImportWish(like=container))
    headless = packed({name: body for name, body in files.items() if name != plans.CONTENTS}, honest=False)
    with pytest.raises(ArchiveRefused, match="first entry"):
        await bench.room.receive(pieces(headless), ImportWish(like=container))
    assert bench.left() == before


async def test_bombs(bench: Bench) -> None:
    container = bench.runtime.add_container(bench.pod, "app", IMAGE)
    files = await exported_once(bench)
    before = bench.left()
    zeros = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    for archive in (zeros, zeros[: len(zeros) // 2], b"\x28\xb5\x2f\xfdnonsense"):
        with pytest.raises(ArchiveRefused):
            await bench.room.receive(pieces(archive), ImportWish(like=container))
    contents(pieces__checkpoint={"size": 1 << 62, "digest": OTHER})
    document = msgspec.json.decode(files[plans.CONTENTS])
    document["pieces"]["checkpoint/pages-9.img"] = {"size": 1 << 61, "digest": OTHER}
    files[plans.CONTENTS] = msgspec.json.encode(document)
    with pytest.raises(ArchiveRefused, match="allowed here"):
        await bench.room.receive(pieces(packed(files, honest=False)), ImportWish(like=container))
    assert bench.left() == before


@pytest.mark.parametrize("place", ["snapshots.Prepare", "snapshots.Commit", "snapshots.Stat"])
async def test_any_call_fails(bench: Bench, place: str) -> None:
    container = bench.container()
    archive = await exported(bench, await bench.room.create(container))
    before = bench.left()
    bench.runtime.fail(place, "no")
    with pytest.raises(RuntimeFailure):
        await bench.room.receive(pieces(archive), ImportWish(like=container))
    assert bench.left() == before


async def test_what_cannot_be_cleared_up_now_is_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to ask for it, and it hides no failure."""
    container = bench.container()
    archive = await exported(bench, await bench.room.create(container))
    before = bench.left()
    remove, failures = taking._remove_snapshot, [CheckpointError("cannot be removed")]

    async def remove_snapshot(runtime: NativeRuntime, name: str) -> None:
        if failures:
            raise failures.pop()
        await remove(runtime, name)

    life = asyncio.create_task(bench.room.run())
    await asyncio.wait_for(bench.room.cleared.wait(), 10)
    monkeypatch.setattr(taking, "_remove_snapshot", remove_snapshot)
    bench.runtime.fail("snapshots.Commit", "the disk is odd")
    with pytest.raises(RuntimeFailure, match="the disk is odd"):
        await bench.room.receive(pieces(archive), ImportWish(like=container))
    async with asyncio.timeout(10):
        while bench.left() != before:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    life.cancel()
    await ended(life)


async def test_who_goes_away_twice_leaves_nothing(bench: Bench) -> None:
    container = bench.container()
    archive = await exported(bench, await bench.room.create(container))
    before = bench.left()
    committing = bench.runtime.hold("snapshots.Commit", times=1)
    clearing = bench.runtime.hold("snapshots.Remove", times=1)
    task = asyncio.create_task(bench.room.receive(pieces(archive), ImportWish(like=container)))
    for hold in (committing, clearing):
        await hold.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
    clearing.release()
    assert isinstance(await ended(task), asyncio.CancelledError)
    assert bench.left() == before
    assert bench.room._taker is not None
    assert not bench.room._taker.under_way


async def test_the_caller_goes_away_and_so_does_the_stream(bench: Bench) -> None:
    container = bench.container()
    archive = await exported(bench, await bench.room.create(container))
    before = bench.left()
    reached = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield archive[: len(archive) - 200]
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(bench.room.receive(stuck(), ImportWish(like=container)))
    await asyncio.wait_for(reached.wait(), 20)
    task.cancel()
    assert isinstance(await ended(task), asyncio.CancelledError)
    assert bench.left() == before
    with pytest.raises(ArchiveRefused):
        await bench.room.receive(pieces(archive[:-200]), ImportWish(like=container))
    assert bench.left() == before


async def test_a_full_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    container = bench.container()
    archive = await exported(bench, await bench.room.create(container))
    before = bench.left()

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(CheckpointNoSpace):
            await bench.room.receive(pieces(archive), ImportWish(like=container))
    assert bench.left() == before


async def test_who_stops_reading_an_export_leaves_nothing(bench: Bench) -> None:
    made = await bench.room.create(bench.container())
    stream = bench.room.archive(made.id)
    assert await anext(stream)
    assert len(bench.ours()) == 2
    await stream.aclose()
    assert len(bench.ours()) == 1
