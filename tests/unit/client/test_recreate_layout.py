"""How containers that are being recreated look."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.cli.recreate_layout import (
    closing_line,
    finished_lines,
    frame,
    outcome,
    step_text,
    summary_line,
    target_line,
    took_seconds,
)
from stoker.cli.recreate_reporters import LiveRecreate, PlainRecreate
from stoker.cli.terminal import Screen
from stoker.cli.text import Style
from stoker.objects.containers import RecreateEvent, RecreateStatus, Step, TargetStatus
from tests.unit.api.fake_containers import NOW, broken, done
from tests.unit.client.emulator import Emulator

PLAIN, ASCII = Style(), Style(unicode=False)
IDLE = TargetStatus(name="main", phase="Pending", old_id="old", old_attempt=2)


def at(step: Step, **fields: Any) -> TargetStatus:
    started = NOW - timedelta(seconds=7)
    return replace(IDLE, phase="Recreating", step=step, started_at=started, **fields)


def request(*targets: TargetStatus, **fields: Any) -> RecreateStatus:
    base = RecreateStatus(id="r0001", name="r0001", phase="Recreating", namespace="default", pod="web-0")
    return replace(base, containers=list(targets), created_at=NOW - timedelta(seconds=9), **fields)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (IDLE, "waiting"),
        (at(""), "recreating"),
        (at("Waiting"), "waiting"),
        (at("Warming", image="nginx:2"), "warming nginx:2"),
        (at("Warming"), "warming its image"),
        (at("Creating"), "creating attempt 3"),
        (at("PreStop"), "preStop hook of attempt 2"),
        (at("Stopping"), "stopping attempt 2"),
        (at("Starting", new_attempt=5), "starting attempt 5"),
        (at("Verifying", new_attempt=5), "verifying attempt 5"),
        (at("RollingBack"), "rolling back"),
        (at("Removing"), "removing attempt 2"),
    ],
)
def test_steps(target: TargetStatus, text: str) -> None:
    assert step_text(target) == text


@pytest.mark.parametrize(
    ("target", "style", "text"),
    [
        (done(IDLE), PLAIN, "recreated, attempt 2 → 3, down 420ms"),
        (done(IDLE, 3.14159), ASCII, "recreated, attempt 2 -> 3, down 3.1s"),
        (
            replace(IDLE, phase="Succeeded", reason="RestartedBySomethingElse", message="attempt 3 runs already"),
            PLAIN,
            "attempt 3 runs already",
        ),
        (replace(IDLE, phase="Succeeded", reason="RestartedBySomethingElse"), PLAIN, "RestartedBySomethingElse"),
        (
            broken(IDLE),
            PLAIN,
            "ExitedEarly: it ended with exit code 1; rolled back, attempt 2 → 4, down 420ms",
        ),
        (broken(IDLE, "RolledBack"), PLAIN, "RolledBack: it ended with exit code 1, attempt 2 → 4, down 420ms"),
        (
            replace(broken(IDLE, rolled_back=False), new_id="", downtime_seconds=0),
            PLAIN,
            "ExitedEarly: it ended with exit code 1",
        ),
        (
            replace(IDLE, phase="Failed", reason="CreateFailed", message="no\x1b[2J such mount"),
            PLAIN,
            "CreateFailed: no�[2J such mount; the old container was not stopped",
        ),
        (replace(IDLE, phase="Failed"), PLAIN, "Failed: no message; the old container was not stopped"),
    ],
)
def test_outcomes(target: TargetStatus, style: Style, text: str) -> None:
    assert outcome(target, style) == text


def test_lines_of_containers() -> None:
    assert finished_lines(done(IDLE), PLAIN, 6) == ["✓ main    recreated, attempt 2 → 3, down 420ms"]
    failed = replace(IDLE, phase="Failed", reason="X", message="y", hint="do z")
    assert finished_lines(failed, ASCII, 4) == ["x main  X: y; the old container was not stopped", "    hint: do z"]
    line = target_line(at("Stopping"), wall=NOW, name=6, width=50, style=PLAIN)
    assert line == "  main    stopping attempt 2                   7s"
    assert len(target_line(at("Warming", image="x" * 90), wall=NOW, name=6, width=50, style=PLAIN)) == 49
    narrow = target_line(at("Stopping"), wall=NOW, name=6, width=20, style=PLAIN)
    assert len(narrow) < 20


def test_frame_and_summary() -> None:
    targets = [replace(IDLE, name=f"c{number}") for number in range(9)]
    targets[4] = replace(at("Stopping"), name="c4")
    targets[0] = replace(done(IDLE), name="c0")
    status = request(*targets)
    lines = frame(status, wall=NOW, took=9.0, trouble="", width=80, height=24, style=PLAIN)
    assert [line.split()[0] for line in lines] == ["c4", "c1", "c2", "c3", "c5", "c6", "c7", "c8", "1/9"]
    assert lines[-1] == "1/9 containers · default/web-0 · 9s · r0001"
    lines = frame(status, wall=NOW, took=9.0, trouble="", width=80, height=6, style=PLAIN)
    assert len(lines) == 5
    assert lines[3] == "  … and 5 more"
    status = replace(status, waiting_for="r0000", containers=[broken(IDLE)])
    head = "1/1 containers, no connection: gone"
    line = summary_line(status, took=9.0, trouble="gone", width=200, style=ASCII)
    assert line == f"{head}, waits for r0000, which is at the same pod, 1 failed, default/web-0, 9s, r0001"
    assert summary_line(status, took=9.0, trouble="gone", width=36, style=ASCII) == head
    assert summary_line(status, took=9.0, trouble="", width=10, style=ASCII) == "1/1 cont~"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (request(done(IDLE), result="Succeeded"), "default/web-0: 1 container recreated in 4.2s"),
        (
            request(done(IDLE), broken(IDLE), result="Failed", message="not said twice"),
            "default/web-0: 1 of 2 containers recreated, 1 failed, after 4.2s",
        ),
        (
            request(done(IDLE), IDLE, result="Cancelled"),
            "default/web-0: 1 of 2 containers recreated, the rest cancelled, after 4.2s",
        ),
        (
            request(IDLE, result="Failed", message="the pod has gone", namespace="", pod=""),
            "r0001: 0 of 1 container recreated, after 4.2s: the pod has gone",
        ),
    ],
)
def test_closing_lines(status: RecreateStatus, text: str) -> None:
    assert closing_line(status, 4.2) == text


def test_time_taken() -> None:
    assert took_seconds(request(), NOW) == 9
    assert took_seconds(request(finished_at=NOW - timedelta(seconds=5)), NOW) == 4
    assert took_seconds(replace(request(), created_at=None), NOW) == 0


def test_plain_reporter() -> None:
    lines: list[str] = []
    reporter = PlainRecreate(lines.append, ASCII)
    reporter.event(RecreateEvent(recreate=request(IDLE, waiting_for="r0000")))
    reporter.event(RecreateEvent(recreate=request(IDLE, waiting_for="r0000")))
    reporter.event(RecreateEvent(recreate=request(at("Stopping"))))
    reporter.trouble("there is no socket")
    reporter.trouble("still none")
    reporter.event(RecreateEvent(recreate=request(at("Stopping"))))
    reporter.note("a note")
    reporter.tick()
    over = request(broken(IDLE, hint="look"), result="Failed", finished_at=NOW)
    reporter.event(RecreateEvent(recreate=over))
    reporter.finish()
    reporter.close()
    assert lines == [
        "request r0001: default/web-0, 1 container",
        "waits for r0000, which is at the same pod",
        "main: stopping attempt 2",
        "no connection to stokerd, trying again: there is no socket",
        "stokerd is back",
        "a note",
        "main: failed: ExitedEarly: it ended with exit code 1; rolled back, attempt 2 -> 4, down 420ms",
        "  hint: look",
        "default/web-0: 0 of 1 container recreated, 1 failed, after 9.0s",
    ]


def test_live_reporter() -> None:
    emulator = Emulator(80)
    reporter = LiveRecreate(Screen(emulator.feed, -1), PLAIN)
    reporter.tick()
    side = replace(IDLE, name="side")
    reporter.event(RecreateEvent(recreate=request(at("Creating"), side)))
    reporter.tick()
    assert [line.split()[:2] for line in emulator.text.splitlines()] == [
        ["main", "creating"],
        ["side", "waiting"],
        ["0/2", "containers"],
    ]
    reporter.trouble("gone")
    reporter.tick()
    assert "no connection: gone" in emulator.text
    reporter.event(RecreateEvent(recreate=request(done(IDLE), side)))
    reporter.event(RecreateEvent(recreate=request(done(IDLE), done(side), result="Succeeded", finished_at=NOW)))
    reporter.finish()
    reporter.close()
    assert emulator.text.splitlines() == [
        "✓ main  recreated, attempt 2 → 3, down 420ms",
        "✓ side  recreated, attempt 2 → 3, down 420ms",
        "default/web-0: 2 containers recreated in 9.0s",
    ]
    assert emulator.cursor_visible
