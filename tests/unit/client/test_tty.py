"""The command line on a terminal: what a person sees, and what Ctrl-C does."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest

from stokerd.errors import JournalError
from tests.unit.api.fakes import GIB, MIB, failed, normal, pulling, succeeded
from tests.unit.client.conftest import Start
from tests.unit.client.served import Served

LONG = "registry.example.com/platform/ml/training-base:v2026.03.01-cuda12"


def update(daemon: Served, *items: object) -> None:
    daemon.call(daemon.api.images.update, "j0001", *items)


def test_eighty_columns(daemon: Served, start: Start) -> None:
    program = start("image", "warm", "nginx:1.27", LONG, "missing")
    program.read_until(lambda text: "0/3 images" in text and "3 waiting" in text)
    update(daemon, pulling("nginx:1.27", 200 * MIB, 500 * MIB), pulling(LONG, 7 * GIB, 7 * GIB, unpacked=3))
    text = program.read_until(lambda text: "200/500" in text and "unpacking" in text and "0/3" in text)
    assert "  docker.io/library/nginx:1.27 ━━━━━────────  40%    200/500 MiB" in text
    assert "  registry.e…2026.03.01-cuda12 ━━━━━━━━━━━━━ 100%    7.0/7.0 GiB unpacking 3/7" in text
    assert all(len(line) < 80 for line in text.splitlines())
    assert not program.screen.cursor_visible
    assert b"\x1b[36m" in program.raw
    update(daemon, succeeded("nginx:1.27", 500 * MIB), failed("missing", hint="check the tag"))
    program.read_until(lambda text: "2/3 images" in text)
    update(daemon, succeeded(LONG, 7 * GIB))
    assert program.wait() == 5
    *lines, last = program.screen.text.splitlines()
    assert lines == [
        f"✓ {normal('nginx:1.27')}  pulled 500 MiB in 0s",
        f"✗ {normal('missing')}  NotFound: no such image (3 attempts)",
        "    hint: check the tag",
        f"✓ {LONG}  pulled 7.0",  # a line that scrolls away may be longer than the terminal is wide
        "GiB in 0s",
    ]
    assert last.startswith("2 of 3 images ready, 1 failed, after ")
    assert program.screen.cursor_visible


def test_forty_columns(daemon: Served, start: Start) -> None:
    program = start("image", "warm", "nginx:1.27", LONG, columns=40)
    program.read_until(lambda text: "0/2 images" in text)
    update(daemon, pulling("nginx:1.27", 200 * MIB, 500 * MIB), pulling(LONG, 7 * GIB, 7 * GIB, unpacked=3))
    text = program.read_until(lambda text: "unpacking" in text and "0/2" in text)
    assert text.splitlines()[:2] == ["  nginx:1.27          40% pulling", "  regist…3.01-cuda12 100% unpacking 3/7"]
    update(daemon, succeeded("nginx:1.27"), succeeded(LONG))
    assert program.wait() == 0
    assert program.screen.text.splitlines()[-1].startswith("2 images ready in ")


def test_more_images_than_lines(daemon: Served, start: Start) -> None:
    names = [f"image-{number:02d}" for number in range(30)]
    program = start("image", "warm", *names, rows=10)
    program.read_until(lambda text: "0/30 images" in text)
    update(daemon, *[pulling(name, 1, 2) for name in names])
    text = program.read_until(lambda text: "and 24 more" in text and "0/30" in text)
    assert len(text.splitlines()) == 8
    update(daemon, *[succeeded(name) for name in names])
    assert program.wait() == 0
    assert program.screen.text.count("✓") == 30


def test_a_terminal_that_changes_its_size(daemon: Served, start: Start) -> None:
    program = start("image", "warm", "nginx", LONG, columns=100)
    program.read_until(lambda text: "0/2 images" in text)
    update(daemon, pulling("nginx", 200 * MIB, 500 * MIB), pulling(LONG, 3 * GIB, 7 * GIB))
    program.read_until(lambda text: "3.0/7.0 GiB" in text)
    program.resize(45, 24)
    text = program.read_until(lambda text: "40% pulling" in text and "─" not in text)
    assert [line.split()[0] for line in text.splitlines()] == ["nginx:latest", "registry…6.03.01-cuda12", "0/2"]
    program.resize(120, 24)
    program.read_until(lambda text: "━" in text and len(text.splitlines()) == 3)
    update(daemon, succeeded("nginx"), succeeded(LONG))
    assert program.wait() == 0


def test_ctrl_c_cancels_the_job(daemon: Served, start: Start) -> None:
    program = start("image", "warm", "nginx", "busybox")
    program.read_until(lambda text: "0/2 images" in text)
    update(daemon, succeeded("busybox"), pulling("nginx", 1 * MIB, 5 * MIB))
    program.read_until(lambda text: "1/2 images" in text)
    program.press(b"\x03")
    assert program.wait() == 130
    assert ("cancel", "j0001") in daemon.api.images.calls
    lines = program.screen.text.splitlines()
    assert any(line.startswith("cancelling: stokerd stops what only this job wanted") for line in lines)
    assert f"– {normal('nginx')}  cancelled" in lines
    assert lines[-1].startswith("1 of 2 images ready, 1 cancelled, after ")
    assert program.screen.cursor_visible


def test_a_second_ctrl_c_leaves_at_once(daemon: Served, start: Start) -> None:
    daemon.call(lambda: daemon.api.images.gates.update(cancel=asyncio.Event()))
    program = start("image", "warm", "nginx")
    program.read_until(lambda text: "0/1 images" in text)
    program.press(b"\x03")
    program.read_until(lambda text: "cancelling" in text)
    program.press(b"\x03")
    assert program.wait() == 130
    assert "job j0001 goes on in stokerd; look at it with: stoker image watch j0001" in program.screen.text
    assert program.screen.cursor_visible
    daemon.call(daemon.api.images.gates["cancel"].set)


def test_ctrl_c_before_the_daemon_has_answered_still_cancels(daemon: Served, start: Start) -> None:
    daemon.call(lambda: daemon.api.images.gates.update(warm=asyncio.Event()))
    entered = daemon.api.images.entering("warm")
    program = start("image", "warm", "nginx")
    daemon.call(entered.wait)
    program.press(b"\x03")
    program.read_until(lambda text: "^C" in text)
    daemon.call(daemon.api.images.gates["warm"].set)
    assert program.wait() == 130
    assert daemon.api.images.jobs_by_id["j0001"].state == "Cancelled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_leave_the_job_alone(daemon: Served, start: Start, number: int) -> None:
    program = start("image", "warm", "nginx")
    program.read_until(lambda text: "0/1 images" in text)
    program.signal(number)
    assert program.wait() == 128 + number
    assert "job j0001 goes on in stokerd" in program.screen.text
    assert program.screen.cursor_visible
    assert daemon.api.images.jobs_by_id["j0001"].state == "Active"


def test_ctrl_c_during_watch_leaves_the_job_alone(daemon: Served, start: Start) -> None:
    start("image", "warm", "--detach", "nginx").wait()
    program = start("image", "watch", "j0001")
    program.read_until(lambda text: "0/1 images" in text)
    program.press(b"\x03")
    assert program.wait() == 130
    assert daemon.api.images.jobs_by_id["j0001"].state == "Active"
    assert program.screen.cursor_visible


def test_ctrl_c_during_watch_of_the_node(daemon: Served, start: Start) -> None:
    entered = daemon.api.images.entering("watch")
    program = start("image", "watch")
    daemon.call(entered.wait)
    program.press(b"\x03")
    assert program.wait() == 130
    assert "Traceback" not in program.screen.text


def test_the_daemon_restarts_under_a_warm(daemon: Served, start: Start) -> None:
    program = start("image", "warm", "nginx", columns=120)
    program.read_until(lambda text: "0/1 images" in text)
    daemon.call(daemon.api.server.stop, 1.0)
    program.read_until(lambda text: "no connection: there is no socket" in text)
    daemon.call(daemon.api.restart)
    program.read_until(lambda text: "no connection" not in text)
    update(daemon, succeeded("nginx"))
    assert program.wait() == 0


def test_a_failure_on_the_way_gives_the_cursor_back(daemon: Served, start: Start) -> None:
    program = start("image", "warm", "nginx")
    program.read_until(lambda text: "0/1 images" in text)
    daemon.call(lambda: daemon.api.images.feeds["j0001"][0].put(JournalError("the journal is gone", hint="look")))
    assert program.wait() == 1
    assert program.screen.text.endswith("stoker: the journal is gone\nhint: look")
    assert program.screen.cursor_visible


def test_no_colour_and_no_unicode(daemon: Served, start: Start) -> None:
    program = start("--no-color", "image", "warm", "nginx", PYTHONIOENCODING="ascii")
    program.read_until(lambda text: "0/1 images" in text)
    update(daemon, pulling("nginx", 1 * MIB, 2 * MIB))
    program.read_until(lambda text: "######......." in text)
    update(daemon, succeeded("nginx"))
    assert program.wait() == 0
    assert b"m" not in {program.raw[match : match + 1] for match in code_ends(program.raw)}
    assert program.raw.isascii()


def code_ends(raw: bytes) -> list[int]:
    """Positions of the final characters of the terminal codes in *raw*."""
    return [match.end() - 1 for match in re.finditer(rb"\x1b\[[?0-9;]*[A-Za-z]", raw)]


def test_a_dumb_terminal_gets_plain_lines(daemon: Served, start: Start) -> None:
    program = start("image", "warm", "nginx", TERM="dumb")
    program.read_until(lambda text: "job j0001: 1 image" in text)
    update(daemon, succeeded("nginx"))
    assert program.wait() == 0
    assert b"\x1b" not in program.raw


def test_colour_follows_the_environment(daemon: Served, start: Start) -> None:
    coloured = start("doctor")
    coloured.wait()
    plain = start("doctor", NO_COLOR="1")
    plain.wait()
    assert b"\x1b[32m" in coloured.raw
    assert b"\x1b" not in plain.raw
    assert coloured.screen.text == plain.screen.text
