"""The client's methods about containers, and those about the daemon that came with them, against the real server."""

from __future__ import annotations

import asyncio

import pytest

from stoker import transport
from stoker.client import Client, ClientError, DaemonUnreachable
from stoker.objects.containers import PlannedStep, RecreateEvent, RecreateRequest, RecreateTarget, ReloadResult
from stokerd import errors
from tests.unit.api.fake_containers import busy, container, done, long_id, pod
from tests.unit.api.fakes import Api, until

WEB = "default/web-0"


@pytest.fixture(autouse=True)
def node(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_FIRST_DELAY", 0.001)
    api.containers.all_pods = [pod(WEB, container("main", WEB), container("side", WEB, attempt=3))]


async def recreate(client: Client) -> str:
    request = RecreateRequest(pod=WEB, containers=[RecreateTarget(name="main")])
    return (await client.recreate(request)).id


async def test_every_method(api: Api, client: Client) -> None:
    assert await client.pods() == api.containers.all_pods
    assert (await client.pod(WEB)).info == api.containers.all_pods[0]
    assert await client.containers() == api.containers.all_pods[0].containers
    assert (await client.container(f"web-0/{'side'}")).info.attempt == 3
    assert (await client.container(long_id("default/web-0/main/0")[:8])).info.name == "main"
    request = RecreateRequest(pod="web-0", name="again", all=True)
    status = await client.recreate(request)
    assert [target.name for target in status.containers] == ["main", "side"]
    assert await client.recreate(request) == status
    assert await client.recreates() == [status]
    assert await client.recreate_status("again") == status
    assert (await client.cancel_recreate(status.id)).result == "Cancelled"
    api.containers.steps = [PlannedStep(container="main", action="stop")]
    assert (await client.plan_recreate(request)).steps == api.containers.steps
    api.node.reloaded = ReloadResult(applied=["images.max_parallel"])
    assert await client.reload() == api.node.reloaded
    assert (await client.settings())["images"] == {"max_parallel": 2}
    api.node.logs = ['{"event":"a\\u2028b"}', '{"event":"c\u2028d"}']
    assert await client.logs() == api.node.logs


async def test_odd_names_arrive_as_they_are(api: Api, client: Client) -> None:
    odd = "ns/a b?&=#%2F+:ü"
    with pytest.raises(ClientError, match="there is no pod"):
        await client.pod(odd)
    assert api.containers.calls == [("pod", odd)]


async def test_follow(api: Api, client: Client) -> None:
    request_id = await recreate(client)
    (target,) = api.containers.by_id[request_id].containers

    def play(_status: object) -> None:
        api.containers.update(request_id, busy(target, "Stopping"))
        api.containers.finish(request_id, "Succeeded", done(target))

    api.containers.on_follow = play
    events = [event.recreate async for event in client.follow_recreate(request_id)]
    assert [event.phase for event in events] == ["Recreating", "Recreating", "Completed"]
    assert [event.containers[0].step for event in events] == ["", "Stopping", ""]
    assert [event async for event in client.follow_recreate(request_id)] == [RecreateEvent(recreate=events[-1])]


async def test_follow_goes_on_after_a_restart(api: Api, client: Client) -> None:
    request_id = await recreate(client)
    retries: list[str] = []
    events = client.follow_recreate(request_id, on_retry=lambda error, delay: retries.append(error.message))
    assert (await anext(events)).recreate.phase == "Recreating"
    await api.server.stop(1.0)
    waiting = asyncio.create_task(anext(events))
    await until(lambda: len(retries) >= 2)
    await api.restart()
    assert (await waiting).recreate.phase == "Recreating"
    api.containers.finish(request_id, "Succeeded")
    assert [event.recreate.result async for event in events] == ["Succeeded"]
    assert retries[0] == "stokerd ended the stream before the end was told"
    assert "there is no socket" in retries[1]


async def test_follow_loses_patience_and_does_not_retry_what_cannot_get_better(api: Api, client: Client) -> None:
    with pytest.raises(ClientError, match="there is no recreate") as caught:
        await anext(client.follow_recreate("nope"))
    assert caught.value.status == 404
    request_id = await recreate(client)
    events = client.follow_recreate(request_id)
    await anext(events)
    api.containers.feeds[request_id][0].put(errors.JournalError("the journal is gone"))
    with pytest.raises(ClientError, match="the journal is gone"):
        await anext(events)
    events = client.follow_recreate(request_id, patience=0.02)
    await anext(events)
    await api.server.stop(1.0)
    with pytest.raises(DaemonUnreachable, match="there is no socket"):
        await anext(events)


async def test_leaving_follow_closes_the_stream(api: Api, client: Client) -> None:
    request_id = await recreate(client)
    events = client.follow_recreate(request_id)
    await anext(events)
    (feed,) = api.containers.feeds[request_id]
    await events.aclose()
    await feed.closed.wait()
