"""A node's uplink and a coordinator's link, both real, in one process: they lose and find each other."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from stoker.objects.cluster_nodes import Node
from stoker.objects.images import ImageStatus, WarmRequest
from stoker.objects.link import Wish
from stoker_coordinator.store.memory import MemoryStore
from stokerd.journal.database import Database
from stokerd.journal.uplink import UplinkJournal
from stokerd.settings import UplinkSettings
from stokerd.uplink.service import UplinkService
from stokerd.uplink.standing import Standing
from tests.unit.coordinator.nodes.bench import Bench, Ear, join, object_of, serving
from tests.unit.uplink.fakes import FakeNode

QUICK: dict[str, Any] = {"reconnect_initial": 0.05, "reconnect_max": 0.3, "inventory_interval": 0.1, "node": "n1"}


@asynccontextmanager
async def uplink(directory: Path, node: FakeNode, **settings: Any) -> AsyncIterator[UplinkService]:
    """Run stokerd's uplink on a journal of its own."""
    database = Database(directory / "node")
    await database.open()
    known = UplinkSettings(**{**QUICK, **settings})
    standing = Standing(known.coordinator)
    service = UplinkService(known, directory / "node" / "uplink", UplinkJournal(database), node.ports, standing)
    await service.load()
    run = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        await database.close()


async def eventually(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110 - there is nothing that would tell
            await asyncio.sleep(0.02)


def warm(uid: str, image: str, generation: int = 1) -> Wish:
    spec = msgspec.Raw(msgspec.msgpack.encode(WarmRequest(images=[image])))
    return Wish(uid=uid, generation=generation, kind="warm", name=image, spec=spec)


def ended(bench: Bench) -> list[tuple[str, int, str]]:
    return [
        (r.uid, r.generation, r.phase) for _, r in bench.ear.results if r.phase in {"Succeeded", "Failed", "Cancelled"}
    ]


async def test_what_a_node_can_do_is_told_again_when_it_has_changed(tmp_path: Path) -> None:
    """CRIU is asked for longer than it takes to connect, and containerd is replaced while stokerd runs on."""
    node = FakeNode()
    node.able = False

    def said(able: bool, version: str, ready: str = "True") -> Callable[[Node], bool]:
        def holds(shown: Node) -> bool:
            status = shown.status
            conditions = {each.type: each.status for each in status.conditions}
            found = [each.available for each in status.capabilities], status.runtime_version, conditions.get("Ready")
            return found == ([able], version, ready)

        return holds

    async with (
        serving(tmp_path / "c", heartbeat=0.1) as bench,
        uplink(tmp_path, node, coordinator=bench.nodes.ports.plain),
    ):
        await object_of(bench, "n1", said(False, "2.1.4"))
        node.able = True
        await object_of(bench, "n1", said(True, "2.1.4"))
        node.problem, node.able = "containerd is away", False  # who cannot be asked now is taken to be as it was
        await object_of(bench, "n1", said(True, "2.1.4", "False"))
        node.problem, node.able, node.version = "", True, "2.1.9"
        await object_of(bench, "n1", said(True, "2.1.9"))


async def test_a_wish_is_done_once_and_its_result_is_forgotten_when_it_is_kept(tmp_path: Path) -> None:
    node = FakeNode()
    ear = Ear()
    ear.wishes["n1"] = [warm("u1", "docker.io/library/a:1")]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        await eventually(lambda: node.images.by_id)
        bench.nodes.desired_changed(["n1"])
        await ear.until(lambda: ear.results and ear.results[-1][1].phase == "Pending")
        node.images.end("warm-1", "Succeeded", "Pulled")
        await ear.until(lambda: ended(bench))
        assert ended(bench) == [("u1", 1, "Succeeded")]
        ear.wishes["n1"] = [warm("u1", "docker.io/library/a:1", generation=2)]
        bench.nodes.desired_changed(["n1"])
        await eventually(lambda: len(node.images.requests) == 2)
        assert node.images.requests[0].name != node.images.requests[1].name


async def test_work_goes_on_without_the_coordinator_and_results_come_later(tmp_path: Path) -> None:
    node, ear, store = FakeNode(), Ear(), MemoryStore()
    ear.wishes["n1"] = [warm("u1", "a"), warm("u2", "b")]
    socket = f"unix:{tmp_path}/link.sock"
    async with uplink(tmp_path, node, coordinator=socket) as service:
        async with serving(tmp_path / "c", ear=ear, store=store, plain_listen=socket):
            await eventually(lambda: len(node.images.by_id) == 2)
        await eventually(lambda: not service.standing.link.connected)
        node.images.end("warm-1", "Succeeded")
        node.images.end("warm-2", "Failed", "NotFound")
        node.images.present = [ImageStatus(id="sha256:a")]
        async with serving(tmp_path / "c", ear=ear, store=store, plain_listen=socket) as bench:
            await ear.until(lambda: len(ended(bench)) == 2)
            assert sorted(ended(bench)) == [("u1", 1, "Succeeded"), ("u2", 1, "Failed")]
            await ear.until(lambda: any(getattr(content, "images", None) for _, content in ear.contents))
    assert len(node.images.requests) == 2


async def test_one_that_ends_is_not_told_to_be_connected(tmp_path: Path) -> None:
    """Whatever ends it: a cancellation is no failure of which anything is noted."""
    async with serving(tmp_path / "c") as bench:
        async with uplink(tmp_path, FakeNode(), coordinator=bench.nodes.ports.plain) as service:
            await eventually(lambda: service.standing.link.connected)
        assert not service.standing.link.connected


async def test_a_killed_stokerd_finds_what_it_had_begun(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [warm("u1", "a")]
    async with serving(tmp_path / "c", ear=ear) as bench:
        async with uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
            await eventually(lambda: node.images.by_id)
        node.images.end("warm-1", "Succeeded")
        async with uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
            await ear.until(lambda: ended(bench) == [("u1", 1, "Succeeded")])
        assert len(node.images.requests) == 1


async def test_what_is_wished_for_no_more_is_broken_off(tmp_path: Path) -> None:
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [warm("u1", "a"), warm("u2", "b")]
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        await eventually(lambda: len(node.images.by_id) == 2)
        ear.wishes["n1"] = [warm("u2", "b")]
        bench.nodes.desired_changed(["n1"])
        await eventually(lambda: {job.state for job in node.images.by_id.values()} == {"Cancelled", "Active"})
        await ear.until(lambda: ended(bench) == [("u1", 1, "Cancelled")])


async def test_results_that_nobody_could_keep_are_said_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("stokerd.uplink.stream._RESAY_SECONDS", 0.1)
    node, ear = FakeNode(), Ear()
    ear.wishes["n1"] = [warm("u1", "a")]
    ear.fails = True
    async with serving(tmp_path / "c", ear=ear) as bench, uplink(tmp_path, node, coordinator=bench.nodes.ports.plain):
        await eventually(lambda: node.images.by_id)
        node.images.end("warm-1", "Succeeded")
        await eventually(lambda: bench.count("stoker_link_messages_total", type="results") > 3)
        ear.fails = False
        await ear.until(lambda: ended(bench))


async def test_a_node_joins_by_token_speaks_by_its_certificate_and_renews_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("stoker_coordinator.nodes.streams._RENEW_PAUSE", 0.0)
    # It is renewed as soon as it is three seconds old, and holds for long enough however slow the machine is.
    monkeypatch.setattr("stokerd.uplink.service._RENEW_LOOK", 2.0)
    monkeypatch.setattr("stokerd.uplink.identity._RENEW_SHARE", 0.99)
    node = FakeNode()
    async with serving(tmp_path / "c", tls=True, certificate_lifetime=300.0) as bench:
        ports, ca, token_file = bench.nodes.ports, tmp_path / "ca.crt", tmp_path / "token"
        ca.write_bytes(bench.nodes.authority)
        token = await bench.nodes.create_token()
        token_file.write_text(f"{token}\n")
        tls = {"coordinator": ports.link, "join": ports.join, "ca": str(ca), "token_file": str(token_file)}
        identity = tmp_path / "node" / "uplink" / "identity.pem"
        async with uplink(tmp_path, node, **tls) as service:
            await eventually(lambda: service.standing.link.connected)
            assert identity.stat().st_mode & 0o777 == 0o600
            assert token not in identity.read_text()
            first = identity.read_bytes()
            await eventually(lambda: identity.read_bytes() != first)
        assert not (tmp_path / "node" / "uplink" / "pending.key").exists()
        # The token is used up; the certificate is what counts now.
        async with uplink(tmp_path, node, **tls) as service:
            await eventually(lambda: service.standing.link.connected)
        # Somebody else has found the token.
        csr = request_of(tmp_path / "thief.key")
        for name in ("n1", "n2"):
            answer = await join(ports.join, bench.nodes.authority, token, name, csr)
            assert answer.reason in {"TokenUsedUp", "TokenForAnotherNode"}
            assert not answer.chain


async def test_a_node_that_was_shut_out_comes_back_when_it_finds_a_token_for_its_name(tmp_path: Path) -> None:
    async with serving(tmp_path / "c", tls=True) as bench:
        ports, ca, token_file = bench.nodes.ports, tmp_path / "ca.crt", tmp_path / "token"
        ca.write_bytes(bench.nodes.authority)
        token_file.write_text(await bench.nodes.create_token())
        tls = {"coordinator": ports.link, "join": ports.join, "ca": str(ca), "token_file": str(token_file)}
        async with uplink(tmp_path, FakeNode(), **tls) as service:
            await eventually(lambda: service.standing.link.connected)
            await bench.nodes.revoke_node("n1")
            await eventually(lambda: not service.standing.link.connected)
            # The token that it joined with is used up, and its certificate holds no more.
            await eventually(lambda: bench.count("stoker_nodes_joined_total", result="TokenUsedUp") > 1)
            assert not service.standing.link.connected
            token_file.write_text(await bench.nodes.create_token(node="n1"))
            await eventually(lambda: service.standing.link.connected)


def request_of(key: Path) -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "stokerd.uplink.newkey", str(key)], check=True, capture_output=True, timeout=60
    ).stdout


def test_nothing_of_the_uplink_is_loaded_without_a_coordinator() -> None:
    script = "import stokerd.main, sys; print(sorted(n for n in sys.modules if n.startswith('stokerd.uplink')))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['stokerd.uplink', 'stokerd.uplink.room', 'stokerd.uplink.standing']"
