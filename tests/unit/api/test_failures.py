"""What a client is told when something is wrong."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from stokerd import errors
from stokerd.api.calls import Deadlines
from stokerd.api.errors import failure_of, status_of
from tests.unit.api.fakes import Api, running_api, until


class DiskTooSmall(errors.StokerError):
    reason: ClassVar[str] = "DiskTooSmall"


class RegistryFailure(errors.StokerError):
    reason: ClassVar[str] = "RegistryUnreachable"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RegistryFailure("x"), 502),
        (errors.InvalidInput("x"), 400),
        (errors.ConfigError("f", ["x"]), 400),
        (errors.NotFound("x"), 404),
        (errors.Conflict("x"), 409),
        (errors.AlreadyRunning("x"), 409),
        (errors.LimitExceeded("x"), 429),
        (errors.RuntimeUnavailable("x"), 503),
        (errors.RuntimeTimeout("x"), 504),
        (errors.RuntimeNotFound("x"), 404),
        (errors.RuntimeAlreadyExists("x"), 409),
        (errors.RuntimeUnsupported("x"), 501),
        (errors.RuntimeNoSpace("x"), 507),
        (DiskTooSmall("x"), 507),
        (errors.RuntimeInvalid("x"), 500),
        (errors.RuntimeFailure("x"), 500),
        (errors.JournalError("x"), 500),
        (errors.StokerError("x"), 500),
    ],
)
async def test_every_family_has_its_status(api: Api, error: errors.StokerError, status: int) -> None:
    api.images.failures["warm"] = type(error)("what failed", hint="what to do") if status != 400 else error
    async with api.http.post(api.url + "/v1/images/warm", json={"images": ["nginx"]}) as response:
        body = await response.json()
        assert response.status == status == status_of(error)
        assert body["reason"] == error.reason
        assert ("Retry-After" in response.headers) == (status == 503)
    if status != 400:
        assert body == {"reason": error.reason, "message": "what failed", "hint": "what to do"}


async def test_a_bug_is_logged_once_and_told_by_its_id_only(api: Api) -> None:
    api.images.failures["pins"] = ZeroDivisionError("the secret inside")
    with capture_logs() as logs:
        async with api.http.get(api.url + "/v1/pins") as response:
            body = await response.json()
    assert response.status == 500
    (entry,) = logs
    assert entry["error_id"] in body["message"]
    assert entry["error_id"] in body["hint"]
    assert entry["where"] == "GET /v1/pins"
    assert isinstance(entry["exc_info"], ZeroDivisionError)
    assert "secret" not in json.dumps(body)
    assert "Traceback" not in json.dumps(body)


async def test_failures_of_synchronous_methods_are_told_too(api: Api) -> None:
    api.images.failures["jobs"] = errors.JournalError("the journal is locked")
    async with api.http.get(api.url + "/v1/jobs") as response:
        assert (response.status, (await response.json())["reason"]) == (500, "JournalFailed")


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "$: the body is empty"),
    (b"  \n", "$: the body is empty"),
    (b'{"images": ["a"', "$: input data was truncated"),
    (b'{"images": ["a"]} x', "$: JSON is malformed"),
    (b"[]", "$: expected `object`, got `array`"),
    (b"{}", "$: object missing required field `images`"),
    (b'{"images": ["a", "b", "c", 4]}', "$.images[3]: expected `str`, got `int`"),
    (b'{"images": "a"}', "$.images: expected `array`, got `str`"),
    (b'{"images": ["a"], "imagez": 1}', "$: object contains unknown field `imagez`"),
    (b'{"images": ["a"], "priority": 1.5}', "$.priority: expected `int`, got `float`"),
    (b'{"images": ["a"], "priority": "5"}', "$.priority: expected `int`, got `str`"),
    (b'{"images": ["a"], "policy": "Never"}', "$.policy: invalid enum value 'Never'"),
    (b'{"images": ["a"], "timeoutSeconds": NaN}', "$: JSON is malformed"),
    (b'{"images": ["a"], "auths": [{"registry": "r", "passwd": "x"}]}', "$.auths[0]: object contains unknown field"),
    (b'{"images": ["\xff"]}', "$"),
    (b'{"images": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "$.images[0]: expected `str`, got `array`"),
]


@pytest.mark.parametrize(("raw", "message"), MALFORMED)
async def test_malformed_bodies_name_the_place(api: Api, raw: bytes, message: str) -> None:
    headers = {"Content-Type": "application/json"}
    async with api.http.post(api.url + "/v1/images/warm", data=raw, headers=headers) as response:
        body = await response.json()
    assert response.status == 400
    assert body["reason"] == "InvalidInput"
    assert body["message"].lower().startswith(message.lower())
    assert api.images.calls == []


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("DELETE", "/v1/images", "query parameter 'image' is missing"),
        ("DELETE", "/v1/images?image=", "query parameter 'image' is missing"),
        ("DELETE", "/v1/images?image=a&image=b", "query parameter 'image' is given more than once"),
        ("DELETE", "/v1/images?image=a&force=maybe", "query parameter 'force' is 'maybe', not 1 or 0"),
        ("DELETE", "/v1/images?image=a&forced=1", "unknown query parameter 'forced'"),
        ("DELETE", "/v1/pins", "query parameter 'image' is missing"),
        ("DELETE", "/v1/keeps", "query parameter 'image' is missing"),
        ("GET", "/v1/history?limit=0", "query parameter 'limit' is '0', not a whole number from 1 to 10000"),
        ("GET", "/v1/history?limit=-1", "query parameter 'limit' is '-1', not a whole number"),
        ("GET", "/v1/history?limit=1e3", "query parameter 'limit' is '1e3', not a whole number"),
        ("GET", "/v1/history?limit=99999999999999999999", "query parameter 'limit' is"),
        ("GET", "/v1/jobs?all=1", "unknown query parameter 'all'"),
        ("GET", "/v1/watch?job=1", "unknown query parameter 'job'"),
    ],
)
async def test_query_strings_are_checked(api: Api, method: str, path: str, message: str) -> None:
    async with api.http.request(method, api.url + path) as response:
        body = await response.json()
    assert response.status == 400
    assert body["message"].startswith(message)


async def test_unknown_routes_and_methods(api: Api) -> None:
    async with api.http.get(api.url + "/v2/jobs") as response:
        assert response.status == 404
        assert (await response.json())["reason"] == "UnknownRoute"
    async with api.http.post(api.url + "/v1/jobs") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"
        assert await response.json() == {
            "reason": "MethodNotAllowed",
            "message": "/v1/jobs does not take POST",
            "hint": "it takes GET, HEAD",
        }


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Content-Type": "text/yaml"}, "content type 'text/yaml' is not supported"),
        ({"Content-Type": "application/json; charset=latin-1"}, "charset 'latin-1' is not supported"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "content encoding 'gzip' is not supported"),
    ],
)
async def test_only_plain_json_is_read(api: Api, headers: dict[str, str], message: str) -> None:
    raw = gzip.compress(b'{"images": ["a"]}')
    async with api.http.post(api.url + "/v1/images/warm", data=raw, headers=headers) as response:
        body = await response.json()
    assert response.status == 415
    assert (body["reason"], body["message"]) == ("UnsupportedMedia", message)


async def test_a_body_without_a_content_type_is_read(api: Api) -> None:
    skip = ("Content-Type",)
    raw = b'{"images": ["a"]}'
    async with api.http.post(api.url + "/v1/images/plan", data=raw, skip_auto_headers=skip) as response:
        assert response.status == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_long_bodies_are_refused(chunked: bool) -> None:
    async with running_api(max_body=1000) as api:
        raw = json.dumps({"images": ["x" * 2_000_000]}).encode()

        async def pieces() -> Any:
            for start in range(0, len(raw), 65536):
                yield raw[start : start + 65536]

        headers = {"Content-Type": "application/json"}
        data = pieces() if chunked else io.BytesIO(raw)
        async with api.http.post(api.url + "/v1/images/warm", data=data, headers=headers) as response:
            assert response.status == 413
            assert (await response.json())["reason"] == "BodyTooLarge"
        assert api.images.calls == []


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with running_api(deadlines=Deadlines(body=0.05)) as api:
        reader, writer = await asyncio.open_unix_connection(str(api.socket))
        writer.write(b"PUT /v1/pins HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        writer.close()
        await writer.wait_closed()


async def test_slow_reads_end_at_their_deadline() -> None:
    async with running_api(deadlines=Deadlines(health=0.05, call=0.05)) as api:
        api.images.gates["pins"] = asyncio.Event()
        async with api.http.get(api.url + "/v1/pins") as response:
            assert response.status == 504
            assert (await response.json())["reason"] == "DeadlineExceeded"
        api.node.hang = True
        async with api.http.get(api.url + "/healthz") as response:
            assert response.status == 503
            assert await response.json() == {"ok": False, "message": "no answer within 0.05 s"}


async def test_slow_changes_go_on_after_their_deadline() -> None:
    async with running_api(deadlines=Deadlines(call=0.05)) as api:
        api.images.gates["pin"] = asyncio.Event()
        async with api.http.put(api.url + "/v1/pins", json={"image": "nginx"}) as response:
            assert response.status == 504
            assert "still at it" in (await response.json())["hint"]
        api.images.gates["pin"].set()
        await api.server.stop(5.0)
        assert api.images.finished == ["pin"]


async def test_a_change_outlives_its_client_and_its_failure_is_logged(api: Api) -> None:
    api.images.gates["remove"] = asyncio.Event()
    api.images.failures["remove"] = errors.RuntimeFailure("containerd said no")
    asking = asyncio.create_task(api.http.delete(api.url + "/v1/images?image=nginx").__aenter__())
    await api.images.entering("remove").wait()
    asking.cancel()
    await asyncio.wait({asking})
    gone = {"method": "DELETE", "route": "/v1/images", "code": "gone"}
    await until(lambda: api.registry.get_sample_value("stoker_api_requests_total", gone) == 1)
    with capture_logs() as logs:
        api.images.gates["remove"].set()
        await api.server.stop(5.0)
    assert [(entry["log_level"], entry["error"]) for entry in logs] == [("warning", "containerd said no")]


async def test_what_is_not_http_gets_an_error_body(api: Api) -> None:
    reader, writer = await asyncio.open_unix_connection(str(api.socket))
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.0 400 ")
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert body["reason"] == "InvalidInput"
    assert "not HTTP" in body["message"]
    writer.close()
    await writer.wait_closed()


def test_an_unknown_exception_never_speaks_for_itself() -> None:
    with capture_logs():
        failure = failure_of(KeyError("token=abc"), where="GET /x")
    assert failure.status == 500
    assert "abc" not in failure.body.message + failure.body.hint
