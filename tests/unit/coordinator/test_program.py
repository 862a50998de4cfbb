"""The program itself: started, asked, killed, started again, stopped; its commands, and its configuration."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.errors import ClientError
from stoker.objects.kinds import KINDS
from stoker.server_client import Server, ServerClient, ServerUnreachable
from stoker_coordinator import configuration
from stoker_coordinator.configuration import Settings
from stoker_coordinator.errors import ConfigError
from stoker_coordinator.settings import address, is_loopback
from tests.unit.coordinator.api.conftest import job

PROGRAM = [sys.executable, "-m", "stoker_coordinator.main"]
JOB = KINDS["ImagePullJob"]


class Program:
    """A coordinator's process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "coordinator.toml"
        self.config.write_text(
            f"""
            [coordinator]
            state_dir = "{directory}/state"
            [api]
            socket = "{directory}/api.sock"
            listen = ""
            [link]
            listen = "127.0.0.1:0"
            join_listen = ""
            """
        )
        self.server = Server(f"unix:{directory}/api.sock")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        log = await asyncio.to_thread((self.directory / "log").open, "ab")
        self._process = await asyncio.create_subprocess_exec(*PROGRAM, "--config", str(self.config), stderr=log)
        log.close()
        async with asyncio.timeout(30), ServerClient(self.server) as client:
            while True:
                try:
                    return await self._ready(client)
                except ServerUnreachable:
                    assert self._process.returncode is None, (self.directory / "log").read_text()

    async def _ready(self, client: ServerClient) -> None:
        async for _ in client.list(KINDS["Node"]):
            return

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        async with asyncio.timeout(20):
            return await self._process.wait()

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.end(signal.SIGKILL)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, "--config", str(self.config), *words], capture_output=True, text=True, timeout=30, check=False
        )


@pytest.fixture
async def program(tmp_path: Path) -> AsyncIterator[Program]:
    started = Program(tmp_path)
    yield started
    await started.close()


async def test_what_was_accepted_is_there_after_a_kill_and_a_watch_goes_on(program: Program) -> None:
    await program.start()
    async with ServerClient(program.server) as client:
        events = client.watch(JOB)
        await client.apply(JOB, JOB.version, "default", "first", job("first"))
        first = await anext(events)
        while first["type"] != "ADDED":
            first = await anext(events)

        assert await program.end(signal.SIGKILL) == -signal.SIGKILL
        waiting = asyncio.create_task(_until(events, "second"))
        await program.start()
        await client.apply(JOB, JOB.version, "default", "second", job("second"))
        async with asyncio.timeout(20):
            seen = await waiting
        found = [obj["metadata"]["name"] async for obj in client.list(JOB)]
        await events.aclose()

    assert found == ["first", "second"]
    assert ("ADDED", "first") not in seen  # it went on, and did not begin anew
    assert await program.end(signal.SIGTERM) == 0
    assert not (program.directory / "api.sock").exists()
    assert "subsystem failed" not in (program.directory / "log").read_text()


async def _until(events: AsyncIterator[dict[str, object]], name: str) -> list[tuple[object, object]]:
    seen: list[tuple[object, object]] = []
    async for event in events:
        seen.append((event["type"], event["object"]["metadata"]["name"]))  # type: ignore[index]
        if seen[-1] == ("ADDED", name):
            break
    return seen


async def test_nodes_are_let_in_by_tokens_and_a_second_coordinator_is_refused(program: Program) -> None:
    await program.start()
    async with ServerClient(program.server) as client:
        text = await client.create_join_token(seconds=60, node="n1", note="rack 3")
        (token,) = await client.join_tokens()
        assert "BEGIN CERTIFICATE" in await client.authority()
        await client.revoke_join_token(token["id"])
        with pytest.raises(ClientError) as unknown:
            await client.revoke_join_token("nonsense")
        with pytest.raises(ClientError, match="uses") as many:
            await client.create_join_token(seconds=60, uses=0)
        with pytest.raises(ClientError) as stranger:
            await client.exclude("stranger")
        assert (await client.join_tokens())[0]["revoked"] is True
    assert text.startswith("stoker-join.")
    assert (token["node"], token["usesLeft"], token["note"]) == ("n1", 1, "rack 3")
    assert [caught.value.status for caught in (unknown, many, stranger)] == [404, 422, 404]
    audit = (program.directory / "state" / "audit.log").read_text()
    assert '"verb":"create","kind":"JoinToken","name":"n1","code":201' in audit
    assert text not in audit
    second = await asyncio.to_thread(program.command)

    assert second.returncode == 1
    assert "another coordinator" in second.stderr


def test_commands(tmp_path: Path) -> None:
    program = Program(tmp_path)
    made = program.command("token", "create", "ann", "--role", "operator", "--lifetime", "1h")
    listed = program.command("token", "list")
    revoked = program.command("token", "revoke", "ann")
    again = program.command("token", "revoke", "ann")
    wrong = program.command("token", "create", "ann", "--role", "operator", "--lifetime", "soon")
    backup = program.command("backup", str(tmp_path / "copy"))

    assert made.stdout.startswith("stoker-api.")
    assert [line.split()[1:3] for line in listed.stdout.splitlines()] == [["NAME", "ROLE"], ["ann", "operator"]]
    assert made.stdout.strip().rpartition(".")[2] not in listed.stdout
    assert (revoked.returncode, again.returncode) == (0, 1)
    assert "there is no token 'ann'" in again.stderr
    assert (wrong.returncode, "not a duration" in wrong.stderr) == (1, True)
    assert (backup.returncode, "there is no store" in backup.stderr) == (1, True)


def test_every_error_of_a_configuration_is_told(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[api]\nlistn = "x"\nmax_body = "1"\n[store]\nhistory_age = "soon"\n[coordinator]\nlog_level = "loud"\n'
    )
    done = subprocess.run(
        [*PROGRAM, "--check-config", "--config", str(path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()[1:]] == [
        "coordinator.log_level",
        "api.listn",
        "api.max_body",
        "store.history_age",
    ]
    assert "did you mean 'listen'" in done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[api]\nlisten = "0.0.0.0:7400"', "can be reached from elsewhere, so it needs api.tls_cert"),
        ('[api]\nlisten = "example.com:7400"', "needs api.tls_cert"),
        ('[api]\nlisten = "7400"', "is not like 127.0.0.1:7400"),
        ('[api]\ntls_cert = "/x"', "one of them is missing"),
        ('[api]\nsocket = "x.sock"', "not an absolute path"),
        ('[coordinator]\nstate_dir = "x"', "not an absolute path"),
        ('[fabric]\nlabels = ["rooms"]', "is not like"),
        ('[fabric]\nlabels = ["rooms: a/b/c"]', "no name such as app"),
        ('[fabric]\nlabels = ["RoCE: room"]', "the name 'roce' is taken"),
        ('[fabric]\nlabels = ["rooms: room", "Rooms: rack"]', "the name 'rooms' is taken"),
        ("x", "is not TOML"),
    ],
)
def test_configurations_that_cannot_be_meant(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        configuration.parse(text, "c.toml")


def test_addresses() -> None:
    assert address("[::1]:1") == ("::1", 1)
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "10.0.0.1", "::", "host")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert configuration.parse("", "c.toml") == Settings()
    assert configuration.parse('[api]\nlisten = "0.0.0.0:1"\ntls_cert = "/c"\ntls_key = "/k"', "c").api.tls_cert == "/c"
