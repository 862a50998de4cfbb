"""Server-sent events: format, heartbeats, and who ends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from structlog.testing import capture_logs

from stoker.objects.images import Event, ImageChange, ItemEvent, JobCounts
from stokerd import errors
from tests.unit.api.fakes import Api, pulling, running_api, succeeded, until
from tests.unit.api.feeds import Feed

Frame = tuple[str, int, dict[str, object]]


async def frames(response: aiohttp.ClientResponse, count: int) -> list[Frame]:
    """Read *count* events; comments are left out."""
    found: list[Frame] = []
    while len(found) < count:
        block = (await response.content.readuntil(b"\n\n")).decode()
        if block.startswith(":"):
            continue
        lines = dict(line.split(": ", 1) for line in block.strip().splitlines())
        found.append((lines["event"], int(lines["id"]), json.loads(lines["data"])))
    return found


async def post_job(api: Api, *images: str) -> str:
    async with api.http.post(api.url + "/v1/images/warm", json={"images": list(images)}) as response:
        return str((await response.json())["id"])


async def test_follow_yields_job_items_and_the_end(api: Api) -> None:
    job = await post_job(api, "nginx", "busybox")
    async with api.http.get(f"{api.url}/v1/jobs/{job}/events") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        ((name, number, data),) = await frames(response, 1)
        assert (name, number) == ("job", 1)
        assert data["type"] == "job"
        api.images.update(job, pulling("nginx", 10, 100))
        api.images.update(job, succeeded("nginx"))
        api.images.update(job, succeeded("busybox"))
        rest = await frames(response, 4)
        assert [(name, number) for name, number, _ in rest] == [("item", 2), ("item", 3), ("item", 4), ("job", 5)]
        assert rest[-1][2]["job"]["state"] == "Succeeded"  # type: ignore[index]
        assert await response.content.read() == b""


async def test_follow_of_an_unknown_job_is_404(api: Api) -> None:
    async with api.http.get(f"{api.url}/v1/jobs/nope/events") as response:
        assert response.status == 404
        assert (await response.json())["reason"] == "NotFound"


async def test_line_breaks_stay_inside_one_data_line(api: Api) -> None:
    async with api.http.get(api.url + "/v1/watch") as response:
        await api.images.entering("watch").wait()
        message = "two\nlines\r\nand data: more"
        api.images.watch_feeds[0].put(ImageChange(kind="create", reference="nginx", message=message))
        ((name, _, data),) = await frames(response, 1)
        assert name == "image"
        assert data == {"type": "image", "kind": "create", "reference": "nginx", "message": message}


async def test_a_silent_stream_sends_heartbeats_and_loses_nothing() -> None:
    async with running_api(heartbeat=0.01) as api, api.http.get(api.url + "/v1/watch") as response:
        for _ in range(3):
            assert await response.content.readuntil(b"\n\n") == b": heartbeat\n\n"
        api.images.watch_feeds[0].put(ImageChange(kind="delete", reference="nginx"))
        ((_, number, data),) = await frames(response, 1)
        assert (number, data["kind"]) == (1, "delete")


async def test_a_client_that_goes_away_closes_the_iterator(api: Api) -> None:
    async with api.http.get(api.url + "/v1/watch") as response:
        await api.images.entering("watch").wait()
        (feed,) = api.images.watch_feeds
        await feed.started.wait()
        assert api.registry.get_sample_value("stoker_api_streams") == 1
        assert not feed.closed.is_set()
        response.close()
    await feed.closed.wait()
    await until(lambda: api.registry.get_sample_value("stoker_api_streams") == 0)


async def test_stopping_the_server_ends_streams_cleanly(api: Api) -> None:
    async with api.http.get(api.url + "/v1/watch") as response:
        await api.images.entering("watch").wait()
        (feed,) = api.images.watch_feeds
        await feed.started.wait()
        await api.server.stop(5.0)
        assert feed.closed.is_set()
        assert await response.content.read() == b""


@pytest.mark.parametrize("stalled", [False, True])
async def test_a_slow_client_holds_up_its_own_stream_only(api: Api, stalled: bool) -> None:
    """*stalled*: it never reads again, and the server still can stop."""
    reader, writer = await asyncio.open_unix_connection(str(api.socket), limit=4096)
    writer.write(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
    await api.images.entering("watch").wait()
    (feed,) = api.images.watch_feeds
    total = 2000
    for number in range(total):
        feed.put(ImageChange(kind="update", reference=f"image-{number}", message="x" * 1000))
    before = -1
    while feed.taken != before:
        before = feed.taken
        async with api.http.get(api.url + "/v1/jobs") as other:  # served all the same, and lets the stream move
            assert other.status == 200
    assert 0 < feed.taken < total // 2
    if stalled:
        await api.server.stop(5.0)
        assert feed.closed.is_set()
    else:
        seen = 0
        while seen < total:
            seen += (await reader.readuntil(b"\n\n")).count(b"data: ")
        assert feed.taken == total
    writer.close()
    await writer.wait_closed()


async def test_a_failure_in_the_stream_is_its_last_event(api: Api) -> None:
    async with api.http.get(api.url + "/v1/watch") as response:
        await api.images.entering("watch").wait()
        api.images.watch_feeds[0].put(errors.RuntimeUnavailable("containerd went away", hint="wait"))
        ((name, _, data),) = await frames(response, 1)
        assert name == "error"
        assert data == {"reason": "RuntimeUnavailable", "message": "containerd went away", "hint": "wait"}
        assert await response.content.read() == b""


async def test_a_bug_in_the_stream_is_logged_and_told_by_id(api: Api) -> None:
    with capture_logs() as logs:
        async with api.http.get(api.url + "/v1/watch") as response:
            await api.images.entering("watch").wait()
            api.images.watch_feeds[0].put(ValueError("inner"))
            ((_, _, data),) = await frames(response, 1)
    assert data["reason"] == "Internal"
    assert [entry["error_id"] in str(data["message"]) for entry in logs] == [True]


async def test_streams_are_limited() -> None:
    async with running_api(max_streams=1) as api:
        async with api.http.get(api.url + "/v1/watch") as first:
            assert first.status == 200
            async with api.http.get(api.url + "/v1/watch") as second:
                assert second.status == 429
                assert (await second.json())["reason"] == "LimitExceeded"
            first.close()
        await api.images.watch_feeds[0].closed.wait()
        await until(lambda: api.registry.get_sample_value("stoker_api_streams") == 0)
        async with api.http.get(api.url + "/v1/watch") as third:
            assert third.status == 200


async def test_plain_iterators_without_aclose_are_served(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    class Once:
        def __init__(self) -> None:
            self.events: list[Event] = [ItemEvent(job="j", item=succeeded("nginx"), counts=JobCounts(desired=1))]

        def __aiter__(self) -> AsyncIterator[Event]:
            return self

        async def __anext__(self) -> Event:
            if not self.events:
                raise StopAsyncIteration
            return self.events.pop()

    monkeypatch.setattr(api.images, "watch", Once)
    async with api.http.get(api.url + "/v1/watch") as response:
        assert [name for name, _, _ in await frames(response, 1)] == ["item"]
        assert await response.content.read() == b""


async def test_streams_are_not_in_the_latency_histogram(api: Api) -> None:
    job = await post_job(api, "nginx")
    api.images.update(job, succeeded("nginx"))
    async with api.http.get(f"{api.url}/v1/jobs/{job}/events") as response:
        await response.read()
    labels = {"method": "GET", "route": "/v1/jobs/{id}/events"}
    value = api.registry.get_sample_value
    await until(lambda: value("stoker_api_requests_total", {**labels, "code": "2xx"}) == 1)
    assert value("stoker_api_request_seconds_count", labels) is None


async def test_a_server_that_is_stopping_opens_no_streams(api: Api) -> None:
    api.server._streams.close()
    async with api.http.get(api.url + "/v1/watch") as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        assert (await response.json())["reason"] == "Stopping"


async def test_feeds_note_their_end() -> None:
    feed = Feed[Event]()
    feed.put(None)
    assert [event async for event in feed()] == []
    assert feed.closed.is_set()
