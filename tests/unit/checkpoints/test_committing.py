"""Images made of containers on a node in memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard
from msgspec.structs import replace

from stokerd.checkpoints import committing, freezing
from stokerd.checkpoints.committing import CommitWish
from stokerd.checkpoints.errors import CheckpointNoSpace, TreeUnsupported
from stokerd.checkpoints.imaging import parse_change
from stokerd.checkpoints.layers import Packed, pack_layer
from stokerd.checkpoints.model import OWNER_LABEL
from stokerd.checkpoints.pressing import Produce, pressed
from stokerd.errors import NotFound, RuntimeNoSpace, StokerError
from tests.unit.checkpoints.bench import Bench, ended
from tests.unit.checkpoints.trees import build_upper

NAME = "stoker.test/made:v1"
PLACES = ["snapshots.Prepare", "tasks.Pause", "tasks.Resume", "content.Write", "snapshots.Commit", "images.Create"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(freezing, "_THAW_PAUSE", 0.01)
    return Bench(tmp_path)


async def test_the_image_is_what_the_container_was(bench: Bench) -> None:
    container = bench.container()
    wish = CommitWish(NAME, changes=(parse_change("ENV NEW=1"),), author="me", message="why")
    made = await bench.room.commit(container, wish)
    assert bench.runs(container)
    assert made.skipped == ("socket",)
    bench.runtime.collect()
    image = await bench.runtime.cri.status(NAME)
    assert image is not None
    assert image.id == made.id
    manifest = json.loads(await bench.runtime.content.read(made.target.digest))
    base = json.loads(await bench.runtime.content.read(await _target(bench, "stoker.test/app:v1")))
    assert [each["digest"] for each in manifest["layers"][:-1]] == [each["digest"] for each in base["layers"]]
    config = json.loads(await bench.runtime.content.read(made.id))
    assert "NEW=1" in config["config"]["Env"]
    body = gzip.decompress(await bench.runtime.content.read(made.layer.digest))
    out = io.BytesIO()
    packed = pack_layer(str(bench.upper(container)), out.write)
    assert body == out.getvalue()
    assert config["rootfs"]["diff_ids"][-1] == packed.diff_id
    info = await bench.runtime.content.info(made.layer.digest)
    assert info is not None
    assert info.labels["containerd.io/uncompressed"] == packed.diff_id
    assert await bench.runtime.leases.list() == ()
    again = bench.container("again")
    assert bench.runtime.store.snapshots[again].info.parent


def layer_of(upper: Path) -> Produce[Packed]:
    return lambda write, stop: pack_layer(str(upper), write, stop)


def plain(body: bytes) -> bytes:
    """Return what zstd frames, one after the other, hold."""
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        return reader.read()


def packed_as_is(upper: Path) -> bytes:
    out = io.BytesIO()
    pack_layer(str(upper), out.write)
    return out.getvalue()


async def test_zstd_in_frames(bench: Bench) -> None:
    container = bench.container()
    (bench.upper(container) / "large").write_bytes(b"0123456789abcdef" * (1 << 20))
    made = await bench.room.commit(container, CommitWish(NAME, compression="zstd", level=3))
    assert made.layer.media_type.endswith("+zstd")
    body = await bench.runtime.content.read(made.layer.digest)
    assert plain(body) == packed_as_is(bench.upper(container))
    assert body.count(zstandard.FRAME_HEADER) > 1


async def test_squashed_it_is_one_layer_that_stands_on_nothing(bench: Bench) -> None:
    container = bench.container()
    bench.base(container)
    made = await bench.room.commit(container, CommitWish(NAME, squash=True))
    manifest = json.loads(await bench.runtime.content.read(made.target.digest))
    config = json.loads(await bench.runtime.content.read(made.id))
    assert [each["digest"] for each in manifest["layers"]] == [made.layer.digest]
    (diff_id,) = config["rootfs"]["diff_ids"]
    assert bench.runtime.store.snapshots[diff_id].info.parent == ""
    assert len(config["history"]) == 1
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(await bench.runtime.content.read(made.layer.digest)))) as tar:
        assert not [name for name in tar.getnames() if ".wh." in name]
        assert "of-the-base" in tar.getnames()
    image = await bench.runtime.cri.status(NAME)
    assert image is not None
    assert image.id == made.id
    assert await bench.runtime.leases.list() == ()


async def test_of_a_clone_it_has_what_the_checkpoint_has(bench: Bench) -> None:
    """Its snapshot stands on the image's, so that the checkpoint can be removed."""
    golden = bench.container()
    kept = await bench.room.create(golden)
    clone = bench.container("clone")
    root = bench.runtime.store.snapshots[clone]
    root.info = replace(root.info, parent=kept.root.snapshot)
    shutil.rmtree(bench.upper(clone))
    bench.upper(clone).mkdir()
    (bench.upper(clone) / "of-the-clone").write_text("new")
    made = await bench.room.commit(clone, CommitWish(NAME))
    body = gzip.decompress(await bench.runtime.content.read(made.layer.digest))
    out = io.BytesIO()
    packed = pack_layer(str(bench.upper(clone)), out.write, lowers=[str(bench.upper(golden))])
    assert body == out.getvalue()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert {"of-the-clone", "etc/config"} <= set(tar.getnames())
    config = json.loads(await bench.runtime.content.read(made.id))
    assert config["rootfs"]["diff_ids"][-1] == packed.diff_id
    image = await bench.runtime.cri.status(NAME)
    assert image is not None
    assert image.id == made.id
    await bench.runtime.snapshots.remove(clone)
    await bench.room.remove(kept.id)
    assert bench.left() == []


async def test_what_only_overlay_understands_is_compared_by_containerd(bench: Bench) -> None:
    container = bench.container()
    upper = bench.upper(container)
    shutil.rmtree(upper)
    (upper / "renamed").mkdir(parents=True)
    (upper / "renamed" / "file").write_text("x")
    os.setxattr(upper / "renamed", "trusted.overlay.redirect", b"/old")
    made = await bench.room.commit(container, CommitWish(NAME, compression="zstd"))
    assert made.walked
    assert bench.runs(container)
    body = plain(await bench.runtime.content.read(made.layer.digest))
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert "renamed/file" in tar.getnames()
    config = json.loads(await bench.runtime.content.read(made.id))
    assert config["rootfs"]["diff_ids"][-1] == f"sha256:{hashlib.sha256(body).hexdigest()}"
    bench.runtime.collect()
    image = await bench.runtime.cri.status(NAME)
    assert image is not None
    assert await bench.runtime.leases.list() == ()
    assert bench.runtime.calls["diff.Diff"] == 1


async def test_the_manifest_says_where_its_base_is(bench: Bench) -> None:
    made = await bench.room.commit(bench.container(), CommitWish(NAME))
    manifest = json.loads(await bench.runtime.content.read(made.target.digest))
    assert manifest["annotations"] == {
        "org.opencontainers.image.base.name": "stoker.test/app:v1",
        "org.opencontainers.image.base.digest": await _target(bench, "stoker.test/app:v1"),
    }


async def _target(bench: Bench, name: str) -> str:
    record = await bench.runtime.images.get(name)
    assert record is not None
    return record.target.digest


async def test_the_same_twice_is_one(bench: Bench) -> None:
    container = bench.container()
    first = await bench.room.commit(container, CommitWish(NAME))
    second = await bench.room.commit(container, CommitWish("stoker.test/made:v2"))
    assert first.layer == second.layer
    assert {NAME, "stoker.test/made:v2"} <= set(bench.runtime.store.records)


@pytest.mark.parametrize("place", PLACES)
async def test_any_call_fails(bench: Bench, place: str) -> None:
    container = bench.container()
    before = {*bench.runtime.store.blobs, *bench.runtime.store.snapshots, *bench.runtime.store.records}
    bench.runtime.fail(place, "no")
    outcome = await ended(asyncio.create_task(bench.room.commit(container, CommitWish(NAME))))
    assert bench.runs(container)
    if place == "tasks.Resume":
        assert outcome is None
        return
    assert isinstance(outcome, StokerError)
    bench.runtime.collect()
    assert {*bench.runtime.store.blobs, *bench.runtime.store.snapshots, *bench.runtime.store.records} == before
    assert await bench.runtime.leases.list() == ()


@pytest.mark.parametrize("where", ["while files are copied", "while the layer is written", "when it is unpacked"])
async def test_a_full_disk_costs_the_image_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/fs/file")

    container = bench.container()
    before = {*bench.runtime.store.blobs, *bench.runtime.store.snapshots, *bench.runtime.store.records}
    with monkeypatch.context() as broken:
        if where == "while files are copied":
            broken.setattr(committing, "copy_tree", full)
        else:
            call = "content.Write" if where == "while the layer is written" else "snapshots.Commit"
            bench.runtime.fail(call, RuntimeNoSpace("no space left on device"))
        outcome = await ended(asyncio.create_task(bench.room.commit(container, CommitWish(NAME))))
    assert isinstance(outcome, CheckpointNoSpace | RuntimeNoSpace)
    assert bench.runs(container)
    bench.runtime.collect()
    assert {*bench.runtime.store.blobs, *bench.runtime.store.snapshots, *bench.runtime.store.records} == before
    assert await bench.runtime.leases.list() == ()
    assert (await bench.room.commit(container, CommitWish(NAME))).name == NAME


@pytest.mark.parametrize("place", PLACES)
async def test_the_caller_goes_away(bench: Bench, place: str) -> None:
    container = bench.container()
    hold = bench.runtime.hold(place, times=1)
    task = asyncio.create_task(bench.room.commit(container, CommitWish(NAME)))
    await hold.reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    hold.release()
    assert isinstance(await ended(task), asyncio.CancelledError)
    assert bench.runs(container)
    assert await bench.runtime.leases.list() == ()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("press")]


async def test_stokerd_dies_while_the_container_stands(bench: Bench) -> None:
    container = bench.container()
    hold = bench.runtime.hold("tasks.Pause:done", times=1)
    dead = asyncio.create_task(bench.room.commit(container, CommitWish(NAME)))
    await hold.reached.wait()
    assert not bench.runs(container)
    assert (await bench.room.converge()).thawed == []  # it is at work itself
    assert (await bench.new_room().converge()).thawed == [container]
    assert bench.runs(container)
    dead.cancel()
    hold.release()
    await ended(dead)


async def test_what_no_layer_can_say(bench: Bench) -> None:
    container = bench.container()
    (bench.upper(container) / ".wh.mine").touch()
    with pytest.raises(TreeUnsupported, match=r"\.wh\.mine"):
        await bench.room.commit(container, CommitWish(NAME))
    assert bench.runs(container)
    with pytest.raises(NotFound):
        await bench.room.commit("none", CommitWish(NAME))


class TestPressing:
    async def test_many_blocks_are_one_archive(self, tmp_path: Path) -> None:
        build_upper(tmp_path)
        packed: list[Packed] = []
        body = b"".join([chunk async for chunk in pressed(layer_of(tmp_path), 1, packed)])
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(body))) as archive:
            assert "sparse" in archive.getnames()
        assert packed[0].size > 32 << 20

    async def test_nobody_reads_to_the_end(self, tmp_path: Path) -> None:
        build_upper(tmp_path)
        chunks = pressed(layer_of(tmp_path), 1, [])
        async with contextlib.aclosing(chunks) as reading:
            async for _ in _one(reading):
                break
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("press")]


async def _one(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk
        return


async def test_what_an_earlier_life_held_is_given_back(bench: Bench) -> None:
    container = bench.container()
    leases = bench.runtime.leases
    ours = {OWNER_LABEL: "stokerd-1"}
    await leases.create("stoker-commit-of-the-dead", ours)
    await leases.create("stoker-commit-of-another", {OWNER_LABEL: "stokerd-2"})
    await leases.create("stoker-pull-of-ours", ours)
    hold = bench.runtime.hold("images.Create", times=1)
    task = asyncio.create_task(bench.room.commit(container, CommitWish(NAME)))
    await hold.reached.wait()
    assert (await bench.room.converge()).left == []
    left = {lease.id for lease in await leases.list()}
    assert len(left) == 3
    assert "stoker-commit-of-the-dead" not in left
    hold.release()
    assert await ended(task) is None
    assert {lease.id for lease in await leases.list()} == {"stoker-commit-of-another", "stoker-pull-of-ours"}
