"""The coordinator's pages in a real browser: what people see, by keyboard and on a phone; nothing from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser as Chromium
from playwright.async_api import Page, Request, async_playwright, expect

from stoker.objects.cluster_nodes import Node, NodeStatus
from stoker.objects.meta import Condition, ObjectMeta
from stoker_coordinator.controllers.fabric_memory import FabricMemory
from stoker_coordinator.store.base import Limits
from stoker_coordinator.store.sqlite import SqliteStore
from tests.rig.browser import Browser
from tests.rig.coordinator import Coordinator
from tests.unit.coordinator.hypernodes.fabrics import Plan, all_facts

expect.set_options(timeout=15_000)

JOB = {
    "apiVersion": "apps.kruise.io/v1beta1",
    "kind": "ImagePullJob",
    "metadata": {"name": "server", "namespace": "ai"},
    "spec": {"image": "registry.example/ai/server:0.9", "parallelism": "50%"},
}


async def _lay_out(state: Path) -> None:
    """Let there be eight nodes that were here before, one of them with a cable out."""
    now = datetime.now(UTC)
    store, memory = SqliteStore(state, Limits()), FabricMemory(state / "fabric.db")
    await store.open()
    await memory.open()
    facts = all_facts(Plan(racks=2, nodes_per_rack=4, rails=2))
    broken = replace(facts[5].ports[0], state="down", reasons=("no carrier",), since=now)
    facts[5] = replace(facts[5], ports=(broken, *facts[5].ports[1:]))
    for each in facts:
        ready = Condition(type="Ready", status="True", last_transition_time=now)
        status = NodeStatus(connected=True, last_seen=now, conditions=(ready,), runtime_name="containerd")
        await store.create(Node(metadata=ObjectMeta(name=each.name), status=status))
    await memory.keep(facts)
    await memory.close()
    await store.close()


@pytest.fixture(scope="module")
def coordinator(rig: Path) -> Iterator[Coordinator]:
    made = Coordinator(rig / "web", settings={"link": {"silent_after": "10m", "dropped_after": "20m"}})
    made.state.mkdir()
    asyncio.run(_lay_out(made.state))
    made.start()
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def browser(rig: Path) -> Iterator[Browser]:
    with Browser() as made:
        yield made


class Visit:
    """Somebody who looks at pages; ``elsewhere`` and ``complaints`` should stay empty."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        page.on("request", self._asked)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.base}/", "about:")):
            self.elsewhere.append(request.url)

    async def go(self, path: str) -> None:
        await self.page.goto(f"{self.base}/ui/{path}")


@asynccontextmanager
async def visit(
    browser: Browser, coordinator: Coordinator, *, width: int = 1280, token: str = "", dark: bool = False
) -> AsyncIterator[Visit]:
    async with async_playwright() as driver:
        chromium: Chromium = await driver.chromium.connect_over_cdp(browser.url)
        context = await chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(15_000)
        if token:
            cookie = {"name": "stoker_token", "value": token, "url": f"{coordinator.url}/ui/"}
            await context.add_cookies([cookie])  # type: ignore[list-item]
        made = Visit(await context.new_page(), coordinator.url)
        yield made
        await context.close()
        assert made.elsewhere == []
        assert made.complaints == []


async def test_signing_in_looking_around_and_what_happens_meanwhile(browser: Browser, coordinator: Coordinator) -> None:
    token = await asyncio.to_thread(coordinator.token, "viewer")
    async with visit(browser, coordinator) as here:
        page = here.page
        await here.go("nodes")
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        await page.get_by_label("Token").fill(token)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
        await expect(page.locator("tbody tr")).to_have_count(8)

        await page.get_by_role("link", name="Overview").click()
        await expect(page.get_by_role("status")).to_have_text("live")
        await expect(page.get_by_text("No image jobs.")).to_be_visible()
        await asyncio.to_thread(coordinator.apply, JOB)
        row = page.get_by_role("row", name="ai/server")
        await expect(row).to_be_visible()
        await expect(row.get_by_role("progressbar")).to_be_visible()
        await row.get_by_role("link").click()
        await expect(page.get_by_role("heading", name="ai/server")).to_be_visible()
        await expect(page.get_by_text("registry.example/ai/server:0.9")).to_be_visible()


async def test_the_picture_has_its_colours_and_says_why(browser: Browser, coordinator: Coordinator) -> None:
    token = await asyncio.to_thread(coordinator.token, "viewer")
    async with visit(browser, coordinator, token=token) as here:
        page = here.page
        await here.go("topology")
        picture = page.locator("figure svg")
        await expect(picture).to_be_visible()
        await expect(picture).to_contain_text("bad link")
        # A style that the policy forbids would leave everything black.
        colour = await picture.locator(".hn-bg").evaluate("each => getComputedStyle(each).fill")
        assert colour == "rgb(255, 255, 255)"
        await expect(page.get_by_role("row", name="n00005 mlx5_0/1")).to_contain_text("no carrier")
        await page.get_by_label("Node", exact=True).fill("n00005")
        await page.get_by_label("Switch", exact=True).fill("leaf-001-0")
        await page.get_by_role("button", name="Explain").click()
        await expect(page.locator(".edges li").first).to_contain_text("leaf-001-0")


async def test_everything_fits_on_a_phone_in_the_dark(browser: Browser, coordinator: Coordinator) -> None:
    token = await asyncio.to_thread(coordinator.token, "viewer")
    async with visit(browser, coordinator, width=390, token=token, dark=True) as here:
        for path in ("", "nodes", "jobs", "topology", "requests", "events", "nodes/n00005"):
            await here.go(path)
            assert await here.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
            background = await here.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == "rgb(18, 24, 31)"


async def test_the_keyboard_is_enough(browser: Browser, coordinator: Coordinator) -> None:
    token = await asyncio.to_thread(coordinator.token, "viewer")
    async with visit(browser, coordinator, token=token) as here:
        page = here.page
        await here.go("nodes")
        await page.keyboard.press("Tab")
        await expect(page.get_by_text("Skip to content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("searchbox")).to_be_focused()
        await page.keyboard.type("n00005")
        await page.keyboard.press("Enter")
        await expect(page.locator("tbody tr")).to_have_count(1)
        link = page.get_by_role("link", name="n00005")
        await link.focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="n00005", exact=True)).to_be_visible()


async def test_a_coordinator_that_comes_back_is_found_again(browser: Browser, coordinator: Coordinator) -> None:
    token = await asyncio.to_thread(coordinator.token, "viewer")
    async with visit(browser, coordinator, token=token) as here:
        await here.go("")
        badge = here.page.get_by_role("status")
        await expect(badge).to_have_text("live")
        await asyncio.to_thread(coordinator.kill)
        await expect(badge).to_have_text("connecting …")
        await asyncio.to_thread(coordinator.start)
        await expect(badge).to_have_text("live", timeout=20_000)
        here.complaints.clear()  # of the connection that broke
