"""Pages over HTTP: who may see them, and that nothing in them is anything but text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from aiohttp import ClientSession, CookieJar
from prometheus_client import CollectorRegistry

from stoker.objects.cluster_images import ImagePullJob, ImagePullJobSpec, NodeTrouble, PullJobStatus
from stoker.objects.cluster_nodes import Node, NodeStatus
from stoker.objects.cluster_requests import Checkpoint, CheckpointSpec, CheckpointStatus
from stoker.objects.meta import Condition, Object, ObjectMeta
from stoker_coordinator.api.handlers import ASKED
from stoker_coordinator.api.middleware import PageGate
from stoker_coordinator.api.server import ApiServer
from stoker_coordinator.audit import Audit
from stoker_coordinator.auth import Tokens
from stoker_coordinator.controllers.informer import Informer
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.sealing import Sealer
from stoker_coordinator.settings import ApiSettings
from stoker_coordinator.store.memory import MemoryStore
from stoker_coordinator.web.chronicle import Chronicle
from stoker_coordinator.web.live import Changes
from stoker_coordinator.web.pages import COOKIE, PREFIX, PUBLIC, Pages
from tests.unit.coordinator.hypernodes.fabrics import THEN, Plan, all_facts

EVIL = '<img src=x onerror=alert(1)>"onload="x'
PATHS = ("", "nodes", "jobs", "topology", "requests", "events")


class Topology:
    def __init__(self) -> None:
        self.live = Live()
        self.states = ()


class Site:
    """The API with its pages on a loopback port."""

    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore()
        self.informer = Informer(self.store, [Node, ImagePullJob, Checkpoint])
        self.changes, self.topology = Changes(limit=2), Topology()
        self.chronicle = Chronicle(lambda: datetime.now(UTC))
        self.chronicle.quiet = False
        self.informer.hear(self.chronicle.hear)
        self.informer.hear(self.changes.hear)
        self.tokens = Tokens(directory / "tokens.json")
        self.audit = directory / "audit.log"
        pages = Pages(
            self.informer,
            self.topology,
            lambda node: EVIL,
            self.chronicle,
            self.changes,
            authenticate=lambda header: self.tokens.authenticate(header, datetime.now(UTC)),
            who=lambda request: request[ASKED].who,
            clock=lambda: datetime.now(UTC),
        )
        self.api = ApiServer(
            ApiSettings(listen="127.0.0.1:0", socket=directory / "api.sock", group=""),
            self.store,
            tokens=self.tokens,
            sealer=Sealer.load(directory / "seal.key"),
            audit=Audit(self.audit),
            registry=CollectorRegistry(),
            version="0",
            routes=pages.routes(),
            gate=PageGate(PREFIX, COOKIE, PUBLIC),
            streams=(self.changes.streams,),
        )

    def token(self, role: str = "viewer") -> str:
        return self.tokens.create(f"me-{role}", role)[1]  # type: ignore[arg-type]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.api.port}/ui/{path}"

    async def has(self, *objects: Object) -> None:
        for each in objects:
            await self.store.create(each)
        async for event in self.store.watch([], since=0):
            if event.revision >= self.store.revision:
                break
        await asyncio.sleep(0)

    @asynccontextmanager
    async def signed_in(self, role: str = "viewer") -> AsyncIterator[ClientSession]:
        jar = CookieJar(unsafe=True)
        async with ClientSession(cookie_jar=jar) as session:
            async with session.post(self.url("login"), data={"token": self.token(role)}) as answer:
                assert str(answer.url) == self.url("")
            yield session


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.api.start()
    following = asyncio.create_task(made.informer.run())
    yield made
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await made.api.stop(1)


@pytest.mark.parametrize("path", [*PATHS, "nodes/x", "topology.svg", "live"])
async def test_who_has_no_token_is_sent_to_sign_in(site: Site, path: str) -> None:
    async with ClientSession() as session, session.get(site.url(path), allow_redirects=False) as answer:
        assert answer.status == 303
        assert answer.headers["Location"].startswith("/ui/login?next=/ui/")
        assert await answer.text() == ""


async def test_signing_in_and_out(site: Site) -> None:
    async with site.signed_in() as session:
        async with session.get(site.url("nodes")) as answer:
            assert answer.status == 200
            assert "me-viewer (viewer)" in await answer.text()
        cookie = next(iter(session.cookie_jar))
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/ui/")
        async with session.post(site.url("logout")) as answer:
            assert str(answer.url).startswith(site.url("login"))
        async with session.get(site.url("nodes")) as answer:
            assert "/ui/login" in str(answer.url)


async def test_a_revoked_token_shows_nothing_more(site: Site) -> None:
    async with site.signed_in() as session:
        site.tokens.revoke("me-viewer")
        async with session.get(site.url("nodes")) as answer:
            assert "/ui/login" in str(answer.url)


async def test_a_wrong_token_is_refused_and_put_on_record(site: Site) -> None:
    data = {"token": "stoker-api.nonsense"}
    async with ClientSession() as session, session.post(site.url("login"), data=data) as answer:
        assert answer.status == 401
        assert "not known here" in await answer.text()
        assert "nonsense" not in await answer.text()
    assert '"code":401' in site.audit.read_text()
    assert "nonsense" not in site.audit.read_text()


@pytest.mark.parametrize(
    "goal", ["https://evil.example/", "//evil.example", "/ui//evil.example", "/ui/\\evil", "/apis", "x"]
)
async def test_signing_in_leads_nowhere_else(site: Site, goal: str) -> None:
    data = {"token": site.token(), "next": goal}
    async with ClientSession() as session, session.post(site.url("login"), data=data, allow_redirects=False) as answer:
        assert answer.headers["Location"] == "/ui/"


async def test_pages_say_what_browsers_may_do_with_them(site: Site) -> None:
    async with site.signed_in() as session:
        for path in (*PATHS, "static/app.js", "login"):
            async with session.get(site.url(path)) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


def live_parts(text: str) -> list[str]:
    """Return what of a page could run: handlers, scripts and styles within it, images from elsewhere."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            found.extend(f"{tag} {name}" for name in given if name.startswith("on") or name == "style")
            if (tag == "script" and given.get("src") != "/ui/static/app.js") or tag in {"iframe", "object", "base"}:
                found.append(tag)
            if tag == "img" and not str(given.get("src")).startswith("/ui/static/"):
                found.append(f"img {given.get('src')}")

    Reader().feed(text)
    return found


def test_what_could_run_is_found() -> None:
    assert live_parts(f"<p>{EVIL}</p><script>1</script><b style=x>") == ["img onerror", "img x", "script", "b style"]


async def test_names_are_text_and_nothing_else(site: Site) -> None:
    bad = Condition(type="Ready", status="False", message=EVIL)
    job = ImagePullJob(
        metadata=ObjectMeta(name="job", namespace="ns"),
        spec=ImagePullJobSpec(image=EVIL),
        status=PullJobStatus(desired=1, failed=1, message=EVIL, troubles=(NodeTrouble("n1", EVIL, EVIL, EVIL),)),
    )
    await site.has(
        Node(
            metadata=ObjectMeta(name="n1"), status=NodeStatus(conditions=(bad,), runtime_name=EVIL, addresses=(EVIL,))
        ),
        job,
        Checkpoint(
            metadata=ObjectMeta(name="cp", namespace="ns"),
            spec=CheckpointSpec(pod_name=EVIL),
            status=CheckpointStatus(checkpoint_id=EVIL, message=EVIL, node_name=EVIL),
        ),
    )
    for facts in all_facts(Plan(racks=1, nodes_per_rack=1, rails=1)):
        site.topology.live.put(facts)
    site.topology.live.settle(THEN)
    more = (
        "nodes/n1",
        "jobs/ImagePullJob/ns/job",
        f"nodes?q={EVIL}",
        f"topology?node={EVIL}&switch={EVIL}",
        f"nodes/{EVIL}",
    )
    async with site.signed_in() as session:
        for path in (*PATHS, *more):
            async with session.get(site.url(path)) as answer:
                text = await answer.text()
                assert not live_parts(text), path


async def test_what_is_not_there_is_not_found(site: Site) -> None:
    async with site.signed_in() as session:
        for path in (
            "nodes/none",
            "jobs/ImagePullJob/ns/none",
            "jobs/Nonsense/ns/x",
            "static/../pages.py",
            "topology.txt?format=x",
        ):
            async with session.get(site.url(path)) as answer:
                assert answer.status == 404, path


async def test_open_pages_hear_what_has_changed(site: Site) -> None:
    async with site.signed_in() as session, session.get(site.url("live")) as stream:
        assert (await stream.content.readline()).startswith(b":")
        await site.has(Node(metadata=ObjectMeta(name="n1")))
        async with asyncio.timeout(10):
            while not (line := await stream.content.readline()).startswith(b"data:"):
                continue
        assert line == b"data: nodes\n"


async def test_only_so_many_pages_are_followed(site: Site) -> None:
    async with site.signed_in() as session:
        streams = [await session.get(site.url("live")) for _ in range(2)]
        for stream in streams:
            assert (await stream.content.readline()).startswith(b":")
        async with session.get(site.url("live")) as answer:
            assert answer.status == 503
        for stream in streams:
            stream.close()


async def test_a_page_that_is_open_does_not_hold_up_the_end(site: Site) -> None:
    async with site.signed_in() as session, session.get(site.url("live")) as stream:
        assert (await stream.content.readline()).startswith(b":")
        began = asyncio.get_running_loop().time()
        await site.api.stop(30)
        assert asyncio.get_running_loop().time() - began < 10
        assert await stream.content.read() == b"\n"
