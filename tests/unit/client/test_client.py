"""The client against the real server."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stoker import transport
from stoker.client import Client, ClientError, DaemonUnreachable
from stoker.objects.images import (
    Attempt,
    Event,
    ImageChange,
    ImageStatus,
    ItemEvent,
    JobEvent,
    KeepRequest,
    PinRequest,
    PlanRequest,
    WarmRequest,
)
from stoker.objects.node import Health
from stokerd import errors
from tests.unit.api.fakes import Api, failed, normal, pulling, running_api, succeeded, until


async def test_every_method(api: Api, client: Client) -> None:
    job = await client.warm(WarmRequest(images=["nginx", "busybox"]))
    assert [item.reference for item in job.items] == [normal("nginx"), normal("busybox")]
    assert await client.job(job.id) == job
    assert [listed.id for listed in await client.jobs()] == [job.id]
    assert (await client.cancel(job.id)).state == "Cancelled"
    assert [image.image for image in (await client.plan(PlanRequest(images=["nginx"]))).images] == ["nginx"]
    api.images.images = [ImageStatus(id="sha256:1", references=[normal("nginx")])]
    assert await client.images() == api.images.images
    assert (await client.remove("nginx")).removed == [normal("nginx")]
    assert (await client.remove("nginx", force=True)).removed == [normal("nginx")]
    assert [call for call in api.images.calls if call[0] == "remove"] == [
        ("remove", ("nginx", False)),
        ("remove", ("nginx", True)),
    ]
    pin = await client.pin(PinRequest(image="nginx"))
    assert (await client.pins()).pins == [pin]
    assert await client.unpin("nginx") == pin
    keep = await client.keep(KeepRequest(image="nginx"))
    assert await client.keeps() == [keep]
    assert await client.unkeep("nginx") == keep
    api.images.attempts = [
        Attempt(reference=normal("nginx"), result="Succeeded"),
        Attempt(reference=normal("busybox"), result="Failed"),
    ]
    assert len(await client.history()) == 2
    assert len(await client.history("nginx", limit=5)) == 1
    assert (await client.node()).runtime_name == "containerd"
    assert (await client.health()).ok
    assert (await client.readiness()).ok
    assert "stoker_api_requests_total" in await client.metrics()


async def test_bad_health_is_a_value(api: Api, client: Client) -> None:
    api.node.health_answer = Health(ok=False, message="down")
    api.node.ready_answer = Health(ok=False, message="starting")
    assert (await client.health()).message == "down"
    assert (await client.readiness()).message == "starting"


async def test_odd_names_arrive_as_they_are(api: Api, client: Client) -> None:
    odd = "reg:5000/a b/ü?&=#%2F+:v1@sha256:x"
    await client.remove(odd)
    assert api.images.calls == [("remove", (odd, False))]
    with pytest.raises(ClientError, match=r"there is no job 'a/b%2F\?x'"):
        await client.job("a/b%2F?x")


async def test_ten_thousand_references(client: Client) -> None:
    names = [f"registry.example.com/team/service-{number:05d}:v{number}" * 3 for number in range(10_000)]
    job = await client.warm(WarmRequest(images=names))
    assert [item.image for item in job.items] == names
    events = client.follow(job.id)
    first = await anext(events)
    assert isinstance(first, JobEvent)
    assert first.job == job
    await events.aclose()


async def test_refusals_are_client_errors(api: Api, client: Client) -> None:
    api.images.failures["pin"] = errors.LimitExceeded("pins would hold 11 GiB", hint="the limit is 10 GiB")
    with pytest.raises(ClientError) as caught:
        await client.pin(PinRequest(image="nginx"))
    error = caught.value
    assert (error.reason, error.message, error.hint, error.status) == (
        "LimitExceeded",
        "pins would hold 11 GiB",
        "the limit is 10 GiB",
        429,
    )
    assert str(error) == "pins would hold 11 GiB (the limit is 10 GiB)"
    assert not isinstance(error, DaemonUnreachable)


# ---------------------------------------------------------------------------------------------- follow and watch


async def test_follow(api: Api, client: Client) -> None:
    job = await client.warm(WarmRequest(images=["nginx", "busybox"]))
    api.images.on_follow = lambda job: api.images.update(
        job.id, pulling("nginx", 10, 100), succeeded("nginx"), failed("busybox")
    )
    events = [event async for event in client.follow(job.id)]
    assert [type(event) for event in events] == [JobEvent, ItemEvent, ItemEvent, ItemEvent, JobEvent]
    last = events[-1]
    assert isinstance(last, JobEvent)
    assert (last.job.state, last.job.counts.failed) == ("Failed", 1)


async def test_follow_of_a_job_that_is_over(api: Api, client: Client) -> None:
    api.images.on_warm = api.images.succeed_all
    job = await client.warm(WarmRequest(images=["nginx"]))
    assert [type(event) for event in [event async for event in client.follow(job.id)]] == [JobEvent]


async def test_follow_goes_on_after_a_restart(api: Api, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_FIRST_DELAY", 0.001)
    job = await client.warm(WarmRequest(images=["nginx"]))
    retries: list[tuple[str, float]] = []
    events = client.follow(job.id, on_retry=lambda error, delay: retries.append((error.message, delay)))
    assert isinstance(await anext(events), JobEvent)
    await api.server.stop(1.0)

    waiting = asyncio.create_task(anext(events))
    await until(lambda: len(retries) >= 3)  # the end of the stream, and two tries that find nothing
    await api.restart()
    again = await waiting
    assert isinstance(again, JobEvent)
    assert again.job.state == "Active"
    api.images.update(job.id, succeeded("nginx"))
    rest = [event async for event in events]
    assert isinstance(rest[-1], JobEvent)
    assert rest[-1].job.state == "Succeeded"
    assert "before the end was told" in retries[0][0]
    assert "there is no socket" in retries[1][0]
    assert [delay for _, delay in retries[:3]] == [0.001, 0.002, 0.004]


async def test_follow_waits_for_a_daemon_that_is_stopping(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_FIRST_DELAY", 0.001)
    job = await client.warm(WarmRequest(images=["nginx"]))
    api.server._streams.close()
    retries: list[str] = []
    waiting = asyncio.create_task(
        anext(client.follow(job.id, on_retry=lambda error, delay: retries.append(error.message)))
    )
    await until(lambda: bool(retries))
    assert retries[0] == "stokerd is stopping"
    await api.restart()
    assert isinstance(await waiting, JobEvent)


async def test_follow_loses_patience(api: Api, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_FIRST_DELAY", 0.001)
    job = await client.warm(WarmRequest(images=["nginx"]))
    events = client.follow(job.id, patience=0.02)
    await anext(events)
    await api.server.stop(1.0)
    with pytest.raises(DaemonUnreachable, match="there is no socket"):
        await anext(events)


async def test_a_stream_that_was_quiet_for_longer_than_the_patience_is_taken_up_again(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_FIRST_DELAY", 0.001)
    job = await client.warm(WarmRequest(images=["nginx"]))
    # As much patience as one try takes: whatever passes before the break is longer.
    events = client.follow(job.id, patience=0.001)
    assert isinstance(await anext(events), JobEvent)
    await api.restart()
    again = await anext(events)
    assert isinstance(again, JobEvent)
    assert again.job.state == "Active"
    await events.aclose()


async def test_follow_does_not_retry_what_cannot_get_better(api: Api, client: Client) -> None:
    with pytest.raises(ClientError, match="there is no job") as caught:
        await anext(client.follow("nope"))
    assert caught.value.status == 404
    job = await client.warm(WarmRequest(images=["nginx"]))
    events = client.follow(job.id)
    await anext(events)
    api.images.feeds[job.id][0].put(errors.JournalError("the journal is gone"))
    with pytest.raises(ClientError, match="the journal is gone") as caught:
        await anext(events)
    assert caught.value.reason == "JournalFailed"


async def test_leaving_follow_closes_the_stream(api: Api, client: Client) -> None:
    job = await client.warm(WarmRequest(images=["nginx"]))
    events = client.follow(job.id)
    await anext(events)
    (feed,) = api.images.feeds[job.id]
    await events.aclose()
    await feed.closed.wait()


async def test_watch(api: Api, client: Client) -> None:
    events = client.watch()
    upcoming = asyncio.create_task(anext(events))
    await api.images.entering("watch").wait()
    change = ImageChange(kind="delete", reference=normal("nginx"))
    api.images.watch_feeds[0].put(change)
    assert await upcoming == change
    await api.server.stop(1.0)
    with pytest.raises(StopAsyncIteration):
        await anext(events)


# ---------------------------------------------------------------------------------------------- no daemon


async def test_no_socket() -> None:
    async with Client(Path("/nonexistent/stokerd.sock")) as client:
        with pytest.raises(DaemonUnreachable) as caught:
            await client.jobs()
    assert caught.value.message == "there is no socket /nonexistent/stokerd.sock"
    assert caught.value.hint == "is stokerd running? systemctl status stokerd"
    assert (caught.value.reason, caught.value.status) == ("DaemonUnreachable", 0)


async def test_a_dead_socket() -> None:
    with tempfile.TemporaryDirectory(prefix="stoker-") as name, socket.socket(socket.AF_UNIX) as dead:
        path = Path(name) / "s.sock"
        dead.bind(str(path))
        async with Client(path) as client:
            with pytest.raises(DaemonUnreachable, match="nothing listens on"):
                await client.jobs()
            with pytest.raises(DaemonUnreachable, match="nothing listens on"):
                await anext(client.watch())


@pytest.mark.parametrize(
    ("gid", "hint"),
    [
        (0, "only root may use it: try sudo"),
        (1, "join its group and log in again: sudo usermod -aG daemon $USER"),
        (54321, "join its group and log in again: sudo usermod -aG 54321 $USER"),
        (None, "run as root, or ask for access to the socket's directory"),
    ],
)
def test_no_permission_names_the_group(gid: int | None, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    if gid is not None:
        path.touch()
        os.chown(path, -1, gid)
    error = Client(path)._unreachable(PermissionError(13, "Permission denied"))
    assert error.message == f"no permission to connect to {path}"
    assert error.hint == hint


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Impostor:
    """Something else than stokerd on a socket."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._directory = tempfile.TemporaryDirectory(prefix="stoker-")
        self.path = Path(self._directory.name) / "s.sock"

    async def __aenter__(self) -> Path:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self.path

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        self._directory.cleanup()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        writer.close()


def http(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http("502 Bad Gateway", b"<html>nginx</html>", "text/html"), "HTTP status 502: <html>nginx</html>"),
        (http("500 No", b""), "HTTP status 500: no body"),
        (http("200 OK", b"{}"), "cannot read stokerd's answer to GET /v1/jobs: Expected `array`, got `object`"),
        (http("200 OK", b"\xff"), "cannot read stokerd's answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the connection to stokerd on"),
        (b"", "the connection to stokerd on"),
    ],
)
async def test_answers_that_make_no_sense(answer: bytes, message: str) -> None:
    async with Impostor(answer) as path, Client(path) as client:
        with pytest.raises(ClientError) as caught:
            await client.jobs()
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"event: job\ndata: {}\n\n", "cannot read stokerd's events"),
        (b"event: item\ndata: {oops\n\n", "cannot read stokerd's events"),
        (b"event: error\ndata: oops\n\n", "HTTP status 500: oops"),
    ],
)
async def test_events_that_make_no_sense(body: bytes, message: str) -> None:
    async with Impostor(http("200 OK", body, "text/event-stream")) as path, Client(path) as client:
        with pytest.raises(ClientError) as caught:
            await anext(client.follow("j1"))
    assert caught.value.message.startswith(message)


async def test_events_of_a_newer_daemon_are_passed_over() -> None:
    body = b'event: weather\ndata: {"type": "weather"}\n\nevent: image\ndata: {"type":"image","kind":"create",'
    body += b'"reference":"a","later":1}\n\n'
    async with Impostor(http("200 OK", body, "text/event-stream")) as path, Client(path) as client:
        events = [event async for event in client.watch()]
    assert events == [ImageChange(kind="create", reference="a")]


async def test_a_daemon_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(transport, "_SILENCE_SECONDS", 0.05)
    async with running_api() as api, Client(api.socket) as client:
        api.images.gates["pins"] = asyncio.Event()
        with pytest.raises(DaemonUnreachable, match="does not answer"):
            await client.pins()
        with pytest.raises(DaemonUnreachable, match="does not answer"):
            await anext(client.watch())


async def test_close_twice_and_use_again(api: Api) -> None:
    client = Client(api.socket)
    await client.close()
    assert await client.jobs() == []
    await client.close()
    await client.close()
    assert await client.jobs() == []
    await client.close()


async def consume(events: AsyncIterator[Event]) -> list[Any]:
    return [event async for event in events]


async def test_many_followers_of_one_job(api: Api) -> None:
    async with Client(api.socket) as client:
        job = await client.warm(WarmRequest(images=["nginx"]))
        followers = [asyncio.create_task(consume(client.follow(job.id))) for _ in range(20)]
        await until(lambda: len(api.images.feeds.get(job.id, [])) == 20)
        api.images.update(job.id, succeeded("nginx"))
        results = await asyncio.gather(*followers)
    assert [len(events) for events in results] == [3] * 20
