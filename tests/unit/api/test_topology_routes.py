"""The routes about the topology."""

from __future__ import annotations

from stokerd import errors
from stokerd.topology.room import SwitchedOff
from tests.unit.api.fakes import Api, until
from tests.unit.api.test_routes import ask
from tests.unit.api.test_streams import frames


async def test_the_report_has_a_tag_that_is_its_digest(api: Api) -> None:
    async with api.http.get(api.url + "/v1/topology") as response:
        body, tag = await response.read(), response.headers["ETag"]
        assert (response.status, (await response.json())["node"]) == (200, "node-1")
    for known, status in ((tag, 304), (f'"other", {tag}', 304), (f"W/{tag}", 304), ("*", 304), ('"other"', 200)):
        async with api.http.get(api.url + "/v1/topology", headers={"If-None-Match": known}) as response:
            assert (response.status, response.headers["ETag"]) == (status, tag)
            assert await response.read() == (body if status == 200 else b"")
    api.topology.answer.node = "node-2"
    async with api.http.get(api.url + "/v1/topology", headers={"If-None-Match": tag}) as response:
        assert response.status == 200
        assert response.headers["ETag"] != tag


async def test_load(api: Api) -> None:
    assert await ask(api, "GET", "/v1/topology/load") == {
        "node": "node-1",
        "at": "2026-11-30T12:00:00Z",
        "machine": {},
    }


async def test_events(api: Api) -> None:
    async with api.http.get(f"{api.url}/v1/topology/events") as response:
        assert response.status == 200
        ((name, number, data),) = await frames(response, 1)
        assert (name, number, data["type"]) == ("topology", 1, "topology")
        assert data["report"]["node"] == "node-1"  # type: ignore[index]
        api.topology.tell("nic mlx5_0 port 1")
        ((_, _, data),) = await frames(response, 1)
        assert [change["subject"] for change in data["changes"]] == ["nic mlx5_0 port 1"]  # type: ignore[attr-defined]
        assert "report" not in data
    await until(lambda: api.topology.readers == 0)


async def test_switched_off(api: Api) -> None:
    api.topology.failure = SwitchedOff("the topology is switched off on this node", hint="set topology.mode")
    for path in ("/v1/topology", "/v1/topology/load", "/v1/topology/events"):
        answer = await ask(api, "GET", path, status=409)
        assert (answer["reason"], answer["hint"]) == ("SwitchedOff", "set topology.mode")


async def test_a_stream_that_fails_says_so(api: Api) -> None:
    async with api.http.get(f"{api.url}/v1/topology/events") as response:
        await frames(response, 1)
        await until(lambda: api.topology.readers == 1)
        api.topology.break_off(errors.LimitExceeded("too much"))
        ((name, _, data),) = await frames(response, 1)
        assert (name, data["reason"]) == ("error", "LimitExceeded")


async def test_unknown_parameters_are_refused(api: Api) -> None:
    for path in ("/v1/topology", "/v1/topology/load", "/v1/topology/events"):
        assert (await ask(api, "GET", f"{path}?format=yaml", status=400))["reason"] == "InvalidInput"
