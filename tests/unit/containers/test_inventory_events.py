"""The inventory and the runtime's events: current, cheap, and never silently old."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stokerd.errors import RuntimeUnavailable
from stokerd.runtime.pod_types import ContainerEvent
from tests.unit.containers.house import House
from tests.unit.images.virtual import virtual


def listings(house: House) -> int:
    return house.runtime.calls["cri.ListContainers"]


@virtual
async def test_while_nothing_happens_nothing_is_listed(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.pod("web", "app", "side")
        await asyncio.sleep(5)
        (pod,) = await house.service.pods()
        assert [each.name for each in pod.containers] == ["app", "side"]
        before = listings(house)
        for _ in range(10):
            await house.service.containers()
        assert listings(house) == before


@virtual
async def test_what_happens_is_seen_by_whoever_asks_next(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app", "side")
        await asyncio.sleep(5)
        await house.service.pods()
        house.runtime.end(house.running(pod, "app").id)
        await asyncio.sleep(0.01)
        assert [each.phase for each in await house.service.containers()] == ["Exited", "Running"]
        house.pod("other", "app")
        await asyncio.sleep(0.01)
        assert [each.name for each in await house.service.pods()] == ["other", "web"]
        await house.runtime.pods.remove(pod)
        await asyncio.sleep(0.01)
        assert [each.name for each in await house.service.pods()] == ["other"]


@virtual
async def test_without_containerd_nothing_old_is_shown(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        await asyncio.sleep(5)
        await house.service.pods()
        house.runtime.crash()
        with pytest.raises(RuntimeUnavailable):
            await house.service.pods()
        house.runtime.end(house.running(pod, "app").id)
        house.runtime.restart()
        assert [each.phase for each in await house.service.containers()] == ["Exited"]
        await asyncio.sleep(5)
        before = listings(house)
        await house.service.containers()
        await house.service.containers()
        assert listings(house) <= before + 1


@virtual
async def test_an_event_that_was_lost_is_made_up_for(tmp_path: Path) -> None:
    async with House(tmp_path, resync_interval=20) as house:
        pod = house.pod("web", "app")
        await asyncio.sleep(5)
        await house.service.pods()
        deliver, house.runtime.node.on_event = house.runtime.node.on_event, lambda event: None
        house.runtime.end(house.running(pod, "app").id)
        house.runtime.node.on_event = deliver
        assert [each.phase for each in await house.service.containers()] == ["Running"]
        await asyncio.sleep(21)
        assert [each.phase for each in await house.service.containers()] == ["Exited"]


@virtual
async def test_an_event_that_names_no_pod_concerns_everything(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        await asyncio.sleep(5)
        await house.service.pods()
        deliver, house.runtime.node.on_event = house.runtime.node.on_event, lambda event: None
        container = house.running(pod, "app").id
        house.runtime.end(container)
        house.runtime.node.on_event = deliver
        deliver(ContainerEvent("stopped", container))
        await asyncio.sleep(0.01)
        assert [each.phase for each in await house.service.containers()] == ["Exited"]


@virtual
async def test_details_are_asked_for(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        pod = house.pod("web", "app")
        found = await house.service.pod("web")
        assert (found.info.id, found.hostname, len(found.ips)) == (pod, "web", 1)
        detail = await house.service.container("web/app")
        assert detail.info.id == house.running(pod, "app").id
        assert detail.pid > 0
