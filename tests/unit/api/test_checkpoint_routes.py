"""Checkpoints, clones, commits, pauses and operations over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import aiohttp
import pytest

from stoker.client import Client, ClientError
from stoker.objects.checkpoints import (
    CheckpointRequest,
    CloneFile,
    CloneRequest,
    CommitRequest,
    PauseRequest,
    RestoreRequest,
)
from stoker.objects.containers import EnvVar
from stokerd import errors
from tests.unit.api.fake_checkpoints import clone
from tests.unit.api.fakes import Api

GOLDEN = "cp-20260301-120000-abc123"
SECRET = "hush-hush-5c9a"


async def ask(api: Api, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
    async with api.http.request(method, api.url + path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def begun(api: Api, path: str, body: Any = None) -> Any:
    """Ask for an operation, and return what is answered at once."""
    async with api.http.post(api.url + path, json=body) as response:
        assert response.status == 202, await response.text()
        operation = await response.json()
        assert response.headers["Location"] == f"/v1/operations/{operation['id']}"
    assert operation["phase"] == "Pending"
    return operation


async def test_what_is_asked_for(api: Api) -> None:
    fake = api.checkpoints
    await begun(api, "/v1/checkpoints", {"pod": "web", "containers": ["app"], "stop": True, "timeoutSeconds": 9})
    assert fake.asked("create_checkpoint") == CheckpointRequest(
        pod="web", containers=["app"], stop=True, timeout_seconds=9
    )
    wish = {
        "checkpoint": GOLDEN,
        "count": 3,
        "mode": "lazy",
        "env": [{"name": "A", "value": SECRET}],
        "files": [{"path": "/a", "content": base64.b64encode(b"\x00\xff").decode()}],
        "hook": ["/bin/start"],
    }
    answer = await begun(api, "/v1/clones", wish)
    assert SECRET not in json.dumps(answer)
    assert fake.asked("clone") == CloneRequest(
        checkpoint=GOLDEN,
        count=3,
        mode="lazy",
        env=[EnvVar(name="A", value=SECRET)],
        files=[CloneFile(path="/a", content=b"\x00\xff")],
        hook=["/bin/start"],
    )
    await begun(api, f"/v1/checkpoints/{GOLDEN}/verify")
    await begun(api, f"/v1/checkpoints/{GOLDEN}/restore", {"mode": "eager"})
    assert fake.asked("restore") == (GOLDEN, RestoreRequest(mode="eager"))
    await begun(api, "/v1/commits", {"container": "web/app", "image": "a:b", "compression": "zstd"})
    assert fake.asked("commit") == CommitRequest(container="web/app", image="a:b", compression="zstd")
    paused = await ask(api, "POST", "/v1/pause", {"pod": "default/web"})
    assert paused["containers"][0]["state"] == "Paused"
    assert fake.asked("pause") == PauseRequest(pod="default/web")
    await ask(api, "POST", "/v1/resume", {"pod": "web", "containers": ["app"]})
    assert fake.asked("resume") == PauseRequest(pod="web", containers=["app"])


async def test_what_there_is(api: Api) -> None:
    (one,) = await ask(api, "GET", "/v1/checkpoints")
    assert (one["id"], one["frozenSeconds"], one["memoryBytes"]) == (GOLDEN, 0.042, 2 << 20)
    detail = await ask(api, "GET", f"/v1/checkpoints/{GOLDEN}")
    assert (detail["info"], detail["node"]["criu"]) == (one, "4.2")
    api.checkpoints.clone_list = [clone("clone-a")]
    assert await ask(api, "GET", "/v1/clones") == [await ask(api, "GET", "/v1/clones/clone-a")]
    assert (await ask(api, "DELETE", "/v1/clones/clone-a"))["id"] == "clone-a"
    assert (await ask(api, "DELETE", f"/v1/checkpoints/{GOLDEN}"))[0]["id"] == GOLDEN
    assert await ask(api, "GET", "/v1/checkpoints") == []
    for path in ("/v1/checkpoints/nope", "/v1/clones/nope", "/v1/operations/nope", "/v1/operations/nope/events"):
        assert (await ask(api, "GET", path, status=404))["reason"] == "NotFound"


async def test_an_operation_to_its_end(api: Api) -> None:
    asked = await begun(api, "/v1/checkpoints", {"pod": "web"})
    fake, path = api.checkpoints, f"/v1/operations/{asked['id']}"
    assert await ask(api, "GET", "/v1/operations") == [asked]
    async with api.http.get(f"{api.url}{path}/events") as response:
        assert response.status == 200
        assert await phase(response) == "Pending"
        fake.step(asked["id"], "dumping")
        assert await phase(response) == "Running"
        fake.succeed(fake.operations_by_id[asked["id"]])
        assert await phase(response) == "Succeeded"
        assert await response.content.read() == b""
    assert (await ask(api, "GET", path))["checkpoints"][0]["id"] == GOLDEN
    assert (await ask(api, "DELETE", path))["phase"] == "Succeeded"


async def phase(response: aiohttp.ClientResponse) -> str:
    frame = await asyncio.wait_for(response.content.readuntil(b"\n\n"), 5)
    lines = dict(line.split(": ", 1) for line in frame.decode().strip().split("\n"))
    assert lines["event"] == "operation"
    return str(json.loads(lines["data"])["operation"]["phase"])


async def test_cancelling(api: Api) -> None:
    asked = await begun(api, "/v1/checkpoints", {"pod": "web"})
    cancelled = await ask(api, "DELETE", f"/v1/operations/{asked['id']}")
    assert (cancelled["phase"], cancelled["reason"]) == ("Failed", "Cancelled")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/checkpoints", {}, "$: object missing required field `pod`"),
        ("/v1/checkpoints", {"pod": "a", "podd": 1}, "$: object contains unknown field `podd`"),
        ("/v1/checkpoints", {"pod": "a", "tcp": "maybe"}, "$.tcp: invalid enum value 'maybe'"),
        ("/v1/clones", {"checkpoint": "a", "files": [{"path": "/a", "content": "%"}]}, "$.files[0].content: invalid"),
        ("/v1/commits", {"container": "a"}, "$: object missing required field `image`"),
        ("/v1/pause", [], "$: expected `object`"),
    ],
)
async def test_malformed_requests(api: Api, path: str, body: Any, message: str) -> None:
    answer = await ask(api, "POST", path, body, status=400)
    assert answer["reason"] == "InvalidInput"
    assert message.lower() in answer["message"].lower()
    assert api.checkpoints.calls == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(errors.Conflict("in use by 2"), 409), (errors.RuntimeUnavailable("it is away"), 503)],
)
async def test_refusals(api: Api, error: Exception, status: int) -> None:
    api.checkpoints.failures = {"remove_checkpoint": error, "pause": error}
    await ask(api, "DELETE", f"/v1/checkpoints/{GOLDEN}", status=status)
    await ask(api, "POST", "/v1/pause", {"pod": "web"}, status=status)


async def test_the_client_says_all_of_it(api: Api) -> None:
    api.checkpoints.clone_list = [clone("clone-a"), clone("clone-b")]
    async with Client(api.socket) as client:
        asked = await client.create_checkpoint(CheckpointRequest(pod="web"))
        api.checkpoints.on_follow = api.checkpoints.succeed
        phases = [event.operation.phase async for event in client.follow_operation(asked.id)]
        assert phases == ["Pending", "Succeeded"]
        assert (await client.operation(asked.id)).phase == "Succeeded"
        assert len(await client.operations()) == 1
        assert (await client.checkpoint(GOLDEN)).info == (await client.checkpoints())[0]
        for made in (
            await client.verify_checkpoint(GOLDEN),
            await client.restore(GOLDEN),
            await client.clone(CloneRequest(checkpoint=GOLDEN)),
            await client.commit(CommitRequest(container="a", image="b")),
        ):
            assert (await client.cancel_operation(made.id)).reason == "Cancelled"
        assert (await client.clone_status("clone-a")).phase == "Running"
        assert (await client.remove_clone("clone-a")).id == "clone-a"
        assert len(await client.clones()) == 1
        assert (await client.pause(PauseRequest(pod="web"))).containers[0].state == "Paused"
        assert (await client.resume(PauseRequest(pod="web"))).containers[0].state == "Running"
        assert [each.id for each in await client.remove_checkpoint(GOLDEN)] == [GOLDEN]
        with pytest.raises(ClientError) as caught:
            await client.checkpoint("nope")
        assert (caught.value.reason, caught.value.status) == ("NotFound", 404)
