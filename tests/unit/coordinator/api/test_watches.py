"""Watches by HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec

from stoker.objects.cluster_images import ImagePullJob
from tests.unit.coordinator.api.conftest import ALL_JOBS, JOBS, Api, job, running
from tests.unit.coordinator.store.things import job as made_job


async def lines(response: aiohttp.ClientResponse, count: int) -> list[Any]:
    async with asyncio.timeout(10):
        return [msgspec.json.decode(await response.content.readline()) for _ in range(count)]


def told(events: list[Any]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


async def test_a_watch_tells_what_there_is_and_what_happens(api: Api) -> None:
    await api.call("POST", JOBS, job("a"))
    async with api.admin.get(f"{ALL_JOBS}?watch=1") as response:
        assert told(await lines(response, 1)) == [("ADDED", "a")]
        await api.call("POST", JOBS, job("b"))
        await api.call("DELETE", f"{JOBS}/a")
        events = await lines(response, 2)

    assert told(events) == [("ADDED", "b"), ("DELETED", "a")]
    assert events[0]["object"]["apiVersion"] == "apps.kruise.io/v1beta1"


async def test_a_watch_goes_on_where_another_ended(api: Api) -> None:
    await api.call("POST", JOBS, job("a"))
    revision = (await api.call("GET", ALL_JOBS)).body["metadata"]["resourceVersion"]
    await api.call("POST", JOBS, job("b"))

    async with api.admin.get(f"{ALL_JOBS}?watch=1&resourceVersion={revision}") as response:
        assert told(await lines(response, 1)) == [("ADDED", "b")]


async def test_a_watch_answers_at_once_and_marks_silence(api: Api) -> None:
    await api.call("POST", JOBS, job("a"))
    path = f"{ALL_JOBS}?watch=1&resourceVersion={api.store.revision}&allowWatchBookmarks=true"
    async with api.admin.get(path) as response:
        assert response.status == 200
        (bookmark,) = await lines(response, 1)

    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["resourceVersion"] == str(api.store.revision)


async def test_a_watch_from_too_long_ago_is_gone(api: Api) -> None:
    for number in range(150):
        await api.store.create(made_job(f"j{number}"))

    gone = await api.call("GET", f"{ALL_JOBS}?watch=1&resourceVersion=3")

    assert (gone.status, gone.body["reason"]) == (410, "Expired")


async def test_a_watch_that_is_left_behind_is_told(api: Api) -> None:
    await api.store.create(made_job("a"))
    async with api.admin.get(f"{ALL_JOBS}?watch=1") as response:
        await lines(response, 1)
        for number in range(1000):  # all at once: the watch has no turn in between
            await api.store.patch(ImagePullJob, "a", "default", patch={"metadata": {"labels": {"n": str(number)}}})
        events = await lines(response, 1)

    assert events[-1]["type"] == "ERROR"
    assert events[-1]["object"]["code"] == 410


async def test_a_watch_selects(api: Api) -> None:
    async with api.admin.get(f"{ALL_JOBS}?watch=1&labelSelector=on&fieldSelector=metadata.name=b") as response:
        await api.store.create(made_job("a", labels={"on": "1"}))
        await api.store.create(made_job("b"))
        await api.call("PATCH", f"{JOBS}/b", {"metadata": {"labels": {"on": "1"}}})
        assert told(await lines(response, 1)) == [("ADDED", "b")]


async def test_a_watch_as_server_sent_events(api: Api) -> None:
    await api.call("POST", JOBS, job("a"))
    async with api.admin.get(f"{ALL_JOBS}?watch=1", headers={"Accept": "text/event-stream"}) as response:
        assert response.content_type == "text/event-stream"
        async with asyncio.timeout(10):
            head = [await response.content.readline() for _ in range(3)]

    assert head[:2] == [b"event: ADDED\n", b"id: 1\n"]
    assert head[2].startswith(b'data: {"type":"ADDED"')


async def test_a_watch_ends_when_its_time_is_over(api: Api) -> None:
    async with asyncio.timeout(10):
        done = await api.call("GET", f"{ALL_JOBS}?watch=1&timeoutSeconds=1")

    assert (done.status, done.raw) == (200, b"")


async def test_watches_are_counted_and_limited(tmp_path: Any) -> None:
    async with running(tmp_path, max_watches=1) as api:
        async with api.admin.get(f"{ALL_JOBS}?watch=1&resourceVersion=0") as response:
            await api.store.create(made_job("a"))
            await lines(response, 1)
            assert (await api.call("GET", f"{ALL_JOBS}?watch=1")).status == 429
        async with asyncio.timeout(10):
            while (await api.call("GET", f"{ALL_JOBS}?watch=1&timeoutSeconds=1")).status == 429:
                pass


async def test_a_stop_ends_watches_and_lets_requests_finish(api: Api) -> None:
    async with api.admin.get(f"{ALL_JOBS}?watch=1") as response:
        await api.store.create(made_job("a"))
        await lines(response, 1)
        async with asyncio.timeout(5):
            await api.server.stop(4)
            assert await response.content.read() == b""

    assert not api.settings.socket.exists()


async def test_a_watch_ends_when_its_token_is_revoked(api: Api) -> None:
    token = api.token("viewer")
    async with api.over_tcp(token) as session, session.get(f"{ALL_JOBS}?watch=1") as response:
        await api.store.create(made_job("a"))
        await lines(response, 1)
        api.tokens.revoke("a-viewer")
        (last,) = await lines(response, 1)

    assert (last["type"], last["object"]["code"]) == ("ERROR", 401)
