from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from stoker.client import Client
from tests.unit.api.fakes import Api, running_api
from tests.unit.client.commands import ENTRY, Ago, Run, runner
from tests.unit.client.emulator import Program
from tests.unit.client.served import Served, served


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running_api() as running:
        yield running


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    async with Client(api.socket) as open_client:
        yield open_client


@pytest.fixture
def daemon() -> Iterator[Served]:
    with served() as server:
        yield server


@pytest.fixture
def run(daemon: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("STOKER_SOCKET", daemon.socket)
    return runner(capsys)


@pytest.fixture
def ago(monkeypatch: pytest.MonkeyPatch) -> Ago:
    """Returns when something was. The command line's clock stands still: ages do not depend on how long it runs."""
    now = datetime.now(UTC)
    monkeypatch.setattr("stoker.cli.console.datetime", SimpleNamespace(now=lambda _zone: now))
    return lambda **delta: now - timedelta(**delta)


class Start:
    """Starts ``stoker`` on a terminal."""

    def __init__(self, daemon: Served) -> None:
        self._daemon = daemon
        self.programs: list[Program] = []

    def __call__(self, *arguments: str, columns: int = 80, rows: int = 24, before: str = "", **env: str) -> Program:
        """*before*: Python that the program runs first."""
        argv = [sys.executable, "-c", before + ENTRY, *arguments]
        program = Program(argv, columns, rows, {"STOKER_SOCKET": self._daemon.socket, **env})
        self.programs.append(program)
        return program


@pytest.fixture
def start(daemon: Served) -> Iterator[Start]:
    starter = Start(daemon)
    yield starter
    for program in starter.programs:
        program.end()
