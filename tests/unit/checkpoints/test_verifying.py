"""What is out of reach is not damaged: people are told to make anew only what they have lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stokerd.checkpoints import verifying
from stokerd.checkpoints.errors import CheckpointDamaged
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.shelf import Shelf
from stokerd.errors import RuntimeFailure, RuntimeNotFound, RuntimeTimeout, RuntimeUnavailable
from tests.unit.checkpoints.bench import Bench


class Through:
    """The node as it is seen through a containerd, which may go."""

    def __init__(self, bench: Bench, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = tmp / "containerd"
        info = replace(bench.runtime.info, host_root=str(self.root))
        monkeypatch.setattr(bench.runtime, "_info", lambda: info)
        self.shelf = Shelf(str(bench.directory), lambda: str(self.root))
        self.came()

    def came(self) -> None:
        self.root.symlink_to("/")

    def went(self) -> None:
        self.root.unlink(missing_ok=True)

    def goes_before(self, work: Callable[..., Any], *, call: int = 1) -> Callable[..., Any]:
        """Return *work*, which finds nothing any more when it is called for the time that is said."""
        calls = 0

        def gone(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                self.went()
            return work(*arguments, **more)

        return gone


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def through(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Through:
    return Through(bench, tmp_path, monkeypatch)


@pytest.fixture
async def made(bench: Bench, through: Through, tmp_path: Path) -> Manifest:
    """A checkpoint with a /dev/shm."""
    shm = tmp_path / "shm"
    shm.mkdir()
    (shm / "PostgreSQL.1").write_bytes(b"buffers")
    container = bench.container()
    mounts = [{"destination": "/dev/shm", "type": "bind", "source": str(shm)}]
    bench.runtime.node.containers[container].spec["mounts"] = mounts
    found = await bench.room.create(container)
    assert found.shm_digest
    return found


@pytest.mark.parametrize(
    ("where", "name", "call"), [(Shelf, "verify", 1), (verifying, "tree_digest", 1), (verifying, "tree_digest", 2)]
)
async def test_what_goes_while_it_is_compared(
    bench: Bench,
    through: Through,
    made: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    call: int,
) -> None:
    """The files, /dev/shm, the root filesystem."""
    with monkeypatch.context() as patch:
        patch.setattr(where, name, through.goes_before(getattr(where, name), call=call))
        with pytest.raises(RuntimeUnavailable):
            await bench.room.verify(made.id)
    through.came()
    assert await bench.room.verify(made.id) == made


READ: dict[str, Callable[[Shelf, Manifest], object]] = {
    "verify": Shelf.verify,
    "glance": Shelf.glance,
    "golden": lambda shelf, manifest: shelf.golden(manifest.id),
    "manifest": lambda shelf, manifest: shelf.manifest(manifest.id),
}


@pytest.mark.parametrize("what", READ)
async def test_what_cannot_be_seen_is_not_damaged(through: Through, made: Manifest, what: str) -> None:
    before = READ[what](through.shelf, made)
    through.went()
    with pytest.raises(RuntimeUnavailable):
        READ[what](through.shelf, made)
    through.came()
    assert READ[what](through.shelf, made) == before


@pytest.mark.parametrize(("error", "damage"), [(RuntimeNotFound("no snapshot"), True), (RuntimeTimeout("busy"), False)])
async def test_what_containerd_says(bench: Bench, made: Manifest, error: RuntimeFailure, damage: bool) -> None:
    bench.runtime.fail("snapshots.View", error)
    with pytest.raises(CheckpointDamaged if damage else type(error)):
        await bench.room.verify(made.id)
    assert await bench.room.verify(made.id) == made


@pytest.mark.parametrize("what", ["images", "shm"])
async def test_a_directory_that_is_missing_is_damage(bench: Bench, made: Manifest, what: str) -> None:
    shutil.rmtree(bench.directory / made.id / what)
    with pytest.raises(CheckpointDamaged, match=what):
        await bench.room.verify(made.id)
