"""Who may do what, over which way, and what is put on record."""

from __future__ import annotations

import asyncio
import io
import ssl
import subprocess
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stoker_coordinator.auth import ROLES, WISHES, Role, Tokens, may
from stoker_coordinator.errors import AlreadyRunning, Invalid, NotFound, Unauthorized
from tests.unit.coordinator.api.conftest import ALL_JOBS, JOBS, SECRETS, Api, ask, job, running


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("admin", {"read", "wish", "node", "status"}),
        ("operator", {"read", "wish"}),
        ("viewer", {"read"}),
        ("node", set()),
    ],
)
async def test_roles(api: Api, role: Role, allowed: set[str]) -> None:
    attempts: dict[str, tuple[str, str, Any]] = {
        "read": ("GET", ALL_JOBS, None),
        "wish": ("POST", JOBS, job(f"by-{role}")),
        "node": (
            "POST",
            "/apis/stoker.dev/v1/nodes",
            {"apiVersion": "stoker.dev/v1", "kind": "Node", "metadata": {"name": "n"}},
        ),
        "status": ("PATCH", f"{JOBS}/x/status", {"status": {}}),
    }
    async with api.over_tcp(api.token(role)) as session:
        found = {name for name, attempt in attempts.items() if (await ask(session, *attempt)).status in {200, 201, 404}}

    assert found == allowed


def test_roles_and_verbs_as_a_table() -> None:
    assert {role for role in ROLES if may(role, "get", "PullSecret")} == {"admin", "operator", "viewer"}
    assert all(may("operator", "delete", kind) for kind in WISHES)
    assert not any(may("operator", verb, "HyperNode") for verb in ("create", "update", "patch", "apply", "delete"))
    assert not may("viewer", "create", "ImagePullJob")


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer x", "Basic YTpi", "Bearer stoker-api.000000000000." + "A" * 43, "Bearer " + "é" * 60],
)
async def test_without_a_good_token_nothing_is_said(api: Api, header: str) -> None:
    async with api.over_tcp() as session, session.get(ALL_JOBS, headers={"Authorization": header}) as response:
        body = await response.json()

    assert response.status == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "stoker-coordinator token create" in body["hint"]


async def test_a_revoked_token_and_one_that_expired_are_good_for_nothing(api: Api) -> None:
    token, short = api.token("admin"), api.token("viewer", 0.0)
    async with api.over_tcp(token) as session:
        assert (await ask(session, "GET", ALL_JOBS)).status == 200
        api.tokens.revoke("a-admin")
        assert (await ask(session, "GET", ALL_JOBS)).status == 401
    async with api.over_tcp(short) as session:
        assert "expired" in (await ask(session, "GET", ALL_JOBS)).body["message"]


async def test_health_is_for_everybody_and_metrics_are_not(api: Api) -> None:
    api.problems = {"nodes": "failed and is started again"}
    async with api.over_tcp() as session:
        health, ready = await ask(session, "GET", "/healthz"), await ask(session, "GET", "/readyz")
        refused = await ask(session, "GET", "/metrics")
    await api.call("POST", JOBS, job("a"))
    metrics = (await api.call("GET", "/metrics")).raw.decode()

    assert (health.status, ready.status, refused.status) == (200, 503, 401)
    assert ready.body["parts"] == {"nodes": "failed and is started again"}
    assert 'stoker_coordinator_objects{kind="ImagePullJob"} 1.0' in metrics
    assert 'stoker_coordinator_requests_total{code="201",kind="ImagePullJob",verb="create"} 1.0' in metrics
    assert "stoker_coordinator_refused_total 1.0" in metrics


async def test_changes_and_refusals_are_on_record_and_reads_are_not(api: Api) -> None:
    token = api.token("viewer")
    await api.call("POST", JOBS, job("a"))
    await api.call("GET", f"{JOBS}/a")
    await api.call("DELETE", f"{JOBS}/a?dryRun=All")
    async with api.over_tcp(token) as session:
        await ask(session, "DELETE", f"{JOBS}/a")
        await ask(session, "GET", f"{SECRETS}/none")

    entries = api.audit()
    assert [(each["who"], each["verb"], each["name"], each["code"]) for each in entries] == [
        ("uid:0", "create", "a", 201),
        ("uid:0", "delete", "a", 200),
        ("a-viewer", "delete", "a", 403),
    ]
    assert entries[1]["dryRun"] is True
    assert entries[2] | {"peer": "127.0.0.1", "role": "viewer", "reason": "Forbidden"} == entries[2]
    assert token not in (api.directory / "audit.log").read_text()
    assert (api.directory / "audit.log").stat().st_mode & 0o777 == 0o600


async def test_one_coordinator_for_a_socket_and_dead_ones_are_replaced(api: Api, tmp_path: Path) -> None:
    other = Api(tmp_path)
    with pytest.raises(AlreadyRunning):
        await other.server.start()
    assert (await api.call("GET", "/healthz")).status == 200

    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "api.sock").touch()
    (dead / "api.sock").unlink()
    import socket

    left = socket.socket(socket.AF_UNIX)
    left.bind(str(dead / "api.sock"))
    left.close()
    async with running(dead) as again:
        assert (await again.call("GET", "/healthz")).status == 200


async def test_over_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key)
    async with running(tmp_path, tls_cert=str(cert), tls_key=str(key)) as api:
        trust = ssl.create_default_context(cafile=str(cert))
        headers = {"Authorization": f"Bearer {api.token('viewer')}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"https://localhost:{api.server.port}{ALL_JOBS}", ssl=trust) as response,
        ):
            assert response.status == 200
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://localhost:{api.server.port}/healthz")


def make_certificate(cert: Path, key: Path) -> None:
    command = f"""openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost
        -addext subjectAltName=DNS:localhost -keyout {key} -out {cert}"""
    subprocess.run(command.split(), check=True, capture_output=True)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_who_connects_and_says_nothing_is_let_go(tmp_path: Path, sent: bytes) -> None:
    async with running(tmp_path, idle=0.1) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
        writer.write(sent)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_what_is_packed_is_not_unpacked(api: Api) -> None:
    data = io.BytesIO(zlib.compress(b" " * 10_000_000))
    headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
    async with api.admin.post(JOBS, data=data, headers=headers) as response:
        assert response.status == 400


# ---------------------------------------------------------------------------------------------- tokens


def test_a_token_is_kept_as_a_digest_and_read_by_its_owner_alone(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state" / "tokens.json")
    _, text = tokens.create("ann@example", "admin")
    raw = (tmp_path / "state" / "tokens.json").read_text()

    assert text.rsplit(".", 1)[1] not in raw
    assert (tmp_path / "state" / "tokens.json").stat().st_mode & 0o777 == 0o600
    who = Tokens(tmp_path / "state" / "tokens.json").authenticate(f"Bearer {text}", datetime.now(UTC))
    assert (who.name, who.role) == ("ann@example", "admin")


def test_tokens_end(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    token, text = tokens.create("a", "viewer", 60)
    now = datetime.now(UTC)

    tokens.authenticate(f"bearer {text}", now)
    with pytest.raises(Unauthorized, match="expired"):
        tokens.authenticate(f"Bearer {text}", now + timedelta(seconds=61))
    tokens.create("a", "viewer")
    with pytest.raises(Invalid, match="2 tokens"):
        tokens.revoke("a")
    assert tokens.revoke(token.id) == token
    with pytest.raises(Unauthorized, match="not known"):
        tokens.authenticate(f"Bearer {text}", now)
    with pytest.raises(NotFound):
        tokens.revoke(token.id)
    with pytest.raises(Invalid, match="no name"):
        tokens.create("a b", "viewer")
