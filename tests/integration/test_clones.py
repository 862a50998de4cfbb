"""Clones of real checkpoints: they go on where it was taken, with addresses of their own, and leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from stokerd.checkpoints.clone_types import Clone, Mode
from stokerd.checkpoints.cni import NetworkError
from stokerd.checkpoints.criu import Version, parse_version
from stokerd.checkpoints.errors import CheckpointDamaged, CheckpointRefused, HookFailed
from stokerd.checkpoints.manifest import Manifest
from stokerd.errors import Conflict
from tests.integration.checkpoint_scene import COUNT, LARGE, Scene, counted, of_clone, read, scene
from tests.rig.node import Node
from tests.rig.processes import stopped

pytestmark = pytest.mark.criu

SERVE = "mkdir /www; echo served >/www/index.html; httpd -p 8080 -h /www; " + COUNT


async def test_they_go_on_from_the_same_number_with_addresses_of_their_own(node: Node) -> None:
    async with scene(node) as here:
        kept = await here.checkpoints.create(here.container)
        start = await counted(here, kept.root.snapshot)
        clones = [await here.checkpoints.clone(kept.id, hostname="other") for _ in range(3)]
        assert {clone.id for clone in clones} == {clone.id for clone in await here.checkpoints.clones()}
        assert len({address for clone in clones for address in clone.addresses}) == 3
        for clone in clones:
            there = of_clone(here, clone.id)
            assert start <= await there.goes_on() < start + 2000
            assert await there.state() == "running"
            assert clone.addresses[0] in await asyncio.to_thread(read, f"/proc/{clone.pid}/net/fib_trie")
        with pytest.raises(Conflict):
            await here.checkpoints.remove(kept.id)
        for clone in clones:
            await here.checkpoints.remove_clone(clone.id)
        assert await here.checkpoints.clones() == ()
        await here.goes_on()


async def test_twenty_at_once(node: Node) -> None:
    async with scene(node) as here:
        kept = await here.checkpoints.create(here.container)
        modes: tuple[Mode, ...] = ("eager", "lazy") * 10
        clones = await asyncio.gather(*(here.checkpoints.clone(kept.id, mode=mode) for mode in modes))
        assert len({clone.addresses for clone in clones}) == 20
        await asyncio.gather(*(of_clone(here, clone.id).goes_on() for clone in clones))
        await asyncio.gather(*(here.checkpoints.remove_clone(clone.id) for clone in clones))


async def test_servers_answer_on_their_own_addresses(node: Node) -> None:
    async with scene(node, SERVE) as here:
        if parse_version(here.runtime.info.criu_version) < Version(4, 2):
            return  # it knows no sockets of this kernel
        kept = await here.checkpoints.create(here.container)
        clones = await asyncio.gather(*(here.checkpoints.clone(kept.id) for _ in range(2)))
        for clone in clones:
            ask = f"exec 3<>/dev/tcp/{clone.addresses[0]}/8080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
            assert "served" in (await asyncio.to_thread(node.run, "bash", "-c", ask)).stdout
        for clone in clones:
            await here.checkpoints.remove_clone(clone.id)


async def test_one_that_cannot_be_restored_leaves_nothing(node: Node) -> None:
    async with scene(node) as here:
        kept = await here.checkpoints.create(here.container)
        before = await here.left()
        image = next(here.directory.glob(f"{kept.id}/images/core-*.img"))
        body = image.read_bytes()
        for damaged in (body[: len(body) // 2], body[:-1] + bytes([body[-1] ^ 1])):
            image.write_bytes(damaged)
            with pytest.raises(CheckpointDamaged, match=image.name):
                await here.checkpoints.clone(kept.id)
        image.write_bytes(body)
        with pytest.raises(CheckpointRefused, match="CRIU cannot restore: a file is not the one"):
            await here.checkpoints.clone(kept.id, files={"/bin/busybox": b"another one"})
        assert await here.left() == before
        again = await here.checkpoints.clone(kept.id)
        await of_clone(here, again.id).goes_on()
        await here.checkpoints.remove_clone(again.id)


async def test_what_differs_from_clone_to_clone(node: Node) -> None:
    async with scene(node, f"ln -s /../../../../etc /evil; ln -s /etc/passwd /etc/link; {COUNT}") as here:
        kept = await here.checkpoints.create(here.container)
        before = await here.left()
        files = {"/evil/deep/given": b"file", "/etc/link": b"not a link any more", "/etc/hostname": b"named\n"}
        hook = ["sh", "-c", '. /run/stoker/env; test "$WHO" = "$(echo "it\'s me")" && echo $WHO >/hooked']
        clone = await here.checkpoints.clone(kept.id, env={"WHO": "it's me"}, files=files, hook=hook)
        await of_clone(here, clone.id).goes_on()
        root = f"/proc/{clone.pid}/root"
        assert await asyncio.to_thread(read, f"{root}/hooked") == "it's me\n"
        assert await asyncio.to_thread(read, f"{root}/etc/deep/given") == "file"
        assert await asyncio.to_thread(read, f"{root}/etc/link") == "not a link any more"
        assert "root:" in await asyncio.to_thread(read, f"{root}/etc/passwd")
        assert await asyncio.to_thread(read, f"{root}/etc/hostname") == "named\n"
        assert node.run("stat", "-c", "%a %u", f"{root}/run/stoker/env").stdout == "600 0\n"
        assert node.run("ls", "/etc/deep", check=False).returncode != 0
        assert "it's me" not in await asyncio.to_thread(_all_texts, here.directory / ".clones" / clone.id)
        await here.checkpoints.remove_clone(clone.id)
        for hook in (["false"], ["/no/such/program"]):
            with pytest.raises(HookFailed):
                await here.checkpoints.clone(kept.id, hook=hook)
        assert await here.left() == before
        await here.goes_on()


def _all_texts(directory: Path) -> str:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


async def test_a_network_that_fails_leaves_nothing(node: Node) -> None:
    async with scene(node) as here:
        kept = await here.checkpoints.create(here.container)
        before = await here.left()
        (file,) = node.cni_dir.iterdir()
        text = file.read_text()
        try:
            file.write_text(text.replace('"bridge"', '"no-such-plugin"'))
            with pytest.raises(NetworkError, match="no-such-plugin"):
                await here.checkpoints.clone(kept.id)
        finally:
            file.write_text(text)
        assert await here.left() == before


async def test_stokerd_is_killed_while_it_clones(node: Node) -> None:
    async with scene(node) as here:
        kept = await here.checkpoints.create(here.container)
        before = await here.left()
        for delay in (0.0, 0.03, 0.08, 0.15):
            await _kill_while_cloning(here, kept, delay)
            done = await here.checkpoints.converge()
            for clone in await here.checkpoints.clones():
                await of_clone(here, clone.id).goes_on()
                await here.checkpoints.remove_clone(clone.id)
                assert done.clones == []
            assert await here.left() == before


async def _kill_while_cloning(here: Scene, kept: Manifest, delay: float) -> None:
    argv = ["-m", "tests.integration.checkpointer", str(here.node.endpoint), str(here.directory), kept.id, "clone"]
    child = await asyncio.create_subprocess_exec(sys.executable, *argv)
    try:
        async with asyncio.timeout(20):
            while not _begun(here.directory):  # noqa: ASYNC110 - stokerd tells nobody before it is done
                await asyncio.sleep(0.001)
        await asyncio.sleep(delay)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def _begun(directory: Path) -> bool:
    return any((directory / ".clones").iterdir())


async def test_memory_comes_after_the_start(node: Node) -> None:
    """The clone runs before its memory is in; the helper ends by itself, and what it served is whole."""
    async with scene(node, LARGE) as here:
        kept = await here.checkpoints.create(here.container)
        life = asyncio.create_task(here.checkpoints.run())
        eager = await here.checkpoints.clone(kept.id, mode="eager")
        lazy, _ = await _halfway(here, kept, mode="auto")
        assert (eager.memory, lazy.memory) == ("eager", "loading")
        await of_clone(here, eager.id).goes_on()
        with pytest.raises(Conflict, match="memory"):
            await here.checkpoints.create(lazy.id)
        os.killpg(lazy.helper, signal.SIGCONT)
        await _memory(here, lazy.id, "loaded")
        await of_clone(here, lazy.id).goes_on()
        second = await here.checkpoints.create(lazy.id)
        again = await here.checkpoints.clone(second.id)
        await of_clone(here, again.id).goes_on()
        await here.checkpoints.remove_clone(again.id)
        await here.checkpoints.remove(second.id)
        for clone in (eager, lazy):
            await here.checkpoints.remove_clone(clone.id)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def test_a_clone_that_lost_its_memory_is_killed_and_says_why(node: Node) -> None:
    async with scene(node, LARGE) as here:
        kept = await here.checkpoints.create(here.container)
        first, criu = await _halfway(here, kept)
        os.kill(criu, signal.SIGKILL)
        os.killpg(first.helper, signal.SIGCONT)
        await _stopped(of_clone(here, first.id))  # no stokerd watches over it
        second, _ = await _halfway(here, kept)
        os.killpg(second.helper, signal.SIGKILL)
        life = asyncio.create_task(here.checkpoints.run())  # one that is started only now finds out
        for clone in (first, second):
            lost = await _memory(here, clone.id, "lost")
            assert lost.why
            await _stopped(of_clone(here, clone.id))
            await here.checkpoints.remove_clone(clone.id)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await here.goes_on()


async def _halfway(here: Scene, kept: Manifest, mode: Mode = "lazy") -> tuple[Clone, int]:
    """Make a clone whose memory is not in, and whose helper stands still; return the helper's CRIU with it.

    On a busy machine the memory may be in before; then once more.
    """
    for _ in range(5):
        clone = await here.checkpoints.clone(kept.id, mode=mode)
        assert clone.helper
        criu = await asyncio.to_thread(_held_up, clone.helper)
        if criu:
            return clone, criu
        await here.checkpoints.remove_clone(clone.id)
    raise AssertionError("the memory was always in before its helper could be stopped")


def _held_up(helper: int) -> int:
    """Stop a helper; return its CRIU, 0 when that has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(helper, signal.SIGSTOP)
        for child in map(int, read(f"/proc/{helper}/task/{helper}/children").split()):
            if read(f"/proc/{child}/comm").strip() == "criu" and stopped(child):
                return child
        os.killpg(helper, signal.SIGCONT)
    return 0


async def _stopped(there: Scene) -> None:
    async with asyncio.timeout(10):
        while await there.state() != "stopped":  # noqa: ASYNC110 - containerd is asked, it does not tell
            await asyncio.sleep(0.01)


async def _memory(here: Scene, clone: str, wanted: str) -> Clone:
    """Wait until the memory of a clone is *wanted*."""
    async with asyncio.timeout(30):
        while True:
            found = {each.id: each for each in await here.checkpoints.clones()}[clone]
            if found.memory == wanted:
                return found
            await asyncio.sleep(0.02)
