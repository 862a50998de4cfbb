"""Real checkpoints that leave the node and come back: as an archive, and as an artifact of a registry."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from stoker.objects.images import InlineAuth
from stokerd.checkpoints.importing import ImportWish
from stokerd.checkpoints.shipping import Shipper
from stokerd.registry.client import RegistryClient
from stokerd.registry.hosts import load_endpoints
from stokerd.registry.keyring import Keyring
from stokerd.registry.push_types import Policy
from tests.conformance.subject import eventually
from tests.integration.checkpoint_scene import COUNT, Scene, apart, counted, of_clone, scene
from tests.integration.conftest import MakeStokerd
from tests.rig.faultproxy import FaultProxy
from tests.rig.faults import Reset, Status
from tests.rig.node import Node
from tests.rig.pods import BareCri

pytestmark = pytest.mark.criu

WORK = "mkdir /var/new; rm -r /usr; mkdir /usr; ln -s /etc/passwd /link; echo kept >/var/new/file; "
FILL = "x=$(head -c 30000000 /dev/urandom | base64); "


class Warm:
    """Pulls as CRI does."""

    def __init__(self, here: Scene) -> None:
        self._here = here

    async def warm(self, image: str, auths: Sequence[InlineAuth]) -> None:
        await self._here.runtime.cri.pull(image)


async def pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, 1 << 20):
            yield data


async def lives(here: Scene, checkpoint: str, start: int) -> None:
    """Bring it back, and see it go on."""
    clone = await here.checkpoints.clone(checkpoint)
    there = of_clone(here, clone.id)
    assert start <= await there.goes_on() < start + 5000
    root = f"/proc/{clone.pid}/root"
    said = await asyncio.to_thread(
        here.node.run, "sh", "-c", f"cat {root}/var/new/file; ls {root}/usr; readlink {root}/link"
    )
    assert said.stdout.split() == ["kept", "/etc/passwd"]
    await here.checkpoints.remove_clone(clone.id)


async def test_as_a_file_with_a_container_of_this_node_and_as_one_that_is_trusted(node: Node, tmp_path: Path) -> None:
    async with scene(node, WORK + COUNT) as here:
        kept = await here.checkpoints.create(here.container)
        start = await counted(here, kept.root.snapshot)
        file = tmp_path / "checkpoint.tar.zst"
        with file.open("wb") as out:
            async for piece in here.checkpoints.archive(kept.id):
                out.write(piece)
        await here.checkpoints.remove(kept.id)
        for wish in (ImportWish(like=here.container, name="like"), ImportWish(trust=True, name="trusted")):
            back = await here.checkpoints.receive(pieces(file), wish)
            assert await counted(here, back.root.snapshot) == start
            await here.checkpoints.verify(back.id)
            await lives(here, back.id, start)


async def test_through_a_registry_that_breaks_off(node: Node, proxy: FaultProxy) -> None:
    async with scene(node, WORK + FILL + COUNT) as here, RegistryClient(hosts=load_endpoints) as client:
        policy = Policy(chunk=4 << 20, attempts=4, pause=0.0)
        shipper = Shipper(here.runtime, client, Keyring([]), Warm(here), here.checkpoints.holder, policy)
        kept = await here.checkpoints.create(here.container)
        start = await counted(here, kept.root.snapshot)
        name = f"{proxy.address}/checkpoints/counting:v1"
        proxy.rule(Status(502), path="/blobs/uploads/", method="PATCH", nth=2)
        done = await shipper.push(await here.checkpoints.exporter(), kept, name)
        assert done.sent > 20_000_000
        again = await shipper.push(await here.checkpoints.exporter(), kept, name)
        assert (again.transferred, again.existing) == (0, done.sent + done.existing)
        await here.checkpoints.remove(kept.id)
        for nth in (3, 6):
            proxy.rule(Reset(after=200_000), path="/blobs/sha256:", method="GET", nth=nth)
        back = await shipper.pull(await here.checkpoints.importer(), name, ImportWish(trust=True))
        await here.checkpoints.verify(back.id)
        await lives(here, back.id, start)
        assert await here.leases() == []


async def test_killed_in_the_middle(node: Node, tmp_path: Path) -> None:
    async with scene(node, FILL + "head -c 60000000 /dev/urandom >/large; " + COUNT) as here:
        kept = await here.checkpoints.create(here.container)
        archive = b"".join([piece async for piece in here.checkpoints.archive(kept.id)])
        await here.checkpoints.remove(kept.id)
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        child = await _child(here, str(fifo), "import")
        writer = await asyncio.to_thread(fifo.open, "wb", buffering=0)
        with writer:
            await asyncio.to_thread(writer.write, archive[: len(archive) * 2 // 3])
            await eventually("something of it is there", here.left)
            await _kill(child)
        assert await here.left() != []
        done = await here.checkpoints.converge()
        assert len(done.removed) == 1
        assert await here.left() == []
        child = await _child(here, here.container, "commit")

        async def under_way() -> list[str]:
            return [lease.id for lease in await here.runtime.leases.list() if lease.id.startswith("stoker-commit-")]

        await eventually("the commit is under way", under_way)
        await _kill(child)
        await here.checkpoints.converge()
        assert await under_way() == []
        assert await here.runtime.content.ingests() == ()
        assert [
            each.name for each in await here.runtime.snapshots.list() if each.name.startswith("stoker-commit-")
        ] == []
        await here.goes_on()


async def _child(here: Scene, *words: str) -> asyncio.subprocess.Process:
    scene_ = (str(here.node.endpoint), str(here.directory))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.checkpointer",
        *scene_,
        *words,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def _kill(child: asyncio.subprocess.Process) -> None:
    child.kill()
    await child.wait()


async def test_by_the_command_line(
    make_stokerd: MakeStokerd, clean_node: Node, proxy: FaultProxy, tmp_path: Path
) -> None:
    """From a container to a file, a registry and an image in it, and back; what fails says why."""
    node = clean_node
    stokerd = make_stokerd(node, checkpoints={"directory": str(node.artifacts_dir / "cli-archives")})

    async def cli(*words: str, code: int = 0) -> str:
        done = await asyncio.to_thread(stokerd.cli, *words)
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}\n{stokerd.log()[-2000:]}"
        return done.stdout + done.stderr

    async with BareCri(node) as bare:
        pod = await bare.run_pod("archived")
        await bare.run(pod, "app", command=["sh", "-c", COUNT], linux=apart())
        name, file = f"{pod.config.metadata.namespace}/{pod.name}/app", tmp_path / "golden.tar.zst"
        await cli("checkpoint", "create", name, "--name", "golden")
        assert "golden.tar.zst" in await cli("checkpoint", "export", "golden", "-o", str(file))
        assert "'again'" in await cli("checkpoint", "import", str(file), "--like", name, "--name", "again")
        reference = f"{proxy.address}/cli/golden:v1"
        assert "sent" in await cli("checkpoint", "push", "golden", reference)
        assert "there already" in await cli("checkpoint", "push", "golden", reference)
        assert "'pulled'" in await cli("checkpoint", "pull", reference, "--trust", "--name", "pulled")
        for checkpoint in ("again", "pulled"):
            assert "all is as it was written" in await cli("checkpoint", "verify", checkpoint)
            await cli("clone", checkpoint)
        await cli("clone", "rm", "--all")
        file.write_bytes(file.read_bytes()[:-100])
        assert "stoker:" in await cli("checkpoint", "import", str(file), "--trust", code=6)
        image = f"{proxy.address}/cli/app:v1"
        assert "sent" in await cli("commit", name, image, "--squash", "--compression", "zstd", "--push")
        proxy.rule(Status(403), path="/cli/denied/", method="POST")
        denied = await cli("image", "push", image, "--to", f"{proxy.address}/cli/denied:v1", code=6)
        assert "ask for permission to push" in denied
        assert {"again", "pulled"} < set((await cli("checkpoint", "ls")).split())
        for checkpoint in ("golden", "again", "pulled"):
            await cli("checkpoint", "rm", checkpoint)
        await bare.remove_pod(pod)
