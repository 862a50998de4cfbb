"""``stoker recreate`` on a terminal: what a person sees, and what Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from stokerd.errors import JournalError
from tests.unit.api.fake_containers import broken, busy, container, done, pod
from tests.unit.client.conftest import Start
from tests.unit.client.emulator import Program
from tests.unit.client.served import Served

WEB = "default/web-0"
GOES_ON = "request r0001 goes on in stokerd; look at it with: stoker recreate watch r0001"


@pytest.fixture(autouse=True)
def node(daemon: Served) -> None:
    daemon.api.containers.all_pods = [pod(WEB, container("main", WEB, attempt=2), container("side", WEB))]


def started(start: Start, *options: str, columns: int = 80) -> Program:
    program = start("recreate", WEB, "main", "side", *options, columns=columns)
    program.read_until(lambda text: "0/2 containers" in text)
    return program


def test_progress(daemon: Served, start: Start) -> None:
    program = started(start)
    containers = daemon.api.containers
    main, side = containers.by_id["r0001"].containers
    daemon.call(containers.update, "r0001", busy(main, "Stopping"))
    text = program.read_until(lambda text: "stopping attempt 2" in text)
    assert [line.split()[0] for line in text.splitlines()] == ["main", "side", "0/2"]
    assert all(len(line) < 80 for line in text.splitlines())
    assert not program.screen.cursor_visible
    daemon.call(containers.update, "r0001", done(main))
    daemon.call(containers.update, "r0001", busy(side, "Verifying"))
    program.read_until(lambda text: "verifying attempt 1" in text and "1/2 containers" in text)
    daemon.call(containers.finish, "r0001", "Failed", broken(side, hint="read its log"))
    assert program.wait() == 1
    *lines, last = program.screen.text.splitlines()
    assert lines[0] == "✓ main  recreated, attempt 2 → 3, down 420ms"
    assert lines[1].startswith("✗ side  ExitedEarly: it ended with exit code 1; rolled back, attempt 0 → 2")
    assert lines[-1] == "    hint: read its log"
    assert last.startswith("default/web-0: 1 of 2 containers recreated, 1 failed, after ")
    assert program.screen.cursor_visible


def test_forty_columns(daemon: Served, start: Start) -> None:
    program = started(start, columns=40)
    containers = daemon.api.containers
    daemon.call(containers.update, "r0001", busy(containers.by_id["r0001"].containers[0], "Stopping"))
    text = program.read_until(lambda text: "stopping attempt 2" in text)
    assert all(len(line) < 40 for line in text.splitlines())
    daemon.call(containers.finish, "r0001", "Succeeded")
    assert program.wait() == 0


def test_ctrl_c_leaves_the_request_and_says_how_to_cancel_it(daemon: Served, start: Start) -> None:
    program = started(start)
    program.press(b"\x03")
    assert program.wait() == 130
    lines = program.screen.text.splitlines()
    assert lines[-2:] == [GOES_ON, "cancel it with: stoker recreate cancel r0001"]
    assert program.screen.cursor_visible
    assert daemon.api.containers.by_id["r0001"].phase == "Recreating"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_do_the_same(daemon: Served, start: Start, number: int) -> None:
    program = started(start)
    program.signal(number)
    assert program.wait() == 128 + number
    assert GOES_ON in program.screen.text
    assert program.screen.cursor_visible


def test_ctrl_c_before_the_daemon_has_answered(daemon: Served, start: Start) -> None:
    daemon.call(lambda: daemon.api.containers.gates.update(recreate=asyncio.Event()))
    program = start("recreate", WEB, "main")
    daemon.call(daemon.api.containers.entering("recreate").wait)
    program.press(b"\x03")
    program.read_until(lambda text: "^C" in text)
    daemon.call(daemon.api.containers.gates["recreate"].set)
    assert program.wait() == 130
    assert GOES_ON in program.screen.text


def test_the_daemon_restarts_meanwhile(daemon: Served, start: Start) -> None:
    program = started(start, columns=120)
    daemon.call(daemon.api.server.stop, 1.0)
    program.read_until(lambda text: "no connection: there is no socket" in text)
    daemon.call(daemon.api.restart)
    program.read_until(lambda text: "no connection" not in text)
    daemon.call(daemon.api.containers.finish, "r0001", "Succeeded")
    assert program.wait() == 0


def test_a_daemon_that_stays_away(daemon: Served, start: Start) -> None:
    code = "import stoker.client_containers as c; f = c.ContainerCalls._follow; "
    code += "c.ContainerCalls._follow = lambda *a, **k: f(*a, **{**k, 'patience': 0.5}); "
    program = start("recreate", WEB, "main", before=code, columns=120)
    program.read_until(lambda text: "0/1 containers" in text)
    daemon.call(daemon.api.server.stop, 1.0)
    assert program.wait() == 3
    lines = program.screen.text.splitlines()
    assert GOES_ON in lines
    assert lines[-2].startswith("stoker: there is no socket")
    assert program.screen.cursor_visible
    daemon.call(daemon.api.restart)


def test_a_failure_on_the_way_gives_the_cursor_back(daemon: Served, start: Start) -> None:
    program = started(start)
    daemon.call(lambda: daemon.api.containers.feeds["r0001"][0].put(JournalError("the journal is gone")))
    assert program.wait() == 1
    assert program.screen.text.endswith("stoker: the journal is gone")
    assert program.screen.cursor_visible


def test_watch(daemon: Served, start: Start) -> None:
    start("recreate", WEB, "main", "--no-wait").wait()
    program = start("recreate", "watch", "r0001")
    program.read_until(lambda text: "0/1 containers" in text)
    program.press(b"\x03")
    assert program.wait() == 130
    assert GOES_ON in program.screen.text


def test_apply_and_wait(daemon: Served, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("apiVersion: stoker.dev/v1\nkind: ContainerRecreateRequest\nspec: {podName: web-0, all: true}\n")
    entered = daemon.api.containers.entering("recreate")
    program = start("apply", "-f", str(file), "--wait")
    daemon.call(entered.wait)
    program.read_until(lambda text: "request r0001" in text)
    program.press(b"\x03")
    assert program.wait() == 130
    assert "what was accepted goes on in stokerd" in program.screen.text
