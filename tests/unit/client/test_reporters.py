from __future__ import annotations

import os
from datetime import timedelta

import pytest
from msgspec.structs import replace

from stoker.cli.reporters import LiveReporter, PlainReporter
from stoker.cli.terminal import Screen
from stoker.cli.text import Style
from stoker.objects.images import ItemEvent, ItemStatus, JobCounts, JobEvent, JobStatus
from tests.unit.api.fakes import MIB, NOW, failed, normal, pulling, succeeded
from tests.unit.client.emulator import Emulator


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(*items: ItemStatus) -> JobEvent:
    return JobEvent(job=JobStatus(id="j1", state="Active", counts=JobCounts(desired=len(items)), items=list(items)))


def item(status: ItemStatus) -> ItemEvent:
    return ItemEvent(job="j1", item=status, counts=JobCounts())


def test_plain_lines_at_changes_and_every_ten_seconds() -> None:
    lines: list[str] = []
    clock = Clock()
    reporter = PlainReporter(lines.append, clock)
    waiting = ItemStatus(image="a", reference=normal("a"), phase="Waiting")
    reporter.event(job(waiting, replace(waiting, image="b", reference=normal("b"))))
    for second in range(26):
        clock.now = float(second)
        reporter.event(item(pulling("a", second * 4 * MIB, 100 * MIB)))
        reporter.tick()
    clock.now = 27.0
    reporter.event(item(pulling("a", 100 * MIB, 100 * MIB, unpacked=2)))
    clock.now = 40.0
    reporter.event(item(pulling("a", 100 * MIB, 100 * MIB, unpacked=3)))
    reporter.event(item(replace(succeeded("a", 100 * MIB), finished_at=NOW + timedelta(seconds=40))))
    reporter.event(item(pulling("b", 0, 0)))
    retry = replace(pulling("b", 0, 0), phase="Waiting", reason="Timeout")
    reporter.event(item(retry))
    reporter.event(item(retry))
    reporter.event(item(pulling("b", 0, 0, attempt=2)))
    reporter.trouble("the connection broke")
    reporter.trouble("there is no socket")
    reporter.event(job(waiting, pulling("b", 0, 0, attempt=2)))
    reporter.event(item(failed("b", hint="check the name")))
    reporter.note("a note")
    reporter.finish()
    reporter.close()
    assert lines == [
        "job j1: 2 images",
        "docker.io/library/a:latest: pulling",
        "docker.io/library/a:latest: 40%, 40/100 MiB, 4.0 MiB/s",
        "docker.io/library/a:latest: 80%, 80/100 MiB, 4.0 MiB/s",
        "docker.io/library/a:latest: unpacking",
        "docker.io/library/a:latest: unpacking 3/7",
        "docker.io/library/a:latest: pulled 100 MiB in 40s",
        "docker.io/library/b:latest: pulling",
        "docker.io/library/b:latest: attempt 1 failed, will retry: Timeout",
        "docker.io/library/b:latest: pulling, attempt 2",
        "no connection to stokerd, trying again: the connection broke",
        "stokerd is back",
        "docker.io/library/b:latest: failed: NotFound: no such image (3 attempts)",
        "  hint: check the name",
        "a note",
        "1 of 2 images ready, 1 failed, after 40s",
    ]


def test_live_draws_when_something_changed_and_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    size = [60, 24]
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size(size))
    emulator = Emulator(60)
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        emulator.feed(text)

    clock = Clock()
    reporter = LiveReporter(Screen(write, 1), Style(), clock)
    reporter.event(job(pulling("a", MIB, 4 * MIB)))
    reporter.event(item(pulling("a", 2 * MIB, 4 * MIB)))
    assert written == []
    reporter.tick()
    assert len(written) == 1
    clock.now = 0.5
    reporter.tick()
    assert len(written) == 1
    size[0] = 70
    reporter.tick()
    assert len(written) == 2
    clock.now = 1.6
    reporter.tick()
    assert len(written) == 3
    reporter.trouble("gone")
    reporter.tick()
    assert "no connection: gone" in emulator.text
    reporter.note("a note")
    assert emulator.text.startswith("a note\n")
    reporter.event(item(failed("a", message="no")))
    reporter.finish()
    reporter.close()
    assert emulator.text.splitlines() == [
        "a note",
        "✗ docker.io/library/a:latest  NotFound: no (3 attempts)",
        "0 of 1 image ready, 1 failed, after 2s",
    ]
    assert emulator.cursor_visible


def test_live_shows_what_is_left_when_it_is_closed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((80, 24)))
    emulator = Emulator()
    reporter = LiveReporter(Screen(emulator.feed, 1), Style())
    reporter.event(job(failed("a"), pulling("b", 1, 2)))
    reporter.close()
    assert "✗ docker.io/library/a:latest" in emulator.text
    assert emulator.cursor_visible
