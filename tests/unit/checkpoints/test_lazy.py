"""The helpers that bring memory after the start: found again, told from others, ended."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from stokerd.checkpoints import lazy


async def test_a_helper_is_told_from_what_got_its_number(tmp_path: Path) -> None:
    work = str(tmp_path)
    script = "import time; time.sleep(60)"
    helper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, "lazy-pages", work, start_new_session=True
    )
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", script, "other", start_new_session=True)
    try:
        assert lazy.is_helper(helper.pid, work)
        assert not lazy.is_helper(helper.pid, f"{work}/other")
        assert not lazy.is_helper(other.pid, work)
        await asyncio.wait_for(lazy.ended(other.pid, work), 30)  # it is none, so there is none
        waiting = asyncio.create_task(lazy.ended(helper.pid, work))
        lazy.kill(other.pid, work)
        lazy.kill(helper.pid, work)
        await asyncio.wait_for(waiting, 30)
        assert await helper.wait() == -9
        assert other.returncode is None
    finally:
        other.kill()
        await other.wait()
    lazy.kill(helper.pid, work)
    await asyncio.wait_for(lazy.ended(helper.pid, work), 30)


def test_how_it_ended(tmp_path: Path) -> None:
    assert lazy.exit_status(tmp_path) is None
    (tmp_path / "exit").write_text("137\n")
    assert lazy.exit_status(tmp_path) == 137
    (tmp_path / "exit").write_text("")
    assert lazy.exit_status(tmp_path) is None


def test_cgroups_are_beneath_containerds_own() -> None:
    found = lazy.cgroups_of(os.getpid())
    assert all(each.startswith("/sys/fs/cgroup") and each.endswith("/stoker-helpers") for each in found)
    assert lazy.cgroups_of(0) == []
