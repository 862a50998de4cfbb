"""Every route, against a real server on a real socket."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import Gauge

from stoker.objects.images import Attempt, ImageStatus, KeepRequest, PinRequest, PlanRequest, WarmRequest
from stoker.objects.node import Health
from tests.unit.api.fakes import NOW, Api, normal


async def ask(api: Api, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
    async with api.http.request(method, api.url + path, json=body) as response:
        assert response.status == status, await response.text()
        assert response.content_type == "application/json"
        return await response.json()


async def test_health_and_readiness(api: Api) -> None:
    assert await ask(api, "GET", "/healthz") == {"ok": True, "parts": {"runtime": "ok"}}
    assert await ask(api, "GET", "/readyz") == {"ok": True}
    api.node.health_answer = Health(ok=False, message="containerd does not answer", parts={"runtime": "down"})
    api.node.ready_answer = Health(ok=False, message="reconciling")
    assert (await ask(api, "GET", "/healthz", status=503))["parts"] == {"runtime": "down"}
    assert (await ask(api, "GET", "/readyz", status=503))["message"] == "reconciling"


async def test_head_is_answered_where_get_is(api: Api) -> None:
    async with api.http.head(api.url + "/healthz") as response:
        assert response.status == 200


async def test_node_info(api: Api) -> None:
    info = await ask(api, "GET", "/v1/node")
    assert info["runtimeVersion"] == "1.7.24"
    assert info["capabilities"][1] == {"name": "lazy-restore", "available": False, "detail": "criu is not installed"}


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain", ""),
        ("*/*", "text/plain", ""),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text", "# EOF\n"),
    ],
)
async def test_metrics_in_the_format_asked_for(api: Api, accept: str, content_type: str, end: str) -> None:
    Gauge("stoker_pinned_bytes", "of the rest of the daemon", registry=api.registry).set(7)
    async with api.http.get(api.url + "/metrics", headers={"Accept": accept}) as response:
        text = await response.text()
        assert response.status == 200
        assert response.content_type == content_type
    assert "stoker_pinned_bytes 7.0" in text
    assert text.endswith(end)


async def test_requests_are_counted_by_route_template(api: Api) -> None:
    await ask(api, "GET", "/v1/jobs/nope", status=404)
    await ask(api, "GET", "/v1/jobs/neither", status=404)
    await ask(api, "GET", "/no/such/path", status=404)
    async with api.http.request("PATCH", api.url + "/v1/jobs") as response:
        assert response.status == 405
    value = api.registry.get_sample_value
    labels = {"method": "GET", "route": "/v1/jobs/{id}", "code": "4xx"}
    assert value("stoker_api_requests_total", labels) == 2
    assert value("stoker_api_requests_total", {"method": "GET", "route": "unmatched", "code": "4xx"}) == 1
    assert value("stoker_api_requests_total", {"method": "other", "route": "unmatched", "code": "4xx"}) == 1
    assert value("stoker_api_request_seconds_count", {"method": "GET", "route": "/v1/jobs/{id}"}) == 2


async def test_warm_and_jobs(api: Api) -> None:
    wish = {
        "images": ["nginx:1.27", "busybox"],
        "name": "base",
        "policy": "Always",
        "priority": 5,
        "attempts": 2,
        "timeoutSeconds": 60,
        "pinSeconds": 0,
        "auths": [{"registry": "docker.io", "username": "me", "password": "hush"}],
    }
    async with api.http.post(api.url + "/v1/images/warm", json=wish) as response:
        assert response.status == 201
        job = await response.json()
        assert response.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert [item["reference"] for item in job["items"]] == [normal("nginx:1.27"), normal("busybox")]
    (call,) = api.images.calls
    request = call[1]
    assert isinstance(request, WarmRequest)
    assert (request.policy, request.priority, request.attempts) == ("Always", 5, 2)
    assert (request.timeout_seconds, request.pin_seconds) == (60, 0)
    assert request.auths[0].password == "hush"

    assert await ask(api, "GET", f"/v1/jobs/{job['id']}") == job
    (listed,) = await ask(api, "GET", "/v1/jobs")
    assert listed == {key: value for key, value in job.items() if key != "items"}
    cancelled = await ask(api, "DELETE", f"/v1/jobs/{job['id']}")
    assert cancelled["state"] == "Cancelled"
    assert cancelled["counts"] == {"desired": 2, "cancelled": 2}


async def test_plan(api: Api) -> None:
    plan = await ask(api, "POST", "/v1/images/plan", {"images": ["nginx"]})
    assert plan["images"][0]["reference"] == normal("nginx")
    assert api.images.calls == [("plan", PlanRequest(images=["nginx"]))]


async def test_images(api: Api) -> None:
    api.images.images = [ImageStatus(id="sha256:1", references=[normal("nginx")], size=5, last_warmed_at=NOW)]
    assert await ask(api, "GET", "/v1/images") == [
        {"id": "sha256:1", "references": [normal("nginx")], "size": 5, "lastWarmedAt": "2026-03-01T12:00:00Z"}
    ]


@pytest.mark.parametrize(
    ("query", "force"), [("", False), ("&force=1", True), ("&force=true", True), ("&force=0", False)]
)
async def test_remove(api: Api, query: str, force: bool) -> None:
    result = await ask(api, "DELETE", f"/v1/images?image=nginx:1.27%40x{query}")
    assert result["freedBytes"] == 512 * 1024**2
    assert api.images.calls == [("remove", ("nginx:1.27@x", force))]


async def test_pins(api: Api) -> None:
    pin = await ask(api, "PUT", "/v1/pins", {"image": "nginx", "seconds": 60})
    assert pin["verified"] is True
    assert api.images.calls[-1] == ("pin", PinRequest(image="nginx", seconds=60))
    assert (await ask(api, "GET", "/v1/pins"))["pins"] == [pin]
    assert await ask(api, "DELETE", "/v1/pins?image=nginx") == pin
    assert (await ask(api, "DELETE", "/v1/pins?image=nginx", status=404))["reason"] == "NotFound"


async def test_keeps(api: Api) -> None:
    keep = await ask(api, "PUT", "/v1/keeps", {"image": "nginx", "policy": "Always", "priority": 3})
    assert api.images.calls[-1] == ("keep", KeepRequest(image="nginx", policy="Always", priority=3))
    assert await ask(api, "GET", "/v1/keeps") == [keep]
    assert await ask(api, "DELETE", "/v1/keeps?image=nginx") == keep
    assert (await ask(api, "DELETE", "/v1/keeps?image=nginx", status=404))["reason"] == "NotFound"


async def test_history(api: Api) -> None:
    api.images.attempts = [
        Attempt(reference=normal(image), attempt=1, result="Succeeded") for image in ("nginx", "busybox", "nginx")
    ]
    assert len(await ask(api, "GET", "/v1/history")) == 3
    assert len(await ask(api, "GET", "/v1/history?image=nginx&limit=1")) == 1
    assert api.images.calls[-1] == ("history", ("nginx", 1))


async def test_ten_thousand_references_in_one_request(api: Api) -> None:
    names = [f"registry.example.com/team/service-{number:05d}:v{number}" for number in range(10_000)]
    job = await ask(api, "POST", "/v1/images/warm", {"images": names}, status=201)
    assert [item["image"] for item in job["items"]] == names
    assert job["counts"]["desired"] == 10_000
