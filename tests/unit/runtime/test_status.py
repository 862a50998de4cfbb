"""From gRPC status to our errors: every status, and the two that mean more than one thing."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from stokerd.errors import (
    RuntimeAlreadyExists,
    RuntimeBusy,
    RuntimeFailure,
    RuntimeInvalid,
    RuntimeNoSpace,
    RuntimeNotFound,
    RuntimeTimeout,
    RuntimeUnavailable,
    RuntimeUnsupported,
)
from stokerd.runtime.status import guarded, runtime_error

Code = grpc.StatusCode


def failed(code: grpc.StatusCode, details: str | None = "something happened") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.CANCELLED, RuntimeFailure),
        (Code.UNKNOWN, RuntimeFailure),
        (Code.INVALID_ARGUMENT, RuntimeInvalid),
        (Code.DEADLINE_EXCEEDED, RuntimeTimeout),
        (Code.NOT_FOUND, RuntimeNotFound),
        (Code.ALREADY_EXISTS, RuntimeAlreadyExists),
        (Code.PERMISSION_DENIED, RuntimeFailure),
        (Code.UNAUTHENTICATED, RuntimeFailure),
        (Code.RESOURCE_EXHAUSTED, RuntimeFailure),
        (Code.FAILED_PRECONDITION, RuntimeInvalid),
        (Code.ABORTED, RuntimeFailure),
        (Code.UNIMPLEMENTED, RuntimeUnsupported),
        (Code.OUT_OF_RANGE, RuntimeInvalid),
        (Code.INTERNAL, RuntimeFailure),
        (Code.DATA_LOSS, RuntimeFailure),
    ],
)
def test_every_status(code: grpc.StatusCode, kind: type[RuntimeFailure]) -> None:
    error = runtime_error(failed(code), "images.Get")
    assert type(error) is kind
    assert error.status == code.name
    assert error.call == "images.Get"
    assert error.retryable == (kind is RuntimeTimeout)
    assert error.message == "something happened"


@pytest.mark.parametrize(
    "details",
    [
        "",
        "Deadline Exceeded",
        "context deadline exceeded",
        "Stream removed (Deadline Exceeded)",
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
    ],
)
def test_out_of_time_without_a_word_of_containerd(details: str) -> None:
    error = runtime_error(failed(Code.DEADLINE_EXCEEDED, details), "images.Get")
    assert type(error) is RuntimeTimeout
    assert error.message == "containerd did not answer images.Get in time"


def test_out_of_time_in_the_words_of_containerd() -> None:
    details = "failed to exec in container: timeout 1s exceeded: context deadline exceeded"
    error = runtime_error(failed(Code.DEADLINE_EXCEEDED, details), "cri.ExecSync")
    assert type(error) is RuntimeTimeout
    assert error.message == details


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.FAILED_PRECONDITION])
@pytest.mark.parametrize(
    ("details", "kind"),
    [
        (
            'failed to reserve container name "app_web_default_1_0": name "app_web_default_1_0" is reserved for "ab"',
            RuntimeAlreadyExists,
        ),
        (
            'failed to reserve container name "app_web_default_1_0"; check if another CreateContainer request is in '
            'progress: name "app_web_default_1_0" is reserved for "ab"',
            RuntimeAlreadyExists,
        ),
        ('failed to reserve sandbox name "web_default_1_0": name "web_default_1_0" is reserved', RuntimeAlreadyExists),
        (
            'failed to set starting state for container "ab": container is in CONTAINER_EXITED state',
            RuntimeInvalid,
        ),
        ("failed to exec in container: container is in CONTAINER_CREATED state", RuntimeInvalid),
        ('failed to set starting state for container "ab": container is already in starting state', RuntimeBusy),
        ('sandbox container "ab" is not running', RuntimeInvalid),
        ("OCI runtime pause failed: unable to freeze", RuntimeBusy),
        ("OCI runtime pause failed: unable to freeze: unknown", RuntimeBusy),
        ("OCI runtime pause failed: timeout of 10s reached waiting for the cgroup to freeze", RuntimeBusy),
    ],
)
def test_what_cri_says_without_a_status(code: grpc.StatusCode, details: str, kind: type[RuntimeFailure]) -> None:
    assert type(runtime_error(failed(code, details), "cri.StartContainer")) is kind


def test_all_statuses_are_in_the_tables() -> None:
    marks = test_every_status.pytestmark  # type: ignore[attr-defined]
    covered = {code for code, _ in marks[0].args[1]} | {Code.OK, Code.UNAVAILABLE}
    assert covered == set(grpc.StatusCode)


@pytest.mark.parametrize(
    "details",
    [
        "failed to connect to all addresses; last error: UNKNOWN: unix:/run/x.sock: connect failed: addr: "
        "unix:/run/x.sock error: No such file or directory",
        "failed to connect to all addresses; last error: FAILED_PRECONDITION: unix:/run/x.sock: connect failed: addr: "
        "unix:/run/x.sock error: Connection refused",
        "Socket closed",
        "Stream removed",
        "recvmsg:Connection reset by peer",
        "sendmsg: Broken pipe (32)",
        "GOAWAY received",
        "keepalive watchdog timeout",
        "Endpoint closing",
        "Channel closed",
        "Transport closed",
    ],
)
def test_a_broken_transport(details: str) -> None:
    error = runtime_error(failed(Code.UNAVAILABLE, details), "cri.Version")
    assert type(error) is RuntimeUnavailable
    assert error.retryable
    assert error.message == f"containerd cannot be reached (cri.Version: {details})"
    assert error.hint == "is containerd running? (stoker doctor)"
    assert error.status == "UNAVAILABLE"


@pytest.mark.parametrize(
    "details",
    [
        "ref layer-sha256:abc locked for 2.1s (since 2026-11-30): unavailable",
        "unexpected status from HEAD request to https://registry.test/v2/app/manifests/v1: 503 Service Unavailable",
        'failed to pull and unpack image "registry.test/app:v1": failed to copy: read tcp 127.0.0.1:1->127.0.0.1:2: '
        "read: connection reset by peer",
        'failed to resolve image: failed to do request: Head "https://registry.test": dial tcp 127.0.0.1:1: connect: '
        "connection refused",
        "the snapshotter is busy",
    ],
)
def test_unavailable_in_the_words_of_containerd(details: str) -> None:
    error = runtime_error(failed(Code.UNAVAILABLE, details), "cri.PullImage")
    assert type(error) is RuntimeFailure
    assert error.message == details
    assert error.hint is None


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.INTERNAL])
@pytest.mark.parametrize("words", ["no space left on device", "No space left on device", "disk quota exceeded"])
def test_a_full_disk(code: grpc.StatusCode, words: str) -> None:
    error = runtime_error(failed(code, f"failed to copy: write /var/lib/x: {words}"), "cri.PullImage")
    assert type(error) is RuntimeNoSpace
    assert words in error.message


def test_no_secret_is_told() -> None:
    details = 'Get "https://robot:s3cret@registry.test/v2/": Authorization: Bearer abcdefghijk was refused'
    error = runtime_error(failed(Code.UNKNOWN, details), "cri.PullImage")
    assert "s3cret" not in str(error)
    assert "abcdefghijk" not in str(error)


@pytest.mark.parametrize("details", [None, ""])
def test_a_status_without_words(details: str | None) -> None:
    assert runtime_error(failed(Code.INTERNAL, details), "leases.List").message == "leases.List failed: INTERNAL"


class TestGuarded:
    async def test_counts_what_it_awaits(self) -> None:
        seen: list[tuple[str, str, bool]] = []

        def observe(call: str, status: str, seconds: float) -> None:
            seen.append((call, status, seconds >= 0))

        async def fine() -> int:
            return 7

        async def broken() -> int:
            raise failed(Code.NOT_FOUND)

        async def misused() -> int:
            raise grpc.aio.UsageError("Channel is closed.")

        async def wrong() -> int:
            raise ZeroDivisionError

        assert await guarded("a", fine(), observe) == 7
        with pytest.raises(RuntimeNotFound) as caught:
            await guarded("b", broken(), observe)
        assert caught.value.__suppress_context__
        with pytest.raises(RuntimeUnavailable, match="was closed"):
            await guarded("c", misused(), observe)
        with pytest.raises(ZeroDivisionError):
            await guarded("d", wrong(), observe)
        assert seen == [("a", "OK", True), ("b", "NOT_FOUND", True), ("c", "CLOSED", True), ("d", "UNKNOWN", True)]

    async def test_tells_a_cancelled_task_from_a_cancelled_call(self) -> None:
        statuses: list[str] = []

        def observe(_call: str, status: str, _seconds: float) -> None:
            statuses.append(status)

        async def call_cancelled() -> None:
            raise asyncio.CancelledError

        with pytest.raises(RuntimeUnavailable, match="was closed"):
            await guarded("a", call_cancelled(), observe)

        task = asyncio.create_task(guarded("b", asyncio.Event().wait(), observe))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await guarded("c", asyncio.Event().wait(), observe)
        assert statuses == ["CANCELLED", "CANCELLED", "CANCELLED"]


def test_a_stream_that_has_ended_means_that_containerd_is_away() -> None:
    error = runtime_error(failed(Code.INTERNAL, "Internal error from Core"), "content.Write")
    assert type(error) is RuntimeUnavailable
    assert (error.status, error.call, error.retryable) == ("INTERNAL", "content.Write", True)
