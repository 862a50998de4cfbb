"""The inventory: whoever asks is answered by what is there, however late the events are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stokerd.errors import NotFound
from tests.unit.containers.house import House
from tests.unit.images.virtual import virtual


@virtual
async def test_what_was_made_this_moment_is_found_before_its_event_has_come(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.pod("old", "app")
        await asyncio.sleep(5)
        await house.service.pods()
        new = house.pod("new", "app")
        assert (await house.recreated(new, "app")).result == "Succeeded"
        newer = house.pod("newer", "app")
        assert (await house.service.pod(newer)).info.name == "newer"
        newest = house.pod("newest", "app")
        container = house.running(newest, "app")
        assert (await house.service.container(container.id)).info.pod == "newest"


@virtual
async def test_what_is_nowhere_is_not_found(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.pod("web", "app")
        await asyncio.sleep(5)
        with pytest.raises(NotFound):
            await house.service.pod("other")
        with pytest.raises(NotFound):
            await house.service.container("other")
