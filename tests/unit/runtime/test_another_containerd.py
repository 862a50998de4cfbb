"""A containerd that is started anew: nothing that was known of the one before is used for the next."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from stokerd.runtime import endpoint, facts
from stokerd.runtime.containerd import Containerd
from stokerd.runtime.endpoint import Found
from tests.unit.runtime.fake_containerd import serving
from tests.unit.runtime.test_containerd import path, quick, running

__all__ = ["path", "quick"]
OTHER = os.getppid()


async def test_one_that_ends_while_it_is_asked_is_asked_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are reached through its process: that was another one's by then, or nobody's."""
    answers = iter([ProcessLookupError("process 7 has ended")])
    real = facts.host_root_of

    def host_root_of(pid: int) -> str:
        for error in answers:
            raise error
        return real(pid)

    monkeypatch.setattr(facts, "host_root_of", host_root_of)
    async with serving(path), running(path) as (runtime, _):
        await asyncio.wait_for(runtime.wait_ready(), 10)
        assert runtime.info.pid == os.getpid()


async def test_one_that_is_another_at_the_end_of_the_questions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Found] = []
    real = endpoint.look

    def look(where: str) -> Found:
        looks.append(real(where))
        return replace(looks[-1], peer_pid=OTHER) if len(looks) == 1 else looks[-1]

    monkeypatch.setattr(endpoint, "look", look)
    async with serving(path), running(path) as (runtime, _):
        await asyncio.wait_for(runtime.wait_ready(), 10)
        assert runtime.info.pid == os.getpid()
        assert len(looks) > 2


async def test_a_channel_that_has_found_the_next_one_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked and answers, so nothing seems to have happened; but another process does."""
    real, pids = endpoint.look, [os.getpid()]
    seen: list[tuple[bool, int]] = []

    async def answers(*_: object) -> bool:
        return True

    def look(where: str) -> Found:
        return replace(real(where), problem="", peer_pid=pids[-1])

    monkeypatch.setattr(endpoint, "look", look)
    monkeypatch.setattr(facts, "host_root_of", lambda _pid: "")
    monkeypatch.setattr(Containerd, "_answers", answers)
    async with running(path) as (runtime, _):
        runtime.on_change(lambda: seen.append((runtime.ready, runtime.info.pid if runtime.ready else 0)))
        async with serving(path):
            await asyncio.wait_for(runtime.wait_ready(), 10)
        pids.append(OTHER)
        async with serving(path):
            async with asyncio.timeout(10):
                while len(seen) < 3:  # noqa: ASYNC110 - told by a plain call
                    await asyncio.sleep(0.01)
    assert seen[:3] == [(True, os.getpid()), (False, 0), (True, OTHER)]
