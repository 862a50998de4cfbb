"""Who gets a certificate, and which certificates open a stream."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from stoker.objects.link import Hello, JoinAnswer, Refused, Welcome
from stoker_coordinator.errors import ConfigError, Invalid, NotFound
from stoker_coordinator.nodes import tokens
from stoker_coordinator.nodes.authority import open_authority
from stoker_coordinator.nodes.ledger import Ledger
from stoker_coordinator.nodes.names import Identity, identity_of, uri_of
from stoker_coordinator.nodes.service import Nodes
from stoker_coordinator.nodes.settings import LinkSettings
from tests.unit.coordinator.nodes.bench import Bench, FakeNode, join, serving


class Machine:
    """Something that has a key."""

    def __init__(self, directory: Path, name: str = "key") -> None:
        self.path = directory / f"{name}.pem"
        self.csr = subprocess.run(
            [sys.executable, "-m", "stokerd.uplink.newkey", str(self.path)], check=True, capture_output=True, timeout=60
        ).stdout
        self.chain = b""

    async def join(self, bench: Bench, token: str, node: str) -> JoinAnswer:
        answer = await join(bench.nodes.ports.join, bench.nodes.authority, token, node, self.csr)
        self.chain = answer.chain or self.chain
        return answer

    def channel(self, bench: Bench, *, address: str = "", chain: bytes | None = None) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(bench.nodes.authority, self.path.read_bytes(), chain or self.chain)
        return grpc.aio.secure_channel(address or bench.nodes.ports.link, credentials, options=FakeNode.OPTIONS)

    async def connect(self, bench: Bench, node: str, *, chain: bytes | None = None) -> Any:
        """Return the first answer to a greeting as *node*."""
        async with self.channel(bench, chain=chain) as channel:
            return (await FakeNode(channel).greet(node)).first


async def test_a_node_speaks_for_itself_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with serving(tmp_path / "c", tls=True) as bench:
        answer = await machine.join(bench, await bench.nodes.create_token(), "n1")
        certificate = x509.load_pem_x509_certificate(answer.chain)
        assert certificate.not_valid_after_utc.timestamp() == pytest.approx(answer.not_after, abs=2)
        assert isinstance(await machine.connect(bench, "n1"), Welcome)
        refused = await machine.connect(bench, "n2")
        assert isinstance(refused, Refused)
        assert refused.reason == "WrongName"
        # The address for those without a certificate is none for streams.
        async with machine.channel(bench, address=bench.nodes.ports.join) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="Method not found"):
                await FakeNode(channel).hear()


@pytest.mark.parametrize(
    ("made", "node", "reason"),
    [
        ({}, "Not A Name", "WrongName"),
        ({"seconds": 0.001}, "n1", "TokenExpired"),
        ({"node": "n7"}, "n1", "TokenForAnotherNode"),
    ],
)
async def test_tokens_that_are_not_good_for_a_node(tmp_path: Path, made: Any, node: str, reason: str) -> None:
    machine = Machine(tmp_path)
    async with serving(tmp_path / "c", tls=True) as bench:
        token = await bench.nodes.create_token(**made)
        answer = await machine.join(bench, token, node)
        assert (answer.reason, answer.chain) == (reason, b"")
        assert answer.hint


async def test_a_token_serves_as_many_nodes_as_it_may(tmp_path: Path) -> None:
    one, two = Machine(tmp_path, "one"), Machine(tmp_path, "two")
    async with serving(tmp_path / "c", tls=True) as bench:
        token = await bench.nodes.create_token(uses=2)
        assert (await one.join(bench, token, "n1")).chain
        # The answer was lost: the same key asks again, and it costs no use.
        assert (await one.join(bench, token, "n1")).chain
        assert (await two.join(bench, token, "n2")).chain
        assert (await Machine(tmp_path, "three").join(bench, token, "n3")).reason == "TokenUsedUp"
        # A stolen token does not take a name that is taken.
        fresh = await bench.nodes.create_token()
        assert (await two.join(bench, fresh, "n1")).reason == "TokenForAnotherNode"
        assert (await bench.nodes.list_tokens())[0].uses_left == 1
        kept = (tmp_path / "c" / "nodes.db").read_bytes() + (tmp_path / "c" / "nodes.db-wal").read_bytes()
        assert token.rpartition(".")[2].encode() not in kept


async def test_joining_anew_ends_the_old_certificate(tmp_path: Path) -> None:
    old, new = Machine(tmp_path, "old"), Machine(tmp_path, "new")
    async with serving(tmp_path / "c", tls=True) as bench:
        await old.join(bench, await bench.nodes.create_token(), "n1")
        await new.join(bench, await bench.nodes.create_token(node="n1"), "n1")
        assert isinstance(await new.connect(bench, "n1"), Welcome)
        refused = await old.connect(bench, "n1")
        assert isinstance(refused, Refused)
        assert refused.reason == "CertificateReplaced"
        await bench.nodes.revoke_node("n1")
        refused = await new.connect(bench, "n1")
        assert isinstance(refused, Refused)
        assert refused.reason == "CertificateReplaced"


async def test_a_revoked_node_loses_its_stream(tmp_path: Path) -> None:
    async with serving(tmp_path / "c") as bench, bench.node("n1") as node:
        await bench.nodes.revoke_node("n1")
        assert (await node.hear_a(Refused)).reason == "CertificateReplaced"
        with pytest.raises(NotFound):
            await bench.nodes.revoke_node("never-seen")


async def test_revoked_and_unknown_tokens(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with serving(tmp_path / "c", tls=True) as bench:
        token = await bench.nodes.create_token()
        identity = (await bench.nodes.list_tokens())[0].id
        await bench.nodes.revoke_token(identity)
        assert (await machine.join(bench, token, "n1")).reason == "TokenRevoked"
        assert (
            await machine.join(bench, f"{token[:-1]}{'y' if token[-1] == 'x' else 'x'}", "n1")
        ).reason == "UnknownToken"
        assert (await machine.join(bench, "no token at all", "n1")).reason == "UnknownToken"
        machine.csr = b"-----BEGIN CERTIFICATE REQUEST-----\nrubbish\n-----END CERTIFICATE REQUEST-----\n"
        assert (await machine.join(bench, await bench.nodes.create_token(), "n1")).reason == "Invalid"
        with pytest.raises(NotFound):
            await bench.nodes.revoke_token("000000000000")
        for wrong in ({"uses": 0}, {"seconds": -1}, {"node": "Big"}, {"node": "n1", "uses": 2}):
            with pytest.raises(Invalid):
                await bench.nodes.create_token(**wrong)


async def test_certificates_of_others_and_expired_ones_open_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with serving(tmp_path / "c", tls=True) as bench:
        stranger = await asyncio.to_thread(open_authority, _made(tmp_path / "other"))
        foreign = stranger.sign(machine.csr, Identity("n1", 1), 3600.0)
        ours = await asyncio.to_thread(open_authority, tmp_path / "c")
        expired = ours.sign(machine.csr, Identity("n1", 1), 3600.0, datetime.now(UTC) - timedelta(hours=2))
        never_joined = ours.sign(machine.csr, Identity("n1", 1), 3600.0)
        for chain in (foreign.chain, expired.chain):
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await machine.connect(bench, "n1", chain=chain)
        refused = await machine.connect(bench, "n1", chain=never_joined.chain)
        assert isinstance(refused, Refused)


async def test_one_use_is_one_use_however_many_come_at_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "nodes.db")
    await ledger.open()
    now = time.time()
    secret = "s" * 32
    await ledger.add(tokens.Token("0" * 12, tokens.digest_of(secret), now, now + 60, 1))
    answers = await asyncio.gather(
        *(ledger.join("0" * 12, secret, f"n{number}", bytes([number]), now) for number in range(20))
    )
    assert sorted(map(str, answers)).count("1") == 1
    await ledger.close()


def test_the_authority_is_kept_and_a_damaged_one_is_said(tmp_path: Path) -> None:
    first = open_authority(tmp_path)
    assert open_authority(tmp_path).pem == first.pem
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in (tmp_path / "ca.crt").read_bytes()
    other = open_authority(_made(tmp_path / "other"))
    (tmp_path / "ca.crt").write_bytes(other.pem)
    with pytest.raises(ConfigError, match=r"not the key"):
        open_authority(tmp_path)
    (tmp_path / "ca.key").write_text("rubbish")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_authority(tmp_path)


def test_the_coordinators_own_certificate_is_renewed_in_time(tmp_path: Path) -> None:
    authority = open_authority(tmp_path)
    first = authority.server(["a"])
    assert authority.server(["a"]) is first
    assert authority.server(["a"], datetime.now(UTC) + timedelta(days=320)) is not first


@pytest.mark.parametrize("address", ["0.0.0.0:7422", "10.0.0.1:7422", "coordinator:7422"])
async def test_without_tls_nobody_else_may_listen(tmp_path: Path, address: str) -> None:
    from prometheus_client import CollectorRegistry

    from stoker_coordinator.store.memory import MemoryStore

    settings = LinkSettings(listen="", join_listen="", plain_listen=address)
    nodes = Nodes(settings, tmp_path, MemoryStore(), CollectorRegistry())
    await nodes.open()
    with pytest.raises(ConfigError, match="plain_listen"):
        await nodes.run()
    await nodes.close()


def test_identities_in_certificates() -> None:
    assert identity_of(uri_of(Identity("gpu-1.rack", 3))) == Identity("gpu-1.rack", 3)
    for text in ("", "stoker://node/?epoch=1", "stoker://node/a?epoch=x", "stoker://node/A?epoch=1", "spiffe://a/b"):
        assert identity_of(text) is None


def test_a_greeting_shows_no_secret_and_a_token_is_not_printed() -> None:
    from stoker.objects.link import JoinRequest

    assert "secret" not in repr(JoinRequest(token="stoker-join.secret", node="n1", csr=b""))
    assert Hello(node="n1").protocol == 1


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
