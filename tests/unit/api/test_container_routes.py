"""The routes about pods, containers and recreating, and those about the daemon that came with them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stoker.objects.containers import (
    EnvVar,
    PlannedStep,
    Probe,
    RecreateRequest,
    RecreateStrategy,
    RecreateTarget,
    ReloadResult,
)
from stokerd import errors
from tests.unit.api.fake_containers import busy, container, done, long_id, pod
from tests.unit.api.fakes import Api, until
from tests.unit.api.test_routes import ask
from tests.unit.api.test_streams import frames

WEB = "default/web-0"


@pytest.fixture(autouse=True)
def node(api: Api) -> None:
    api.containers.all_pods = [pod(WEB, container("main", WEB), container("side", WEB, attempt=3)), pod("kube/web-1")]


async def test_pods(api: Api) -> None:
    listed = await ask(api, "GET", "/v1/pods")
    assert [one["name"] for one in listed] == ["web-0", "web-1"]
    assert [one["attempt"] for one in listed[0]["containers"] if "attempt" in one] == [3]
    assert {one["phase"] for one in listed} == {"Ready"}


@pytest.mark.parametrize("name", [WEB, "default%2Fweb-0", "web-0", long_id(WEB)[:7], "uid-of-web-0"])
async def test_one_pod_by_any_name(api: Api, name: str) -> None:
    found = await ask(api, "GET", f"/v1/pods/{name}")
    assert (found["info"]["id"], found["ips"]) == (long_id(WEB), ["10.88.0.4"])


async def test_containers(api: Api) -> None:
    assert [one["name"] for one in await ask(api, "GET", "/v1/containers")] == ["main", "side"]
    found = await ask(api, "GET", "/v1/containers/web-0/side")
    assert (found["info"]["attempt"], found["envNames"]) == (3, ["HOME", "TOKEN"])
    assert "exitCode" not in found
    api.containers.all_pods[0].containers[0].phase = "Exited"
    assert (await ask(api, "GET", "/v1/containers/web-0/main"))["exitCode"] == 0


async def test_names_that_fit_nothing_or_several(api: Api) -> None:
    assert (await ask(api, "GET", "/v1/pods/nope", status=404))["reason"] == "NotFound"
    assert (await ask(api, "GET", "/v1/containers/a/b/c", status=404))["reason"] == "NotFound"
    api.containers.all_pods.append(pod("other/web-0"))
    assert (await ask(api, "GET", "/v1/pods/web-0", status=409))["reason"] == "Conflict"


async def test_recreate(api: Api) -> None:
    wish = {
        "pod": WEB,
        "name": "update",
        "containers": [
            {
                "name": "main",
                "image": "nginx:1.28",
                "env": [{"name": "MODE", "value": "fast"}, {"name": "OLD"}],
                "probe": {"tcpPort": 80, "failureThreshold": 3},
            }
        ],
        "strategy": {"failurePolicy": "Ignore", "minStartedSeconds": 5, "terminationGracePeriodSeconds": 0.5},
        "activeDeadlineSeconds": 60,
    }
    async with api.http.post(api.url + "/v1/recreates", json=wish) as response:
        assert response.status == 201
        status = await response.json()
        assert response.headers["Location"] == "/v1/recreates/r0001"
    assert (status["phase"], status["containers"][0]["phase"]) == ("Recreating", "Pending")
    assert "fast" not in json.dumps(status)
    assert api.containers.calls[-1] == (
        "recreate",
        RecreateRequest(
            pod=WEB,
            name="update",
            containers=[
                RecreateTarget(
                    name="main",
                    image="nginx:1.28",
                    env=[EnvVar(name="MODE", value="fast"), EnvVar(name="OLD")],
                    probe=Probe(tcp_port=80, failure_threshold=3),
                )
            ],
            strategy=RecreateStrategy(
                failure_policy="Ignore", min_started_seconds=5, termination_grace_period_seconds=0.5
            ),
            active_deadline_seconds=60,
        ),
    )
    assert await ask(api, "GET", "/v1/recreates/update") == status
    assert await ask(api, "GET", "/v1/recreates") == [status]
    cancelled = await ask(api, "DELETE", "/v1/recreates/r0001")
    assert (cancelled["phase"], cancelled["result"]) == ("Completed", "Cancelled")
    assert (await ask(api, "DELETE", "/v1/recreates/r0001", status=409))["reason"] == "Conflict"
    assert (await ask(api, "GET", "/v1/recreates/nope", status=404))["reason"] == "NotFound"


WRONG: list[tuple[Any, str]] = [
    ({}, "$: object missing required field `pod`"),
    ({"pod": "a", "contaners": []}, "$: object contains unknown field `contaners`"),
    ({"pod": "a", "containers": [{"name": "a", "env": [{"name": 5}]}]}, "$.containers[0].env[0].name: expected `str`"),
    ({"pod": "a", "strategy": {"failurePolicy": "Retry"}}, "$.strategy.failurePolicy: invalid enum value 'Retry'"),
]


@pytest.mark.parametrize(("body", "message"), WRONG)
async def test_malformed_requests(api: Api, body: Any, message: str) -> None:
    for path in ("/v1/recreates", "/v1/recreates/plan"):
        answer = await ask(api, "POST", path, body, status=400)
        assert answer["reason"] == "InvalidInput"
        assert answer["message"].startswith(message)
    assert api.containers.calls == []


async def test_plan(api: Api) -> None:
    api.containers.steps = [PlannedStep(container="main", action="stop", detail="30 s of grace")]
    plan = await ask(api, "POST", "/v1/recreates/plan", {"pod": WEB, "all": True})
    assert plan["steps"] == [{"container": "main", "action": "stop", "detail": "30 s of grace"}]
    assert api.containers.by_id == {}


async def test_events(api: Api) -> None:
    status = await ask(api, "POST", "/v1/recreates", {"pod": WEB, "containers": [{"name": "main"}]}, status=201)
    (target,) = api.containers.by_id["r0001"].containers
    async with api.http.get(f"{api.url}/v1/recreates/{status['id']}/events") as response:
        assert response.status == 200
        ((name, number, data),) = await frames(response, 1)
        assert (name, number, data["type"]) == ("recreate", 1, "recreate")
        assert data["recreate"] == status
        api.containers.update("r0001", busy(target, "Stopping"))
        api.containers.finish("r0001", "Succeeded", done(target))
        *_, (_, _, last) = await frames(response, 2)
        assert last["recreate"]["result"] == "Succeeded"  # type: ignore[index]
        assert await response.content.read() == b""
    async with api.http.get(f"{api.url}/v1/recreates/nope/events") as response:
        assert response.status == 404


async def test_a_recreate_outlives_its_client(api: Api) -> None:
    gate = api.containers.gates["recreate"] = asyncio.Event()
    asking = asyncio.create_task(ask(api, "POST", "/v1/recreates", {"pod": WEB, "all": True}, status=201))
    await api.containers.entering("recreate").wait()
    asking.cancel()
    await asyncio.wait({asking})
    gate.set()
    await until(lambda: "r0001" in api.containers.by_id)


# ---------------------------------------------------------------------------------------------- the daemon


async def test_reload(api: Api) -> None:
    assert await ask(api, "POST", "/v1/reload") == {}
    api.node.reloaded = ReloadResult(applied=["images.max_parallel"], restart_needed=["api.socket"])
    assert await ask(api, "POST", "/v1/reload") == {
        "applied": ["images.max_parallel"],
        "restartNeeded": ["api.socket"],
    }
    api.node.failure = errors.ConfigError("/etc/stoker/stokerd.toml", ["images.max_parallel: 0 is too small"])
    answer = await ask(api, "POST", "/v1/reload", status=400)
    assert (answer["reason"], "0 is too small" in answer["message"]) == ("InvalidConfig", True)
    async with api.http.get(api.url + "/v1/reload") as response:
        assert response.status == 405


async def test_settings_and_logs(api: Api) -> None:
    assert (await ask(api, "GET", "/v1/settings"))["images"] == {"max_parallel": 2}
    api.node.logs = ['{"event":"a"}', '{"event":"b"}']
    async with api.http.get(api.url + "/v1/logs") as response:
        assert response.content_type == "application/x-ndjson"
        assert [json.loads(line)["event"] for line in (await response.text()).splitlines()] == ["a", "b"]
